"""A decoder's description as the flat list of operations that the native program runs: embed, then per layer norm,
qkv, attend, out, norm, MLP, at last norm and head. Families differ in what is in the list, not in C++.

A parallel layer norms for both its halves before either adds to the residual stream.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from tokenmill.cache.formats.layer import LayerKV
from tokenmill.kernels.native_structs import Op, Unit
from tokenmill.model.decoder import Decoder, Layer
from tokenmill.model.description import (
    AttentionBlock,
    ExpertsBlock,
    MlpBlock,
    Norm,
    Projection,
)
from tokenmill.model.layers import MLP, MoE
from tokenmill.program.native.layouts import KV_FIELDS, LAYOUTS, TILE
from tokenmill.program.native.spec import ACTIVATIONS, first_rows
from tokenmill.program.native.weights import Linear, Packed, Packing
from tokenmill.quant.matrix import Matrix
from tokenmill.quant.schemes import GROUP

__all__ = ["Ops"]

# As in abi.h.
EMBED, NORM, LINEAR, ATTEND, CHOOSE, COMBINE = range(6)
ADD, QKV, GATED, ACTIVATED, LOGITS, ROUTER, EXPERT = range(7)
ATTENTION_IN, MLP_IN, MLP_INNER, ATTENDED, GATHERED = range(5)  # activation buffers; the head reads MLP_IN too


class Ops:
    """The list. The decoder's description says what there is to do, its modules hold tensors, `weights` places them.

    array: the list as C has it; this object keeps alive what it points to.
    """

    def __init__(self, decoder: Decoder, layers_kv: list[LayerKV], weights: Packing | Packed) -> None:
        self.decoder, self.layers_kv, self.weights = decoder, layers_kv, weights
        self._ops, self._linears = list[Op](), list[Linear]()
        whole, table, learned = decoder.description, decoder.embedding.weight, decoder.position_embedding
        positions = None if learned is None else weights.keep(learned.weight)
        number = LAYOUTS[str(table.dtype).removeprefix("torch.")]
        width, size = whole.head.inputs, whole.head.outputs
        embed = self._add(EMBED, inputs=width, outputs=size, positions=positions, scheme=number)
        is_tied = whole.config.tie_embeddings
        if not decoder.has_coded_embedding:
            embed.table = weights.keep(table)
        elif not is_tied:
            units = list(range(0, size, GROUP))
            self._linears.append(Linear(embed, [decoder.embedding], None, GROUP, units, [], whole=False))
        for layer, layer_kv in zip(decoder.layers, layers_kv, strict=True):
            assert isinstance(layer, Layer)
            self._layer(layer, layer_kv)
        self._norm(decoder.norm, whole.norm, MLP_IN, LOGITS)
        heads = [] if decoder.head is None else [decoder.head]
        self._linear(heads, whole.head, LOGITS, MLP_IN, softcap=whole.config.logit_softcap or 0.0)
        self._place()
        if decoder.has_coded_embedding and is_tied:
            head = self._linears[-1].op
            embed.units, embed.num_units = head.units, head.num_units
        self.array = (Op * len(self._ops))(*self._ops)

    def _layer(self, layer: Layer, layer_kv: LayerKV) -> None:
        description = layer.description
        before, parallel = description.before, description.parallel
        assert before is not None, "refused"
        self._norm(layer.attention_norm, before, ATTENTION_IN)
        if parallel:
            self._norm(layer.mlp_norm, before, MLP_IN)
        self._attention(layer.attention, description.attention, layer_kv)
        if not parallel:
            self._norm(layer.mlp_norm, before, MLP_IN)
        module: Any = layer.mlp
        if isinstance(description.mlp, ExpertsBlock):
            self._experts(module, description.mlp)
        else:
            self._mlp([module], description.mlp, MLP_IN, ADD)

    def _norm(self, module: Any, norm: Norm, to: int, epilogue: int = 0) -> None:
        weight, bias = self._factors(module, norm), self._floats(module.bias) if norm.bias else None
        centred = int(norm.kind == "layer")
        self._add(NORM, to=to, epilogue=epilogue, weight=weight, bias=bias, eps=norm.eps, centred=centred)

    def _attention(self, module: Any, block: AttentionBlock, layer_kv: LayerKV) -> None:
        tensors = zip((KV_FIELDS[kind] for kind in layer_kv.kinds), layer_kv.tensors, strict=True)
        cache: dict[str, Any] = {name: tensor.data_ptr() for name, tensor in tensors}
        cache |= {"num_kv_heads": block.num_kv_heads, "head_dim": block.head_dim}
        norms: dict[str, Any] = {}
        for name, norm in zip(("q_norm", "k_norm"), block.qk_norms, strict=False):
            norms |= {name: self._factors(getattr(module, name), norm), "eps": norm.eps}
        self._linear([module.qkv], block.qkv, QKV, ATTENTION_IN, unit=block.head_dim, **cache, **norms)
        shape = block.shape
        softcap = shape.softcap or 0.0
        self._add(ATTEND, to=ATTENDED, scale=shape.scale, softcap=softcap, window=shape.window or 0, **cache)
        self._linear([module.out], block.out, ADD, ATTENDED)

    def _experts(self, module: MoE, block: ExpertsBlock) -> None:
        mixture: dict[str, Any] = {"experts": block.num, "chosen": block.chosen}
        self._linear([module.router], block.router, ROUTER, MLP_IN, unit=TILE)
        self._add(CHOOSE, from_=MLP_IN, to=GATHERED, normalise=int(block.normalise), **mixture)
        mlps = [expert for expert in module.experts if isinstance(expert, MLP)]
        self._mlp(mlps, block.expert, GATHERED, EXPERT, **mixture)
        self._add(COMBINE, **mixture)

    def _mlp(self, modules: Sequence[MLP], block: MlpBlock, source: int, epilogue: int, **mixture: Any) -> None:
        inner: dict[str, Any] = {"to": MLP_INNER, "activation": ACTIVATIONS[block.activation], **mixture}
        self._linear([mlp.up for mlp in modules], block.up, GATED if block.gated else ACTIVATED, source, **inner)
        self._linear([mlp.down for mlp in modules], block.down, epilogue, MLP_INNER, **mixture)

    def _linear(
        self, modules: list[Matrix], matrix: Projection, epilogue: int, source: int, unit: int = GROUP, **fields: Any
    ) -> None:
        """One matrix, or the same one of every expert; no module where it is the embedding."""
        biases = [module.bias for module in modules if module.bias is not None]
        assert len(biases) < 2, "refused: experts with biases"
        bias = self._floats(biases[0]) if biases else None
        firsts, gates, outputs = list(first_rows(matrix, unit)), list[int](), matrix.outputs
        if epilogue == GATED:
            half, outputs = len(firsts) // 2, outputs // 2
            gates, firsts = firsts[:half], firsts[half:]
        op = self._add(
            LINEAR, epilogue=epilogue, from_=source, inputs=matrix.inputs, outputs=outputs, bias=bias, **fields
        )
        tied = None if modules else self.decoder.embedding.weight
        self._linears.append(Linear(op, modules, tied, unit, firsts, gates, whole=epilogue == QKV))

    def _add(self, kind: int, **fields: Any) -> Op:
        op = Op(kind=kind, **fields)
        self._ops.append(op)
        return op

    def _factors(self, module: Any, norm: Norm) -> int:
        """What a norm multiplies by."""
        return self._floats(1.0 + module.weight.float() if norm.unit_offset else module.weight)

    def _floats(self, tensor: Tensor) -> int:
        return self.weights.keep(tensor.detach().float().clone())

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
