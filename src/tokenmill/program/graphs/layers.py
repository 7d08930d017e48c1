"""A decoder as launches of kernels, for one token of each sequence. It reads the weights of the PyTorch modules."""

from typing import Any

import torch
import triton
from torch import Tensor

from tokenmill.kernels.triton.arithmetic import INTERPRETED
from tokenmill.kernels.triton.attention import attend, merge
from tokenmill.model.decoder import Decoder
from tokenmill.model.description import LayerDescription, MlpBlock
from tokenmill.model.layers import ACTIVATIONS, clamped_swiglu, sigmoid
from tokenmill.model.mixers.attention import AttentionBlock
from tokenmill.model.mixers.latent import LatentBlock
from tokenmill.model.mixture import ExpertsBlock
from tokenmill.model.rope import RotaryTable
from tokenmill.program.graphs.latent import GraphLatent
from tokenmill.program.graphs.matrices import (
    NO_NORM,
    TRITON,
    Clamps,
    Experts,
    GraphMatrix,
    NormOf,
    add_experts,
    add_norm,
)
from tokenmill.program.graphs.rows import StepRows
from tokenmill.program.graphs.spec import SPLIT
from tokenmill.program.graphs.states import GraphState, multiply
from tokenmill.program.native.op_list import SIGMOID


