"""A decoder's description as the flat list of operations that the native program runs: embed, then per layer norm,
qkv, attend, out, norm, MLP, at last norm and head. Families differ in what is in the list, not in C++.

A parallel layer norms for both its halves before either adds to the residual stream.
"""

from collections.abc import Sequence
from typing import Any

import torch

from tokenmill.cache.formats.layer import LayerKV
from tokenmill.kernels.native_structs import Op, Unit
from tokenmill.model.description import (
    AttentionBlock,
    DecoderDescription,
    ExpertsBlock,
    LayerDescription,
    MlpBlock,
    Norm,
    Projection,
)
from tokenmill.model.parameters import join, parameter_shapes
from tokenmill.program.native.layouts import KV_FIELDS, LAYOUTS, TILE
from tokenmill.program.native.spec import ACTIVATIONS, first_rows, has_coded_embedding
from tokenmill.program.native.weights import Linear, Packed, Packing
from tokenmill.quant.schemes import GROUP, Scheme

Place = tuple[int | None, str]  # the layer and the role of a matrix
# As in abi.h.
EMBED, NORM, LINEAR, ATTEND, CHOOSE, COMBINE = range(6)
ADD, QKV, GATED, ACTIVATED, LOGITS, ROUTER, EXPERT = range(7)
ATTENTION_IN, MLP_IN, MLP_INNER, ATTENDED, GATHERED = range(5)  # activation buffers; the head reads MLP_IN too


