"""The modules of a layer: embeddings, norms, activations, matrices, attention, MLP, mixture of experts; neighbouring
operations are fused.

Every module is handed the names of what is fused in it, so that what each gains can be measured:

    qkv      one matrix product for Q, K and V, or three; only plain matrices can be multiplied apart
    gate_up  one for gate and up, or two; the same holds
    norm     torch's rms_norm, or its steps written out, which round as the Llama reference does
    rotary   the halves of a head rotated one after the other, or a swapped copy put together first; the same bits
"""

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tokenmill.cache.formats.layer import LayerKV
from tokenmill.cache.step import AnyStep
from tokenmill.errors import CheckpointError
from tokenmill.kernels.attend.kernel import Attend
from tokenmill.model.description import AttentionBlock, ExpertsBlock, MlpBlock, Norm, Projection
from tokenmill.model.rope import Angles, apply_rotary, apply_rotary_in_halves
from tokenmill.quant.dense import is_traced, product
from tokenmill.quant.matrix import Matrix, make_matrix
from tokenmill.quant.schemes import Scheme

_gelu_tanh = partial(F.gelu, approximate="tanh")
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_fast": _gelu_tanh,
    "gelu_new": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
    "relu": F.relu,
    "silu": F.silu,
    "swish": F.silu,
}


class Embedding(nn.Embedding):
    """torch's, without numbers of its own."""

    weight: nn.Parameter

    def reset_parameters(self) -> None:
        """Nothing. Random numbers on the meta device import torch's reference library: 1 s and 78 MB at every start."""


class RMSNorm(nn.RMSNorm):
    """x / rms(x) · weight over the last dimension (Zhang & Sennrich 2019, arXiv 1910.07467).

    In float32, rounded to x's dtype before the weight, as the Llama reference does: in bfloat16 the order of the two
    shows in the tokens. With a unit offset it is rounded after the weight, as the Gemma reference does.
    """

    eps: float

    def __init__(self, norm: Norm, fused: bool) -> None:
        super().__init__(norm.size, norm.eps)
        self.unit_offset = norm.unit_offset
        self.fused = fused and not norm.unit_offset

    def forward(self, x: Tensor) -> Tensor:
        if self.fused:
            return super().forward(x)
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        if self.unit_offset:
            return (wide * (1.0 + self.weight.float())).to(x.dtype)
        return self.weight * wide.to(x.dtype)


def make_norm(norm: Norm | None, fused: Collection[str]) -> Any:
    """The module of a norm, or None where there is none."""
    if norm is None:
        return None
    return RMSNorm(norm, "norm" in fused) if norm.kind == "rms" else nn.LayerNorm(norm.size, norm.eps, bias=norm.bias)


class Unfused(Matrix):
    """A plain matrix whose parts are multiplied one after the other."""

    def __init__(self, projection: Projection) -> None:
        super().__init__(projection.inputs, projection.outputs, projection.bias)
        self.sizes = list(projection.parts)

    def forward(self, x_TD: Tensor) -> Tensor:
        assert self.weight is not None, "plain matrices keep theirs"
        weights = torch.split(self.weight, self.sizes)
        biases = [None] * len(weights) if self.bias is None else torch.split(self.bias, self.sizes)
        return torch.cat([product(x_TD, *part) for part in zip(weights, biases, strict=True)], dim=-1)


def make_linear(matrix: Projection, scheme: Scheme, fused: Collection[str]) -> Matrix:
    """The module of a matrix, in one product or in as many as it has parts."""
    if len(matrix.parts) > 1 and matrix.role not in fused:
        return Unfused(matrix)
    return make_matrix(scheme, matrix.inputs, matrix.outputs, matrix.bias)


class Attention(nn.Module):
    """Self-attention: project, norm and rotate, hand over to the kernel, project back.

    Multi-head, grouped-query and multi-query attention are this code with another number of kv heads. The cache is
    never seen here: `attend`, a kernel of kernels/attend, writes and reads it.
    """

    def __init__(self, block: AttentionBlock, scheme: Scheme, fused: Collection[str]) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim = block.num_heads, block.num_kv_heads, block.head_dim
        self.qkv = make_linear(block.qkv, scheme, fused)
        self.out = make_linear(block.out, scheme, fused)
        self.q_norm, self.k_norm = (make_norm(norm, fused) for norm in block.qk_norms or (None, None))
        self.norms_heads = bool(block.qk_norms) and block.qk_norms[0].size == block.head_dim
        self.sinks = nn.Parameter(torch.empty(block.num_heads)) if block.shape.sinks else None
        self.shape = block.shape
        self.rotate = apply_rotary_in_halves if "rotary" in fused else apply_rotary

    def forward(self, x_TD: Tensor, angles: Angles | None, layer_kv: LayerKV, step: AnyStep, attend: Attend) -> Tensor:
        heads, kv_heads = self.num_heads, self.num_kv_heads
        qkv_TNH = self.qkv(x_TD).view(-1, heads + 2 * kv_heads, self.head_dim)
        v_TKH = qkv_TNH[:, heads + kv_heads :]
        if self.q_norm is None or self.k_norm is None:
            qk_TNH = qkv_TNH[:, : heads + kv_heads]
            if angles is not None:
                qk_TNH = self.rotate(qk_TNH, *angles)
            q_TNH, k_TKH = qk_TNH[:, :heads], qk_TNH[:, heads:]
        else:
            q_TNH = self._normed(self.q_norm, qkv_TNH[:, :heads])
            k_TKH = self._normed(self.k_norm, qkv_TNH[:, heads : heads + kv_heads])
            if angles is not None:
                q_TNH, k_TKH = self.rotate(q_TNH, *angles), self.rotate(k_TKH, *angles)
        out_TNH = attend(q_TNH, k_TKH, v_TKH, layer_kv, step, self.shape, self.sinks)
        return self.out(out_TNH.reshape(-1, heads * self.head_dim))  # type: ignore[no-any-return]

    def _normed(self, norm: nn.Module, x_TNH: Tensor) -> Tensor:
        # Each head by itself, or all heads of a token as one row.
        normed: Tensor = norm(x_TNH) if self.norms_heads else norm(x_TNH.flatten(1)).view(x_TNH.shape)
        return normed


