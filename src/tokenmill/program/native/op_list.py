"""The list of operations of the native program, as it grows: a linear places the units of its matrix, small tensors are
kept at addresses, and each operation is a TmOp (native/abi.h).
"""

import ctypes
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from tokenmill.kernels.native_structs import TmOp, TmUnit
from tokenmill.model.blocks import Norm, Projection
from tokenmill.model.parameters import Shapes, join
from tokenmill.program.native.spec import first_rows
from tokenmill.program.native.units import Linear, Place
from tokenmill.program.native.weights import Packed, Packing, SmallTensor
from tokenmill.quant.schemes import GROUP

Role = tuple[int | None, str]  # the layer and the role of a matrix
NOWHERE = Place(0, 0, 0, 0)  # for the units of a matrix of which this rank has no unit
# As in abi.h.
EMBED, NORM, LINEAR, ATTEND, CHOOSE, COMBINE, COPY, HEADS, CONVOLVE, RECUR, GATE, INPUTS, LATENT_ROWS = range(13)
EXPAND, PREDICT, BESIDE, CORRECT, SPREAD, JOIN, PAIR, REPLACE = range(13, 21)
ADD, QKV, GATED, ACTIVATED, LOGITS, ROUTER, EXPERT, STORE, SHARED_GATE, TO_BUFFER, QUERY, IN_PLACE = range(12)
EACH_HEAD, OWN_HEAD, ALL_HEADS = range(3)
NO_SHARED, SHARED, GATED_SHARED = range(3)
IDENTITY, SILU, SWIGLU, SIGMOID, SOFTPLUS = 0, 1, 7, 8, 9
ATTENTION_IN, MLP_IN, MLP_INNER, ATTENDED, GATHERED, LATENT = range(6)  # activation buffers; the head reads MLP_IN too


class OpList:
    """Operations in order, and the matrices that they read. shapes: of the decoder's parameters."""

    def __init__(self, weights: Packing | Packed, shapes: Shapes) -> None:
        self.weights, self.shapes = weights, shapes
        self.linears, self.places = list[Linear](), list[int]()  # and where their operations stand in the list
        self.kept = defaultdict[str, list[tuple[int, float]]](list)  # addresses of a small tensor, and what is added
        self._ops, self._held = list[TmOp](), list[Any]()

    def add(self, kind: int, **fields: Any) -> TmOp:
        op = TmOp(kind=kind, **{"scale": 1.0, "rescale": 1.0, **fields})
        self._ops.append(op)
        return op

    def append(self, op: TmOp) -> TmOp:
        """Add an operation of another list, with what it points to."""
        self._ops.append(op)
        return op

    def linear(
        self,
        matrices: Sequence[Role],
        matrix: Projection,
        epilogue: int,
        source: int,
        *,
        unit: int = GROUP,
        whole: bool = False,
        **fields: Any,
    ) -> None:
        """Add one matrix, or the same matrix of every expert. whole: a unit always has so many rows."""
        biases = [self.keep(f"{join(*place)}.bias") for place in matrices] if matrix.bias else []
        if len(biases) > 1:
            fields["biases"] = self._array(biases)
        bias = biases[0] if len(biases) == 1 else None
        fields["factors"] = self._factors_of(matrix) if matrix.is_scaled else None
        fields["clip"] = matrix.clip or 0.0
        firsts, gates, outputs = list(first_rows(matrix, unit)), list[int](), matrix.outputs
        if epilogue == GATED:
            half, outputs = len(firsts) // 2, outputs // 2
            gates, firsts = firsts[:half], firsts[half:]
        op = self.add(
            LINEAR, epilogue=epilogue, from_=source, inputs=matrix.inputs, outputs=outputs, bias=bias, **fields
        )
        self.places.append(len(self._ops) - 1)
        self.linears.append(Linear(op, matrices, matrix.parts, unit, firsts, gates, whole))

    def factors(self, path: str, norm: Norm) -> int:
        """Give the address of the factors of a norm."""
        if not norm.weight:
            return self.weights.keep(SmallTensor(None, (norm.size,), 1.0))
        return self.keep(f"{path}.weight", 1.0 if norm.unit_offset else 0.0)

    def keep(self, parameter: str, offset: float = 0.0, in_float32: bool = True, transposed: bool = False) -> int:
        """Give the address of a small tensor."""
        address = self.weights.keep(SmallTensor(parameter, self.shapes[parameter], offset, in_float32, transposed))
        self.kept[parameter].append((address, offset))
        return address

    def place(self) -> None:
        """Place all matrices."""
        for linear, places in zip(self.linears, self.weights.place(self.linears), strict=True):
            op, units = linear.op, (TmUnit * len(linear.unit_rows))()
            elsewhere = next((Place(0, each.layout, 0, each.gate_layout) for each in places.values()), NOWHERE)
            for number, (unit, row) in enumerate(zip(units, linear.unit_rows, strict=True)):
                place = places.get(number, elsewhere)
                unit.data, unit.scheme = place.address, place.layout
                if linear.gates:
                    unit.gate, unit.gate_scheme = place.gate_address, place.gate_layout
                unit.first = row - linear.firsts[0]
                unit.count = min(linear.count, linear.end_of_part(row) - row)
            op.units, op.num_units = units, len(units)  # op keeps units alive

    def array(self) -> "ctypes.Array[TmOp]":
        """Return the list as C has it. This object keeps alive what it points to."""
        return (TmOp * len(self._ops))(*self._ops)

    def _factors_of(self, matrix: Projection) -> int:
        """Give the address of a factor for each product."""
        pairs = zip(matrix.parts, matrix.multipliers, strict=True)
        factors = [multiplier for rows, multiplier in pairs for _ in range(rows)]
        held = (ctypes.c_float * len(factors))(*factors)
        self._held.append(held)
        return ctypes.addressof(held)

    def _array(self, addresses: list[int]) -> int:
        held = (ctypes.c_void_p * len(addresses))(*addresses)
        self._held.append(held)
        return ctypes.addressof(held)