class Ops:
    """The list. The description says what there is to do, `weights` places the matrices and tensors that it names.

    array: the list as C has it; this object keeps alive what it points to.
    """

    def __init__(
        self,
        decoder: DecoderDescription,
        scheme: Scheme,
        dtype: str,
        layers_kv: list[LayerKV],
        weights: Packing | Packed,
    ) -> None:
        self.layers_kv, self.weights, self._shapes = layers_kv, weights, parameter_shapes(decoder)
        self._ops, self._linears = list[Op](), list[Linear]()
        config, number = decoder.config, getattr(torch, dtype)
        learned = config.positions == "learned"
        positions = self._keep("position_embedding.weight", number) if learned else None
        width, size = decoder.head.inputs, decoder.head.outputs
        embed = self._add(EMBED, inputs=width, outputs=size, positions=positions, scheme=LAYOUTS[dtype])
        is_coded = has_coded_embedding(config, scheme)
        if not is_coded:
            embed.table = self._keep("embedding.weight", number)
        elif not config.tie_embeddings:
            units = list(range(0, size, GROUP))
            self._linears.append(Linear(embed, [(None, "embedding")], GROUP, units, [], whole=False))
        for layer, (description, layer_kv) in enumerate(zip(decoder.layers, layers_kv, strict=True)):
            self._layer(layer, description, layer_kv)
        self._norm("norm", decoder.norm, MLP_IN, LOGITS)
        self._linear([(None, "head")], decoder.head, LOGITS, MLP_IN, softcap=config.logit_softcap or 0.0)
        self._place()
        if is_coded and config.tie_embeddings:
            head = self._linears[-1].op
            embed.units, embed.num_units = head.units, head.num_units
        self.array = (Op * len(self._ops))(*self._ops)

    def _layer(self, layer: int, description: LayerDescription, layer_kv: LayerKV) -> None:
        before, parallel = description.before, description.parallel
        assert before is not None, "refused"
        self._norm(join(layer, "attention_norm"), before, ATTENTION_IN)
        if parallel:
            self._norm(join(layer, "mlp_norm"), before, MLP_IN)
        self._attention(layer, description.attention, layer_kv)
        if not parallel:
            self._norm(join(layer, "mlp_norm"), before, MLP_IN)
        if isinstance(description.mlp, ExpertsBlock):
            self._experts(layer, description.mlp)
        else:
            self._mlp(layer, ["mlp"], description.mlp, MLP_IN, ADD)

    def _norm(self, path: str, norm: Norm, to: int, epilogue: int = 0) -> None:
        weight, bias = self._factors(path, norm), self._floats(f"{path}.bias") if norm.bias else None
        centred = int(norm.kind == "layer")
        self._add(NORM, to=to, epilogue=epilogue, weight=weight, bias=bias, eps=norm.eps, centred=centred)

    def _attention(self, layer: int, block: AttentionBlock, layer_kv: LayerKV) -> None:
        tensors = zip((KV_FIELDS[kind] for kind in layer_kv.kinds), layer_kv.tensors, strict=True)
        cache: dict[str, Any] = {name: tensor.data_ptr() for name, tensor in tensors}
        cache |= {"num_kv_heads": block.num_kv_heads, "head_dim": block.head_dim}
        norms: dict[str, Any] = {}
        for name, norm in zip(("q_norm", "k_norm"), block.qk_norms, strict=False):
            norms |= {name: self._factors(join(layer, f"attention.{name}"), norm), "eps": norm.eps}
        qkv, out = (layer, "attention.qkv"), (layer, "attention.out")
        self._linear([qkv], block.qkv, QKV, ATTENTION_IN, unit=block.head_dim, **cache, **norms)
        shape = block.shape
        softcap = shape.softcap or 0.0
        self._add(ATTEND, to=ATTENDED, scale=shape.scale, softcap=softcap, window=shape.window or 0, **cache)
        self._linear([out], block.out, ADD, ATTENDED)

    def _experts(self, layer: int, block: ExpertsBlock) -> None:
        mixture: dict[str, Any] = {"experts": block.num, "chosen": block.chosen}
        self._linear([(layer, "mlp.router")], block.router, ROUTER, MLP_IN, unit=TILE)
        self._add(CHOOSE, from_=MLP_IN, to=GATHERED, normalise=int(block.normalise), **mixture)
        experts = [f"mlp.experts.{expert}" for expert in range(block.num)]
        self._mlp(layer, experts, block.expert, GATHERED, EXPERT, **mixture)
        self._add(COMBINE, **mixture)

    def _mlp(self, layer: int, roles: list[str], block: MlpBlock, source: int, epilogue: int, **mixture: Any) -> None:
        inner: dict[str, Any] = {"to": MLP_INNER, "activation": ACTIVATIONS[block.activation], **mixture}
        ups, downs = ([(layer, f"{role}.{name}") for role in roles] for name in ("up", "down"))
        self._linear(ups, block.up, GATED if block.gated else ACTIVATED, source, **inner)
        self._linear(downs, block.down, epilogue, MLP_INNER, **mixture)

    def _linear(
        self,
        matrices: Sequence[Place],
        matrix: Projection,
        epilogue: int,
        source: int,
        unit: int = GROUP,
        **fields: Any,
    ) -> None:
        """One matrix, or the same one of every expert."""
        assert not matrix.bias or len(matrices) == 1, "refused: experts with biases"
        bias = self._floats(f"{join(*matrices[0])}.bias") if matrix.bias else None
        firsts, gates, outputs = list(first_rows(matrix, unit)), list[int](), matrix.outputs
        if epilogue == GATED:
            half, outputs = len(firsts) // 2, outputs // 2
            gates, firsts = firsts[:half], firsts[half:]
        op = self._add(
            LINEAR, epilogue=epilogue, from_=source, inputs=matrix.inputs, outputs=outputs, bias=bias, **fields
        )
        self._linears.append(Linear(op, matrices, unit, firsts, gates, whole=epilogue == QKV))

    def _add(self, kind: int, **fields: Any) -> Op:
        op = Op(kind=kind, **fields)
        self._ops.append(op)
        return op

    def _factors(self, path: str, norm: Norm) -> int:
        """What a norm multiplies by."""
        return self._keep(f"{path}.weight", torch.float32, 1.0 if norm.unit_offset else 0.0)

    def _floats(self, parameter: str) -> int:
        return self._keep(parameter, torch.float32)

    def _keep(self, parameter: str, dtype: torch.dtype, offset: float = 0.0) -> int:
        return self.weights.keep(parameter, self._shapes[parameter], dtype, offset)

    def _place(self) -> None:
        for linear, runs in zip(self._linears, self.weights.place(self._linears), strict=True):
            op, units = linear.op, (Unit * len(linear.unit_rows))()
            places = ((run, run.address + at * linear.stride(run)) for run in runs for at in range(run.num_units))
            for unit, row, (run, address) in zip(units, linear.unit_rows, places, strict=True):
                unit.data, unit.scheme = address, run.layout
                if linear.gates:
                    unit.gate, unit.gate_scheme = address + linear.unit_bytes(run.layout), run.gate_layout
                unit.first = row - linear.firsts[0]
                unit.count = min(linear.count, op.outputs - unit.first)
            op.units, op.num_units = units, len(units)  # op keeps units alive