def positions_of(width: int, dtype: torch.dtype) -> int:
    """Choose how many positions attention reads at a time: 16 KB of keys, or 8 KB of float32, whose products are made
    number by number and take more registers.
    """
    return max(16, min(64, (8192 if dtype == torch.float32 else 16384) // (width * dtype.itemsize)))


def warps_of(heads: int, width: int, dtype: torch.dtype) -> int:
    """Choose how many warps attend: the sums of many heads, or of wide ones, do not fit into the registers of four."""
    return 8 if heads * width * dtype.itemsize > 8192 else 4


class GraphAttention:
    def __init__(self, block: AttentionBlock, module: Any, table: RotaryTable | None, block_size: int) -> None:
        self.block, self.table, self.block_size = block, table, block_size
        self.qkv = GraphMatrix.of(module.qkv)
        self.out = GraphMatrix.of(module.out, block.out.multipliers)
        norms = [*block.qk_norms, None, None][:2]
        self.norms = [NormOf.of(norm, each) for norm, each in zip(norms, (module.q_norm, module.k_norm), strict=True)]
        self.over_all = bool(block.qk_norms) and not block.norms_heads
        self.has_own = self.over_all or any(norm.heads > 1 for norm in block.qk_norms)
        self.sinks = None if module.sinks is None else module.sinks.detach()
        self.heads = max(16, triton.next_power_of_2(block.num_heads // block.num_kv_heads))
        self.width = max(16, triton.next_power_of_2(block.head_dim))

    def __call__(self, x_BD: Tensor, norm: NormOf | None, cached: tuple[Tensor, ...], rows: StepRows) -> Tensor:
        """Write the new rows of K and V into the cache; return the attention of each row, [B, N · H]."""
        block = self.block
        gqkv = self.qkv(x_BD, x_BD.new_empty((len(x_BD), self.qkv.num_outputs), dtype=torch.float32), norm)
        qkv = gqkv[:, -(block.num_heads + 2 * block.num_kv_heads) * block.head_dim :]
        out = rows.results(x_BD, block.num_heads * block.head_dim)
        for which, own in rows.turns():
            self._attend(qkv[which], out[which], cached, own)
        if gqkv.shape != qkv.shape:
            multiply(out, gqkv[:, : out.shape[1]], out, SIGMOID, block.num_heads)
        return out

    def _attend(self, qkv: Tensor, out: Tensor, cached: tuple[Tensor, ...], rows: StepRows) -> None:
        block, count, splits = self.block, len(qkv), rows.num_splits
        maxima, sums, values = rows.of_splits(block.num_heads, block.head_dim) if splits > 1 else (qkv, qkv, qkv)
        cos, sin = (qkv, qkv) if self.table is None else (self.table.cos_PH, self.table.sin_PH)
        q_norm, k_norm = self.norms
        biases = (qkv if norm is None or norm.bias is None else norm.bias for norm in self.norms)
        shared = {
            "NUM_HEADS": block.num_heads, "NUM_KV_HEADS": block.num_kv_heads, "HEAD_DIM": block.head_dim,
            "WINDOW": block.shape.window or 0, "SINKS": self.sinks is not None, "NUM_SPLITS": splits, "SPLIT": SPLIT,
            "HEADS": self.heads, "WIDTH": self.width, "T": TRITON[out.dtype], "INTERPRETED": INTERPRETED,
        }  # fmt: skip
        sinks = qkv if self.sinks is None else self.sinks
        attend[(count, block.num_kv_heads, splits)](
            qkv, *(cached * 2)[:4], rows.tables_BM, rows.positions_B, cos, sin, q_norm.weight if q_norm else qkv,
            k_norm.weight if k_norm else qkv, *biases, sinks, out, maxima, sums, values, qkv.stride(0),
            rows.tables_BM.stride(0), out.stride(0), cos.stride(0), q_norm.eps if q_norm else 0.0,
            k_norm.eps if k_norm else 0.0,
            block.shape.scale, block.shape.softcap or 1.0,
            ROPE_DIM=0 if self.table is None else cos.shape[1], Q_NORM=1 + self.over_all if q_norm else 0,
            K_NORM=1 + self.over_all if k_norm else 0, OWN=self.has_own, **(q_norm.kind if q_norm else NO_NORM),
            CAPPED=block.shape.softcap is not None,
            BLOCK=self.block_size, POSITIONS=positions_of(self.width, out.dtype), INT8=len(cached) > 2,
            num_warps=warps_of(self.heads, self.width, out.dtype), **shared,
        )  # fmt: skip
        if splits > 1:
            merge[(count, block.num_kv_heads)](
                rows.positions_B, sinks, out, maxima, sums, values, out.stride(0), **shared
            )


def hidden(
    up: GraphMatrix, block: MlpBlock, x_BD: Tensor, norm: NormOf | None, experts: Experts | None = None
) -> Tensor:
    """Compute act(gate(norm(x))) · up(norm(x)), or without a gate, of each row or each pair of a row and an expert."""
    clamps = None if block.swiglu is None else Clamps(*block.swiglu)
    count, width = len(x_BD) if experts is None else experts.chosen_BC.numel(), block.down.inputs
    if not up.splits_gates:
        made = x_BD.new_empty((count, width))
        return up(x_BD, made, norm, block.activation, clamps=clamps, experts=experts)
    parts = up(x_BD, x_BD.new_empty((count, 2 * width)), norm, experts=experts)
    gates, factors = parts[:, :width], parts[:, width:]
    return ACTIVATIONS[block.activation](gates) * factors if clamps is None else clamped_swiglu(gates, factors, *clamps)


class GraphMlp:
    """down(act(gate(norm(x))) · up(norm(x))), or without a gate."""

    def __init__(self, block: MlpBlock, module: Any) -> None:
        self.block = block
        self.up = GraphMatrix.of(module.up, block.up.multipliers, block.gated)
        self.down = GraphMatrix.of(module.down, block.down.multipliers)

    def __call__(self, x_BD: Tensor, norm: NormOf | None, out_BD: Tensor, adds: float | None) -> None:
        self.down(hidden(self.up, self.block, x_BD, norm), out_BD, adds=adds)


class GraphExperts:
    """The chosen experts of each row by their numbers, and the shared one. module: chooses them."""

    def __init__(self, block: ExpertsBlock, module: Any) -> None:
        self.block, self.choose, expert = block, module.choose, block.expert
        self.router = GraphMatrix.of(module.router)
        ups, downs = ([getattr(each, name) for each in module.experts] for name in ("up", "down"))
        self.up = GraphMatrix.of_experts(ups, expert.up.multipliers, expert.gated)
        self.down = GraphMatrix.of_experts(downs, expert.down.multipliers, False)
        self.shared = None if block.shared is None else GraphMlp(block.shared, module.shared)
        self.shared_gate = None if module.shared_gate is None else GraphMatrix.of(module.shared_gate)

    def __call__(self, x_BD: Tensor, norm: NormOf | None, out_BD: Tensor, adds: float | None) -> None:
        count = len(x_BD)
        logits = self.router(x_BD, x_BD.new_empty((count, self.block.num), dtype=torch.float32), norm)
        weights_BC, chosen_BC = self.choose(logits)
        chosen_BC, order = chosen_BC.sort(dim=1)  # sums run in the order of the experts' numbers
        chosen_BC = chosen_BC.contiguous()
        made = hidden(self.up, self.block.expert, x_BD, norm, Experts(chosen_BC, False))
        parts = x_BD.new_empty((chosen_BC.numel(), out_BD.shape[1]), dtype=torch.float32)
        self.down(made, parts, experts=Experts(chosen_BC, True))
        shared_BD = None
        if self.shared is not None:  # before the sum is written: it may be added to x itself
            shared_BD = torch.empty_like(x_BD)
            self.shared(x_BD, norm, shared_BD, None)
            if self.shared_gate is not None:
                gate = self.shared_gate(x_BD, x_BD.new_empty((count, 1), dtype=torch.float32), norm)
                shared_BD = (shared_BD * sigmoid(gate)).to(x_BD.dtype)
        add_experts(parts, weights_BC.gather(1, order).float(), out_BD, adds)
        if shared_BD is not None:
            out_BD += shared_BD if adds in (None, 1.0) else shared_BD * adds


class GraphLayer:
    """x + multiplier * after(mixer(before(x))), then the same with the MLP, or both of one x; one of the two may be
    missing.
    """

    def __init__(self, description: LayerDescription, module: Any, table: RotaryTable | None, block_size: int) -> None:
        (block,) = description.mixers
        names = ("attention_norm", "attention_after_norm", "mlp_norm", "mlp_after_norm")
        norms = (NormOf.of(description.norms.get(name), getattr(module, name)) for name in names)
        self.before, self.after, self.mlp_before, self.mlp_after = norms
        self.mlp_before = self.before if description.shared_norm else self.mlp_before
        self.mixer: GraphAttention | GraphLatent | GraphState | None = None
        if isinstance(block, AttentionBlock):
            self.mixer = GraphAttention(block, module.attention, table, block_size)
        elif isinstance(block, LatentBlock):
            self.mixer = GraphLatent(block, module.latent, table, block_size)
        elif description.mixes:
            self.mixer = GraphState(block, getattr(module, block.name))
        make = GraphExperts if isinstance(description.mlp, ExpertsBlock) else GraphMlp
        self.mlp = None if description.mlp is None else make(description.mlp, module.mlp)
        self.multiplier, self.is_parallel = description.multiplier, description.parallel

    def __call__(self, x_BD: Tensor, cached: tuple[Tensor, ...], rows: StepRows) -> None:
        """Bring x from the layer's input to its output, in place."""
        mixed = None if self.mixer is None else self.mixer(x_BD, self.before, cached, rows)
        if self.is_parallel:  # the mixer has read x, and the MLP reads it before it adds to it
            self._add_mlp(x_BD)
        if self.mixer is not None and mixed is not None:
            if self.after is None:
                self.mixer.out(mixed, x_BD, adds=self.multiplier)
            else:
                add_norm(self.mixer.out(mixed, torch.empty_like(x_BD)), x_BD, self.after, self.multiplier)
        if not self.is_parallel:
            self._add_mlp(x_BD)

    def _add_mlp(self, x_BD: Tensor) -> None:
        if self.mlp is None:
            return
        if self.mlp_after is None:
            self.mlp(x_BD, self.mlp_before, x_BD, self.multiplier)
        else:
            made = torch.empty_like(x_BD)
            self.mlp(x_BD, self.mlp_before, made, None)
            add_norm(made, x_BD, self.mlp_after, self.multiplier)


class GraphDecoder:
    """The whole decoder."""

    def __init__(self, decoder: Decoder, block_size: int) -> None:
        self.config, whole = decoder.config, decoder.description
        self.embedding, self.position_embedding, self.multiplier = decoder.embedding, decoder.position_embedding, 1.0
        if self.config.embedding_multiplier != 1.0:  # as a number of Python: a tensor cannot be made in a graph
            weight = decoder.embedding.weight
            self.multiplier = torch.tensor(self.config.embedding_multiplier, dtype=weight.dtype).item()
        tables = [*decoder.rotary, None]
        layers = zip(whole.layers, decoder.layers, decoder.rope_numbers, strict=True)
        self.layers = [GraphLayer(layer, module, tables[number], block_size) for layer, module, number in layers]
        self.norm = NormOf.of(whole.norm, decoder.norm)
        head = decoder.embedding if decoder.head is None else decoder.head
        self.head = GraphMatrix.of(head, (self.config.logit_multiplier,))

    def __call__(
        self, token_ids_B: Tensor, cache: list[tuple[Tensor, ...]], rows: StepRows, num_logits: int | None = None
    ) -> Tensor:
        """Compute the logits of each row, or of so many of the last rows, [B, V] float32."""
        x_BD = self.embedding(token_ids_B)
        x_BD = x_BD if self.multiplier == 1.0 else x_BD * self.multiplier
        if self.position_embedding is not None:
            x_BD = x_BD + self.position_embedding(rows.positions_B + self.config.first_position)
        for layer, cached in zip(self.layers, cache, strict=True):
            layer(x_BD, cached, rows)
        if num_logits is not None:
            x_BD = x_BD[len(x_BD) - num_logits :]
        logits_BV = x_BD.new_empty((len(x_BD), self.config.vocab_size), dtype=torch.float32)
        if len(x_BD):
            self.head(x_BD, logits_BV, self.norm)
        cap = self.config.logit_softcap
        return logits_BV if cap is None else torch.tanh(logits_BV / cap) * cap
