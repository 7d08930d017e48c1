"""The module of attention."""

from collections.abc import Collection

import torch
from torch import Tensor, nn

from tokenmill.cache.formats.layer import LayerKV
from tokenmill.cache.step import Step
from tokenmill.kernels.attend.kernel import Attend
from tokenmill.model.layers import make_linear, make_norm, sigmoid
from tokenmill.model.mixers.attention import AttentionBlock
from tokenmill.model.rope import Angles, apply_rotary, apply_rotary_in_halves
from tokenmill.quant.schemes import Scheme


def temperatures(positions_T: Tensor, beta: float, length: int, offset: int = 0) -> Tensor:
    """Compute the factors of each token's queries, [T, 1, 1], which grow with the logarithm of the position."""
    return (1 + beta * torch.log(1 + torch.floor((positions_T + offset) / length)))[:, None, None]


class Attention(nn.Module):
    """Self-attention: project, norm and rotate, hand over to the kernel, project back.

    Multi-head, grouped-query and multi-query attention are this code with another number of kv heads. The cache is
    never seen here: `attend`, a kernel of kernels/attend, writes and reads it.
    """

    def __init__(self, block: AttentionBlock, scheme: Scheme, fused: Collection[str]) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads = block.num_heads, block.num_kv_heads
        self.head_dim, self.value_dim = block.head_dim, block.value_dim
        self.qkv = make_linear(block.qkv, scheme, fused)
        self.out = make_linear(block.out, scheme, fused)
        self.q_norm, self.k_norm = (make_norm(norm, fused) for norm in (*block.qk_norms, None, None)[:2])
        self.v_norm, self.reads_others = make_norm(block.value_norm, fused), block.source is not None
        self.norms_heads, self.norms_after_rope = block.norms_heads, block.norms_after_rope
        self.sinks = nn.Parameter(torch.empty(block.num_heads)) if block.shape.sinks else None
        self.num_gates = block.num_heads if block.gated else 0
        self.shape, self.temperature = block.shape, block.temperature
        self.rotate = apply_rotary_in_halves if "rotary" in fused else apply_rotary

    def forward(self, x_TD: Tensor, angles: Angles | None, layer_kv: LayerKV, step: Step, attend: Attend) -> Tensor:
        return self.out(self.attended(x_TD, angles, layer_kv, step, attend).flatten(1))  # type: ignore[no-any-return]

    def attended(self, x_TD: Tensor, angles: Angles | None, layer_kv: LayerKV, step: Step, attend: Attend) -> Tensor:
        """Compute the results of all heads, [T, N, H]."""
        heads, kv_heads, products_TF = self.num_heads, self.num_kv_heads, self.qkv(x_TD)
        count = self.num_gates + heads + (0 if self.reads_others else kv_heads)
        gqk_TNH = products_TF[:, : count * self.head_dim].unflatten(1, (count, self.head_dim))
        qk_TNH, values = gqk_TNH[:, self.num_gates :], kv_heads * self.value_dim
        v_TKH = products_TF[:, -values:].unflatten(1, (kv_heads, -1))  # the keys where there are no others
        if self.q_norm is None and angles is not None:
            qk_TNH = self.rotate(qk_TNH, *angles)
        q_TNH, k_TKH = qk_TNH[:, :heads], qk_TNH[:, heads:]
        if self.q_norm is not None:
            q_TNH = self._turned(self.q_norm, q_TNH, angles)
            k_TKH = k_TKH if self.k_norm is None else self._turned(self.k_norm, k_TKH, angles)
        if self.temperature is not None:
            q_TNH = q_TNH * temperatures(step.positions_T, *self.temperature).to(q_TNH.dtype)
        v_TKH = v_TKH if self.v_norm is None else self.v_norm(v_TKH)
        if self.reads_others:
            out_TNH = attend.attend(q_TNH, layer_kv, step, self.shape, self.sinks)
        else:
            out_TNH = attend(q_TNH, k_TKH, v_TKH, layer_kv, step, self.shape, self.sinks)
        if self.num_gates:
            out_TNH = out_TNH * sigmoid(gqk_TNH[:, : self.num_gates])
        return out_TNH

    def _turned(self, norm: nn.Module, x_TNH: Tensor, angles: Angles | None) -> Tensor:
        """Norm and rotate heads, in the model's order."""
        first_TNH = x_TNH if self.norms_after_rope else self._normed(norm, x_TNH)
        turned_TNH = first_TNH if angles is None else self.rotate(first_TNH, *angles)
        return self._normed(norm, turned_TNH) if self.norms_after_rope else turned_TNH

    def _normed(self, norm: nn.Module, x_TNH: Tensor) -> Tensor:
        # Each head by itself, or all heads of a token as one row.
        normed: Tensor = norm(x_TNH) if self.norms_heads else norm(x_TNH.flatten(1)).view(x_TNH.shape)
        return normed
