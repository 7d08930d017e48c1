"""Embeddings, norms, activations and the gated or plain MLP.

Parameters are made empty, for the loader to fill. torch's own modules would initialise them, which on the meta device
imports its whole reference library: 1 s and 78 MB at every start.
"""

from collections.abc import Callable, Collection

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tokenmill.errors import CheckpointError
from tokenmill.model.blocks import MlpBlock, Norm
from tokenmill.model.fusion import make_linear
from tokenmill.quant.schemes import Scheme

__all__ = ["ACTIVATIONS", "MLP", "Embedding", "LayerNorm", "RMSNorm", "activation", "make_norm", "norm_or_none"]


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_fast": _gelu_tanh,
    "gelu_new": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
    "relu": F.relu,
    "silu": F.silu,
    "swish": F.silu,
}


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """The function of that name; CheckpointError that lists the known ones."""
    if name not in ACTIVATIONS:
        raise CheckpointError(f"config.json: activation {name!r} is not implemented: use {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


class RMSNorm(nn.Module):
    """x / rms(x) · weight over the last dimension (Zhang & Sennrich 2019, arXiv 1910.07467).

    In float32, rounded to x's dtype before the weight, as the Llama reference does: in bfloat16 the order of the two
    shows in the tokens. With a unit offset it is rounded after the weight, as the Gemma reference does.
    """

    def __init__(self, norm: Norm, fused: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(norm.size))
        self.eps, self.unit_offset = norm.eps, norm.unit_offset
        self.fused = fused and not norm.unit_offset

    def forward(self, x: Tensor) -> Tensor:
        """Any leading dimensions."""
        if self.fused:
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        if self.unit_offset:
            return (wide * (1.0 + self.weight.float())).to(x.dtype)
        return self.weight * wide.to(x.dtype)


class LayerNorm(nn.Module):
    """(x - mean) / deviation · weight + bias over the last dimension (Ba et al. 2016, arXiv 1607.06450)."""

    def __init__(self, norm: Norm) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(norm.size))
        self.bias = nn.Parameter(torch.empty(norm.size)) if norm.bias else None
        self.eps = norm.eps

    def forward(self, x: Tensor) -> Tensor:
        """Any leading dimensions."""
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class Embedding(nn.Module):
    """Rows of a table by index."""

    def __init__(self, num_rows: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_rows, size))

    def forward(self, ids_T: Tensor) -> Tensor:
        """[T] → [T, size]"""
        return F.embedding(ids_T, self.weight)


def make_norm(norm: Norm, fused: Collection[str]) -> nn.Module:
    """The module of a norm."""
    return RMSNorm(norm, "norm" in fused) if norm.kind == "rms" else LayerNorm(norm)


def norm_or_none(norm: Norm | None, fused: Collection[str]) -> nn.Module | None:
    """The module of a norm, or None where there is none."""
    return None if norm is None else make_norm(norm, fused)


class MLP(nn.Module):
    """down(act(gate(x)) · up(x)), or down(act(up(x))) where the family has no gate."""

    def __init__(self, block: MlpBlock, scheme: Scheme, fused: Collection[str]) -> None:
        super().__init__()
        self.up = make_linear(block.up, scheme, fused)
        self.down = make_linear(block.down, scheme, fused)
        self.gated, self.act = block.gated, activation(block.activation)

    def forward(self, x_TD: Tensor) -> Tensor:
        """[T, D] → [T, D]"""
        hidden_TF = self.up(x_TD)
        if not self.gated:
            return self.down(self.act(hidden_TF))  # type: ignore[no-any-return]
        gate_TF, up_TF = hidden_TF.chunk(2, dim=-1)
        return self.down(self.act(gate_TF) * up_TF)  # type: ignore[no-any-return]
