"""A decoder's description as the flat list of operations that the native program runs: embed, then per layer norm, qkv,
attend, out, norm, MLP, at last norm and head. Families differ in the list, not in C++.

A parallel layer norms for both its halves before either adds to the residual stream. The rows before a norm that
follows a half are stored first, and added by the norm.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tokenmill.cache.formats.layer import LayerKV
from tokenmill.kernels.native_structs import TmOp, TmUnit
from tokenmill.kernels.threads import torch_threads
from tokenmill.model.blocks import Norm, Projection
from tokenmill.model.description import DecoderDescription, ExpertsBlock, LayerDescription, MlpBlock
from tokenmill.model.mixers.attention import AttentionBlock
from tokenmill.model.mixers.attention_module import temperatures
from tokenmill.model.parameters import join, parameter_shapes
from tokenmill.model.rope import RotaryTable
from tokenmill.program.native.layouts import KV_FIELDS, LAYOUTS, TILE
from tokenmill.program.native.spec import ACTIVATIONS, first_rows, has_coded_embedding
from tokenmill.program.native.units import Linear, Place
from tokenmill.program.native.weights import Packed, Packing, SmallTensor
from tokenmill.quant.schemes import GROUP, Scheme

Role = tuple[int | None, str]  # the layer and the role of a matrix
NOWHERE = Place(0, 0, 0, 0)  # for the units of a matrix of which this rank has no unit
# As in abi.h.
EMBED, NORM, LINEAR, ATTEND, CHOOSE, COMBINE, COPY, HEADS = range(8)
ADD, QKV, GATED, ACTIVATED, LOGITS, ROUTER, EXPERT, STORE, SHARED_GATE, TO_BUFFER = range(10)
EACH_HEAD, OWN_HEAD, ALL_HEADS = range(3)
NO_SHARED, SHARED, GATED_SHARED = range(3)
SWIGLU = 7
ATTENTION_IN, MLP_IN, MLP_INNER, ATTENDED, GATHERED = range(5)  # activation buffers; the head reads MLP_IN too


class Ops:
    """The list of operations. The description says what there is to do; `weights` places the matrices and tensors.

    array: the list as C has it; this object keeps alive what it points to.
    """

    def __init__(
        self,
        decoder: DecoderDescription,
        scheme: Scheme,
        dtype: str,
        layers_kv: list[LayerKV],
        weights: Packing | Packed,
        num_positions: int,
    ) -> None:
        self.layers_kv, self.weights, self._shapes = layers_kv, weights, parameter_shapes(decoder)
        self._tables = PositionTables(decoder, num_positions)
        self._ops, self._linears, self._held = list[TmOp](), list[Linear](), list[Any]()
        config, learned = decoder.config, decoder.config.positions == "learned"
        positions = self._keep("position_embedding.weight", in_float32=False) if learned else None
        width, size = decoder.head.inputs, decoder.head.outputs
        multiplier = float(torch.tensor(config.embedding_multiplier, dtype=getattr(torch, dtype)))
        sizes = {"inputs": width, "outputs": size}
        embed = self._add(EMBED, positions=positions, scheme=LAYOUTS[dtype], scale=multiplier, **sizes)
        is_coded = has_coded_embedding(config, scheme)
        if not is_coded:
            table = SmallTensor("embedding.weight", self._shapes["embedding.weight"], in_float32=False)
            embed.table = self.weights.keep_table(table)
        elif not config.tie_embeddings:
            units = list(range(0, size, GROUP))
            self._linears.append(Linear(embed, [(None, "embedding")], [size], GROUP, units, [], whole=False))
        for layer, kept in enumerate(zip(decoder.layers, decoder.attentions, layers_kv, strict=True)):
            self._layer(layer, *kept)
        self._norm("norm", decoder.norm, MLP_IN, LOGITS)
        logits: dict[str, Any] = {"scale": config.logit_multiplier, "softcap": config.logit_softcap or 0.0}
        self._linear([(None, "head")], decoder.head, LOGITS, MLP_IN, **logits)
        self._place()
        if is_coded and config.tie_embeddings:
            head = self._linears[-1].op
            embed.units, embed.num_units = head.units, head.num_units
        self.array = (TmOp * len(self._ops))(*self._ops)

    def _layer(self, layer: int, description: LayerDescription, block: AttentionBlock, layer_kv: LayerKV) -> None:
        mlp_norm = "attention_norm" if description.shared_norm else "mlp_norm"
        self._before(layer, "attention_norm", description, ATTENTION_IN)
        if description.parallel:
            self._before(layer, mlp_norm, description, MLP_IN)
        self._attention(layer, description, block, layer_kv)
        if not description.parallel:
            self._before(layer, mlp_norm, description, MLP_IN)
        if isinstance(description.mlp, ExpertsBlock):
            self._experts(layer, description.mlp, description)
        elif description.mlp is not None:
            self._mlp(layer, ["mlp"], description.mlp, MLP_IN, **self._joins(description))
        self._after(layer, "mlp_after_norm", description)

    def _before(self, layer: int, role: str, description: LayerDescription, to: int) -> None:
        """Add the operation that makes the input of attention or of an MLP."""
        if description.before is None:
            self._add(COPY, to=to)
        else:
            self._norm(join(layer, role), description.before, to)

    def _joins(self, description: LayerDescription) -> dict[str, Any]:
        """Choose the epilogue of attention or of an MLP: add to the residual stream, or store for a norm."""
        if description.after is None:
            return {"epilogue": ADD, "scale": description.multiplier}
        return {"epilogue": STORE}

    def _after(self, layer: int, role: str, description: LayerDescription) -> None:
        if description.after is not None:
            self._norm(join(layer, role), description.after, 0, ADD, scale=description.multiplier)

    def _norm(self, path: str, norm: Norm, to: int, epilogue: int = TO_BUFFER, scale: float = 1.0) -> None:
        weight, bias = self._factors(path, norm), self._keep(f"{path}.bias") if norm.bias else None
        fields: dict[str, Any] = {"weight": weight, "bias": bias, "eps": norm.eps, "scale": scale}
        self._add(NORM, to=to, epilogue=epilogue, centred=int(norm.kind == "layer"), **fields)

    def _attention(self, layer: int, description: LayerDescription, block: AttentionBlock, layer_kv: LayerKV) -> None:
        shape = block.shape
        tensors = zip((KV_FIELDS[kind] for kind in layer_kv.kinds), layer_kv.tensors, strict=True)
        cache: dict[str, Any] = {name: tensor.data_ptr() for name, tensor in tensors}
        sizes = {"num_kv_heads": block.num_kv_heads, "head_dim": block.head_dim}
        heads = cache | sizes | self._tables.fields(block) | self._head_norms(layer, block)
        qkv, out = [(layer, "attention.qkv")], [(layer, "attention.out")]
        if heads.get("norm_scope") == ALL_HEADS:
            self._linear(qkv, block.qkv, STORE, ATTENTION_IN, unit=block.head_dim, **sizes)
            self._add(HEADS, **heads)
        else:
            self._linear(qkv, block.qkv, QKV, ATTENTION_IN, unit=block.head_dim, **heads)
        facts = {"scale": shape.scale, "softcap": shape.softcap or 0.0, "window": shape.window or 0}
        sinks = self._keep(join(layer, "attention.sinks")) if shape.sinks else None
        self._add(ATTEND, to=ATTENDED, sinks=sinks, **facts, **cache, **sizes)
        self._linear(out, block.out, source=ATTENDED, **self._joins(description))
        self._after(layer, "attention_after_norm", description)

    def _head_norms(self, layer: int, block: AttentionBlock) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, norm in zip(("q_norm", "k_norm"), block.qk_norms, strict=False):
            path = join(layer, f"attention.{name}")
            found[name], found["eps"], found["centred"] = self._factors(path, norm), norm.eps, norm.kind == "layer"
            if norm.bias:
                found[f"{name}_bias"] = self._keep(f"{path}.bias")
            own = OWN_HEAD if norm.heads > 1 else EACH_HEAD
            found["norm_scope"] = max(found.get("norm_scope", 0), own if block.norms_heads else ALL_HEADS)
        return found | {"norms_after_rope": int(block.norms_after_rope)}

    def _experts(self, layer: int, block: ExpertsBlock, description: LayerDescription) -> None:
        mixture: dict[str, Any] = {"experts": block.num, "chosen": block.chosen}
        self._linear([(layer, "mlp.router")], block.router, ROUTER, MLP_IN, unit=TILE)
        correction = self._keep(join(layer, "mlp.correction")) if block.correction else None
        groups, chosen_groups = block.groups or (0, 0)
        choice = {"groups": groups, "chosen_groups": chosen_groups, "scale": block.scale, "correction": correction}
        choice |= {"normalise": int(block.normalise), "sigmoid": int(block.scores == "sigmoid")}
        self._add(CHOOSE, from_=MLP_IN, to=GATHERED, **mixture, **choice)
        experts = [f"mlp.experts.{expert}" for expert in range(block.num)]
        self._mlp(layer, experts, block.expert, GATHERED, EXPERT, **mixture)
        shared = NO_SHARED
        if block.shared is not None:
            self._mlp(layer, ["mlp.shared"], block.shared, MLP_IN, STORE)
            shared = SHARED
        if block.shared_gate is not None:
            self._linear([(layer, "mlp.shared_gate")], block.shared_gate, SHARED_GATE, MLP_IN)
            shared = GATED_SHARED
        self._add(COMBINE, shared=shared, **mixture, **self._joins(description))

    def _mlp(
        self,
        layer: int,
        roles: list[str],
        block: MlpBlock,
        source: int,
        epilogue: int,
        scale: float = 1.0,
        **mixture: Any,
    ) -> None:
        inner: dict[str, Any] = {"to": MLP_INNER, **self._activation(layer, block), **mixture}
        ups, downs = ([(layer, f"{role}.{name}") for role in roles] for name in ("up", "down"))
        self._linear(ups, block.up, GATED if block.gated else ACTIVATED, source, **inner)
        self._linear(downs, block.down, epilogue, MLP_INNER, scale=scale, **mixture)

    def _activation(self, layer: int, block: MlpBlock) -> dict[str, Any]:
        """Find the activation and its numbers: given, or learned and brought into the form in which they are used."""
        if block.swiglu is not None:
            alpha, limit = block.swiglu
            return {"activation": SWIGLU, "act_a": alpha, "act_b": limit}
        found: dict[str, Any] = {"activation": ACTIVATIONS[block.activation]}
        if block.act_parameters:
            places = (self._keep(join(layer, f"mlp.act.{name}")) for name in block.act_parameters)
            positive, negative = (ctypes.c_float.from_address(place).value for place in places)
            alphas = torch.nn.functional.softplus(torch.tensor([positive, negative])).tolist()
            found |= {"act_a": alphas[0], "act_b": 0.5 + alphas[1]}
        return found

    def _linear(
        self, matrices: Sequence[Role], matrix: Projection, epilogue: int, source: int, unit: int = GROUP, **fields: Any
    ) -> None:
        """Add one matrix, or the same matrix of every expert."""
        biases = [self._keep(f"{join(*place)}.bias") for place in matrices] if matrix.bias else []
        if len(biases) > 1:
            fields["biases"] = self._array(biases)
        bias = biases[0] if len(biases) == 1 else None
        firsts, gates, outputs = list(first_rows(matrix, unit)), list[int](), matrix.outputs
        if epilogue == GATED:
            half, outputs = len(firsts) // 2, outputs // 2
            gates, firsts = firsts[:half], firsts[half:]
        op = self._add(
            LINEAR, epilogue=epilogue, from_=source, inputs=matrix.inputs, outputs=outputs, bias=bias, **fields
        )
        whole = matrix.role == "qkv"
        self._linears.append(Linear(op, matrices, matrix.parts, unit, firsts, gates, whole))

    def _array(self, addresses: list[int]) -> int:
        held = (ctypes.c_void_p * len(addresses))(*addresses)
        self._held.append(held)
        return ctypes.addressof(held)

    def _add(self, kind: int, **fields: Any) -> TmOp:
        op = TmOp(kind=kind, **{"scale": 1.0, **fields})
        self._ops.append(op)
        return op

    def _factors(self, path: str, norm: Norm) -> int:
        if not norm.weight:
            return self.weights.keep(SmallTensor(None, (norm.size,), 1.0))
        return self._keep(f"{path}.weight", 1.0 if norm.unit_offset else 0.0)

    def _keep(self, parameter: str, offset: float = 0.0, in_float32: bool = True) -> int:
        return self.weights.keep(SmallTensor(parameter, self._shapes[parameter], offset, in_float32))

    def _place(self) -> None:
        for linear, places in zip(self._linears, self.weights.place(self._linears), strict=True):
            op, units = linear.op, (TmUnit * len(linear.unit_rows))()
            elsewhere = next((Place(0, each.layout, 0, each.gate_layout) for each in places.values()), NOWHERE)
            for number, (unit, row) in enumerate(zip(units, linear.unit_rows, strict=True)):
                place = places.get(number, elsewhere)
                unit.data, unit.scheme = place.address, place.layout
                if linear.gates:
                    unit.gate, unit.gate_scheme = place.gate_address, place.gate_layout
                unit.first = row - linear.firsts[0]
                unit.count = min(linear.count, op.outputs - unit.first)
            op.units, op.num_units = units, len(units)  # op keeps units alive


class PositionTables:
    """The tables that the program looks up by position, in float32 whatever the model's dtype: cosines and sines of
    each rope, and the temperatures of queries, once for all layers that have the same. It owns their memory.
    """

    def __init__(self, decoder: DecoderDescription, num_positions: int) -> None:
        self._angles = dict[Any, tuple[Tensor, Tensor]]()
        self._temperatures = dict[Any, Tensor]()
        positions_T = torch.arange(num_positions)
        with torch_threads(1):  # torch's other threads would spin for a while, in the way of our own
            for rope in decoder.ropes:
                table, half = RotaryTable(rope, num_positions, torch.float32, torch.device("cpu")), rope.dim // 2
                self._angles[rope] = table.cos_PH[:, :half].contiguous(), table.sin_PH[:, :half].contiguous()
            for block in decoder.attentions:
                if block.temperature is not None:
                    self._temperatures[block.temperature] = temperatures(positions_T, *block.temperature).flatten()

    def fields(self, block: AttentionBlock) -> dict[str, Any]:
        """Make the fields of TmOp (native/abi.h) for the heads of a layer."""
        found: dict[str, Any] = {}
        if block.rope is not None:
            cosines, sines = self._angles[block.rope]
            found = {"rotary": 2 * cosines.shape[1], "cosines": cosines.data_ptr(), "sines": sines.data_ptr()}
        if block.temperature is not None:
            found["temperatures"] = self._temperatures[block.temperature].data_ptr()
        return found
