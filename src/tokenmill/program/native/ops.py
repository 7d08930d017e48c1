"""A decoder as the flat list of operations that the native program runs: embed, then per layer norm, qkv, attend, out,
norm, MLP, at last norm and head. Families differ in what is in the list, not in C++.

A parallel layer norms for both its halves before either adds to the residual stream.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tokenmill.cache.formats import LayerKV
from tokenmill.model.attention import Attention
from tokenmill.model.config import ModelConfig
from tokenmill.model.decoder import Decoder, Layer
from tokenmill.model.layers import MLP
from tokenmill.model.moe import MoE
from tokenmill.model.parameters import count_parameters, matrices
from tokenmill.program.native.abi import Op, Unit, library
from tokenmill.program.native.pack import LAYOUTS, TILE
from tokenmill.program.native.weights import Linear, Weights
from tokenmill.quant.schemes import Matrix, Scheme
from tokenmill.quant.stored import GROUP

__all__ = ["ACTIVATIONS", "Ops", "packed_bytes"]

# As in abi.h.
EMBED, NORM, LINEAR, ATTEND, CHOOSE, COMBINE = range(6)
ADD, QKV, GATED, ACTIVATED, LOGITS, ROUTER, PART = range(7)
ATTENTION_IN, MLP_IN, MLP_INNER, ATTENDED, GATHERED = range(5)  # activation buffers; the head reads MLP_IN too
ACTIVATIONS = {
    "silu": 1,
    "swish": 1,
    "gelu": 2,
    "gelu_fast": 3,
    "gelu_new": 3,
    "gelu_pytorch_tanh": 3,
    "relu": 4,
}


@dataclass
class Ops:
    """The list. Of the decoder it is told what there is; `weights` say where it lies."""

    decoder: Decoder
    layers_kv: list[LayerKV]
    weights: Weights
    ops: list[Op] = field(default_factory=list)
    _units: list[Any] = field(default_factory=list)
    _linears: list[Linear] = field(default_factory=list)

    def __post_init__(self) -> None:
        config = self.decoder.config
        table, learned = self.decoder.embedding.weight, self.decoder.position_embedding
        positions = None if learned is None else self.weights.keep(learned.weight)
        number = LAYOUTS[str(table.dtype).removeprefix("torch.")]
        self._add(EMBED, table=self.weights.keep(table), positions=positions, scheme=number)
        for layer, layer_kv in zip(self.decoder.layers, self.layers_kv, strict=True):
            assert isinstance(layer, Layer)
            self._norm(layer.attention_norm, ATTENTION_IN)
            if config.residual == "parallel":
                self._norm(layer.mlp_norm, MLP_IN)
            self._attention(layer.attention, layer_kv, config)
            if config.residual != "parallel":
                self._norm(layer.mlp_norm, MLP_IN)
            if isinstance(layer.mlp, MoE):
                self._experts(layer.mlp, config)
            else:
                self._mlp([layer.mlp], config, MLP_IN, ADD)
        self._norm(self.decoder.norm, MLP_IN, LOGITS)
        self._head(config)
        self._place()

    def array(self) -> Any:
        """The list as C has it; this object keeps alive what it points to."""
        return (Op * len(self.ops))(*self.ops)

    # ---- one method per operation

    def _norm(self, norm: Any, to: int, epilogue: int = 0) -> None:
        bias = getattr(norm, "bias", None)
        self._add(
            NORM,
            to=to,
            epilogue=epilogue,
            weight=self._floats(norm.weight),
            bias=None if bias is None else self._floats(bias),
            eps=norm.eps,
            centred=int(bias is not None),
        )

    def _attention(self, attention: Attention, layer_kv: LayerKV, config: ModelConfig) -> None:
        heads, dim = config.num_heads + 2 * config.num_kv_heads, config.head_dim
        tensors = zip(layer_kv.native_fields, layer_kv.tensors, strict=True)
        cache: dict[str, Any] = {name: tensor.data_ptr() for name, tensor in tensors}
        norms: dict[str, Any] = {}
        if attention.q_norm is not None and attention.k_norm is not None:
            norms = {"q_norm": self._floats(attention.q_norm.weight), "k_norm": self._floats(attention.k_norm.weight)}
            norms["eps"] = attention.q_norm.eps
        firsts = range(0, heads * dim, dim)
        self._linear([attention.qkv], QKV, ATTENTION_IN, config.hidden_size, heads * dim, dim, firsts, **cache, **norms)
        shape = attention.shape
        softcap = shape.softcap or 0.0
        self._add(ATTEND, to=ATTENDED, scale=shape.scale, softcap=softcap, window=shape.window or 0, **cache)
        wide, hidden = config.num_heads * dim, config.hidden_size
        self._linear([attention.out], ADD, ATTENDED, wide, hidden, GROUP, range(0, hidden, GROUP))

    def _experts(self, moe: MoE, config: ModelConfig) -> None:
        experts = config.num_experts
        mixture: dict[str, Any] = {"experts": experts, "chosen": config.num_experts_per_token}
        self._linear([moe.router], ROUTER, MLP_IN, config.hidden_size, experts, TILE, range(0, experts, TILE))
        self._add(CHOOSE, from_=MLP_IN, to=GATHERED, normalise=int(moe.norm_top_k), **mixture)
        mlps = [expert for expert in moe.experts if isinstance(expert, MLP)]
        self._mlp(mlps, config, GATHERED, PART, **mixture)
        self._add(COMBINE, **mixture)

    def _mlp(self, mlps: Sequence[MLP], config: ModelConfig, source: int, epilogue: int, **mixture: Any) -> None:
        wide, hidden = config.intermediate_size, config.hidden_size
        inner: dict[str, Any] = {"to": MLP_INNER, "activation": ACTIVATIONS[config.activation], **mixture}
        columns = range(0, wide, GROUP)
        if config.gated_mlp:
            ups = [wide + column for column in columns]
            self._linear([m.up for m in mlps], GATED, source, hidden, wide, GROUP, ups, gates=columns, **inner)
        else:
            self._linear([m.up for m in mlps], ACTIVATED, source, hidden, wide, GROUP, columns, **inner)
        rows = range(0, hidden, GROUP)
        self._linear([m.down for m in mlps], epilogue, MLP_INNER, wide, hidden, GROUP, rows, **mixture)

    def _head(self, config: ModelConfig) -> None:
        softcap = config.logit_softcap or 0.0
        firsts = range(0, config.vocab_size, GROUP)
        heads = [] if self.decoder.head is None else [self.decoder.head]
        self._linear(heads, LOGITS, MLP_IN, config.hidden_size, config.vocab_size, GROUP, firsts, softcap=softcap)

    def _linear(
        self,
        matrices: list[Matrix],
        epilogue: int,
        source: int,
        inputs: int,
        outputs: int,
        count: int,
        firsts: Iterable[int],
        gates: Iterable[int] = (),
        **fields: Any,
    ) -> None:
        biases = [matrix.bias for matrix in matrices if matrix.bias is not None]
        assert len(biases) < 2, "refused: experts with biases"
        bias = self._floats(biases[0]) if biases else None
        op = self._add(LINEAR, epilogue=epilogue, from_=source, inputs=inputs, outputs=outputs, bias=bias, **fields)
        tied = None if matrices else self.decoder.embedding.weight
        self._linears.append(Linear(op, matrices, tied, count, list(firsts), list(gates), whole=epilogue == QKV))

    # ---- what pointers point to

    def _add(self, kind: int, **fields: Any) -> Op:
        op = Op(kind=kind, **fields)
        self.ops.append(op)
        return op

    def _floats(self, tensor: Tensor) -> int:
        return self.weights.keep(tensor.detach().float().clone())

    def _place(self) -> None:
        for linear, placed in zip(self._linears, self.weights.place(self._linears), strict=True):
            op = linear.op
            data = [unit for run in placed.data for unit in run.units()]
            gates: Sequence[tuple[int | None, int]] = [unit for run in placed.gates for unit in run.units()]
            units = (Unit * len(data))()
            firsts = linear.firsts * max(1, len(linear.matrices))
            for unit, here, gate, first in zip(units, data, gates or [(None, 0)] * len(data), firsts, strict=True):
                (unit.data, unit.scheme), (unit.gate, unit.gate_scheme) = here, gate
                unit.first = first - linear.firsts[0]
                unit.count = min(linear.count, op.outputs - unit.first)
            op.units, op.num_units = units, len(units)
            self._units.append(units)


def packed_bytes(model: ModelConfig, dtype: torch.dtype, scheme: Scheme) -> int:
    """What the weights will take, by arithmetic: whole tiles, embeddings as they are, small parameters in float32.

    An estimate where the codes of a checkpoint are kept: its tensors may have several kinds.
    """
    layout = scheme.native_layout(dtype)
    assert layout is not None, "other schemes are refused"
    tiles = {
        "router": -(-model.num_experts // TILE),
        "qkv": (model.num_heads + 2 * model.num_kv_heads) * -(-model.head_dim // TILE),
        "up": (1 + model.gated_mlp) * -(-model.intermediate_size // GROUP) * GROUP // TILE,
    }
    packed = numbers = 0
    for role, outputs, inputs, count in matrices(model):
        tile = int(library().tm_tile_bytes(LAYOUTS[layout], inputs))
        packed += count * tile * tiles.get(role, -(-outputs // GROUP) * GROUP // TILE)
        numbers += count * outputs * inputs
    if scheme.keeps_codes and model.code_bits:
        packed = int(numbers * model.code_bits / 8)
    parts = count_parameters(model)
    tables = parts["embedding"] + parts["positions"]
    tied = model.vocab_size * model.hidden_size if model.tie_embeddings else 0
    return packed + tables * dtype.itemsize + 4 * (sum(parts.values()) + tied - numbers - tables)
