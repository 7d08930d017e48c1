"""The modules of a layer beside its mixer: embeddings, norms, matrices, MLP; neighbouring operations are fused.

Every module is handed the names of the operations that are fused in it, so that the gain of each can be measured:

    qkv      one matrix product for Q, K and V, or three; only plain matrices can be multiplied apart
    gate_up  one for gate and up, or two; the same holds
    norm     torch's rms_norm, or its steps written out, which round as the Llama reference does
    rotary   the halves of a head rotated one after the other, or a swapped copy put together first; the same bits
"""

import math
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tokenmill.model.blocks import Norm, Projection
from tokenmill.model.description import MlpBlock
from tokenmill.quant.matrix import Matrix, is_traced, make_matrix, product
from tokenmill.quant.schemes import Scheme
from tokenmill.quant.ways import finish_products


def _is_written_out(x: Tensor) -> bool:
    return x.device.type == "cpu" and not is_traced()


def sigmoid(x: Tensor) -> Tensor:
    """Compute 1 / (1 + exp(-x))."""
    if not _is_written_out(x):
        return torch.sigmoid(x)
    return torch.exp(-x.float()).add_(1).reciprocal_().to(x.dtype)


def silu(x: Tensor) -> Tensor:
    """Compute x · sigmoid(x)."""
    if not _is_written_out(x):
        return F.silu(x)
    wide = x.float()
    return (wide / torch.exp(-wide).add_(1)).to(x.dtype)


def gelu(x: Tensor) -> Tensor:
    """Compute x · Φ(x), with the normal distribution's Φ."""
    if not _is_written_out(x):
        return F.gelu(x)
    wide = x.float()
    return torch.erf(wide * math.sqrt(0.5)).add_(1).mul_(wide * 0.5).to(x.dtype)


def gelu_tanh(x: Tensor) -> Tensor:
    """Compute gelu with a tanh in the place of Φ."""
    if not _is_written_out(x):
        return F.gelu(x, approximate="tanh")
    wide = x.float()
    inner = wide * wide * wide * 0.044715 + wide
    return torch.tanh(inner.mul_(math.sqrt(2 / math.pi))).add_(1).mul_(wide * 0.5).to(x.dtype)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": gelu,
    "gelu_fast": gelu_tanh,
    "gelu_new": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
    "silu": silu,
    "swish": silu,
}


class XIELU(nn.Module):
    """xIELU (Huang & Schlag 2024, arXiv 2411.13010), with beta 0.5 and eps -1e-6 as transformers has them."""

    def __init__(self) -> None:
        super().__init__()
        self.alpha_p, self.alpha_n = nn.Parameter(torch.empty(1)), nn.Parameter(torch.empty(1))

    def forward(self, x: Tensor) -> Tensor:
        alpha_p, alpha_n = F.softplus(self.alpha_p), 0.5 + F.softplus(self.alpha_n)
        negative = (torch.expm1(x.clamp(max=-1e-6)) - x) * alpha_n + 0.5 * x
        return torch.where(x > 0, alpha_p * x * x + 0.5 * x, negative)


def clamped_swiglu(gate: Tensor, up: Tensor, alpha: float, limit: float) -> Tensor:
    """Compute (up + 1) · gate · sigmoid(alpha · gate), with gate <= limit and |up| <= limit, as gpt-oss has it."""
    gate, up = gate.clamp(max=limit), up.clamp(min=-limit, max=limit)
    return (up + 1) * (gate * sigmoid(gate * alpha))


class Embedding(nn.Embedding):
    """torch's embedding, which draws no random numbers when it is made."""

    weight: nn.Parameter

    def reset_parameters(self) -> None:
        """Do nothing. Random numbers on the meta device import torch's reference library: 1 s and 78 MB at a start."""


class RMSNorm(nn.RMSNorm):
    """x / rms(x) · weight over the last dimension (Zhang & Sennrich 2019, arXiv 1910.07467).

    In float32, rounded to x's dtype before the weight, as the Llama reference does: in bfloat16 the order of the two
    shows in the tokens.
    """

    eps: float

    def __init__(self, norm: Norm, fused: bool) -> None:
        super().__init__(norm.size, norm.eps)
        self.fused = fused

    def forward(self, x: Tensor) -> Tensor:
        if self.fused:
            return super().forward(x)
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class WideNorm(nn.Module):
    """Either kind of norm in float32 throughout, rounded to x's dtype at the end, with all variants of a description:
    no weight, 1 + weight (Gemma), weights for each head (Cohere).
    """

    def __init__(self, norm: Norm) -> None:
        super().__init__()
        shape = (norm.size,) if norm.heads == 1 else (norm.heads, norm.size)
        self.weight = nn.Parameter(torch.empty(shape)) if norm.weight else None
        self.bias = nn.Parameter(torch.empty(shape)) if norm.bias else None
        self.eps, self.centred, self.offset = norm.eps, norm.kind == "layer", float(norm.unit_offset)

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        if self.centred:
            wide = wide - wide.mean(-1, keepdim=True)
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        if self.weight is not None:
            wide = wide * (self.offset + self.weight.float())
        return (wide if self.bias is None else wide + self.bias.float()).to(x.dtype)


def make_norm(norm: Norm | None, fused: Collection[str]) -> Any:
    """Make the module of a norm; None for None."""
    if norm is None:
        return None
    if norm.unit_offset or norm.rounds_last or not norm.weight or norm.heads > 1:
        return WideNorm(norm)
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
    """Make the module of a matrix, which multiplies in one product or in one for each of its parts."""
    is_fused = len(matrix.parts) == 1 or matrix.role in fused
    made = make_matrix(scheme, matrix.inputs, matrix.outputs, matrix.bias) if is_fused else Unfused(matrix)
    finish_products(made, matrix.parts, matrix.multipliers, matrix.clip)
    return made


class MLP(nn.Module):
    """down(act(gate(x)) · up(x)), or down(act(up(x))) where the family has no gate."""

    def __init__(self, block: MlpBlock, scheme: Scheme, fused: Collection[str]) -> None:
        super().__init__()
        self.up = make_linear(block.up, scheme, fused)
        self.down = make_linear(block.down, scheme, fused)
        self.gated, self.swiglu = block.gated, block.swiglu
        self.act = XIELU() if block.act_parameters else ACTIVATIONS[block.activation]

    def forward(self, x_TD: Tensor) -> Tensor:
        hidden_TF = self.up(x_TD)
        if not self.gated:
            return self.down(self.act(hidden_TF))  # type: ignore[no-any-return]
        gate_TF, up_TF = hidden_TF.chunk(2, dim=-1)
        if self.swiglu is not None:
            return self.down(clamped_swiglu(gate_TF, up_TF, *self.swiglu))  # type: ignore[no-any-return]
        return self.down(self.act(gate_TF) * up_TF)  # type: ignore[no-any-return]