class MLP(nn.Module):
    """down(act(gate(x)) · up(x)), or down(act(up(x))) where the family has no gate."""

    def __init__(self, block: MlpBlock, scheme: Scheme, fused: Collection[str]) -> None:
        super().__init__()
        self.up = make_linear(block.up, scheme, fused)
        self.down = make_linear(block.down, scheme, fused)
        if block.activation not in ACTIVATIONS:
            known = ", ".join(ACTIVATIONS)
            raise CheckpointError(f"config.json: activation {block.activation!r} is not implemented: only {known}")
        self.gated, self.act = block.gated, ACTIVATIONS[block.activation]

    def forward(self, x_TD: Tensor) -> Tensor:
        hidden_TF = self.up(x_TD)
        if not self.gated:
            return self.down(self.act(hidden_TF))  # type: ignore[no-any-return]
        gate_TF, up_TF = hidden_TF.chunk(2, dim=-1)
        return self.down(self.act(gate_TF) * up_TF)  # type: ignore[no-any-return]


class MoE(nn.Module):
    """Mixture of experts: each token goes through the few MLPs that a router picks for it (Shazeer et al. 2017).

    A token's sum over its experts runs in the order of the experts' numbers.
    """

    def __init__(self, block: ExpertsBlock, scheme: Scheme, fused: Collection[str]) -> None:
        super().__init__()
        self.router = make_linear(block.router, scheme, fused)
        self.experts = nn.ModuleList(MLP(block.expert, scheme, fused) for _ in range(block.num))
        self.shared = None if block.shared is None else MLP(block.shared, scheme, fused)
        self.shared_gate = None if block.shared_gate is None else make_linear(block.shared_gate, scheme, fused)
        self.num_chosen, self.normalise, self.scores = block.chosen, block.normalise, block.scores

    def forward(self, x_TD: Tensor) -> Tensor:
        logits_TE = self.router(x_TD)
        if self.scores == "sigmoid":
            scores_TE = logits_TE.float().sigmoid()
        else:
            scores_TE = torch.softmax(logits_TE, dim=-1, dtype=torch.float32)
        weights_TC, chosen_TC = torch.topk(scores_TE, self.num_chosen, dim=-1)
        if self.normalise:
            weights_TC = weights_TC / weights_TC.sum(dim=-1, keepdim=True)
        out_TD = (self._all if is_traced() else self._chosen)(x_TD, weights_TC, chosen_TC)
        if self.shared is None:
            return out_TD
        shared_TD: Tensor = self.shared(x_TD)
        if self.shared_gate is not None:
            shared_TD = self.shared_gate(x_TD).sigmoid() * shared_TD
        return out_TD + shared_TD

    def _chosen(self, x_TD: Tensor, weights_TC: Tensor, chosen_TC: Tensor) -> Tensor:
        out_TD = torch.zeros_like(x_TD)
        for expert in torch.unique(chosen_TC).tolist():
            rows, places = torch.where(chosen_TC == expert)
            part_RD = self.experts[expert](x_TD[rows]) * weights_TC[rows, places, None]
            out_TD.index_add_(0, rows, part_RD.to(x_TD.dtype))
        return out_TD

    def _all(self, x_TD: Tensor, weights_TC: Tensor, chosen_TC: Tensor) -> Tensor:
        """Every expert for every token, those not chosen times 0: nothing depends on data, as compilers need it."""
        out_TD = torch.zeros_like(x_TD)
        for number, expert in enumerate(self.experts):
            weights_T1 = torch.where(chosen_TC == number, weights_TC, 0).sum(-1, keepdim=True)
            out_TD = out_TD + (expert(x_TD) * weights_T1).to(x_TD.dtype)
        return out_TD
