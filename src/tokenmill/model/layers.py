"""Embeddings, norms, activations and the gated or plain MLP.

Parameters are made empty, for the loader to fill. torch's own modules would initialise them, which on the meta device
imports its whole reference library: 1 s and 78 MB at every start.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tokenmill.errors import CheckpointError
from tokenmill.model.config import ModelConfig
from tokenmill.quant.schemes import Scheme

__all__ = ["ACTIVATIONS", "MLP", "Embedding", "LayerNorm", "RMSNorm", "activation", "make_norm"]


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
    shows in the tokens.
    """

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps = eps
        self.fused = False  # set by model/fusion.py

    def forward(self, x: Tensor) -> Tensor:
        """Any leading dimensions."""
        if self.fused:
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class LayerNorm(nn.Module):
    """(x - mean) / deviation · weight + bias over the last dimension (Ba et al. 2016, arXiv 1607.06450)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.bias = nn.Parameter(torch.empty(size))
        self.eps = eps

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


def make_norm(config: ModelConfig, size: int) -> nn.Module:
    """RMSNorm or LayerNorm, as the family has it."""
    return (RMSNorm if config.norm == "rms" else LayerNorm)(size, config.norm_eps)


class MLP(nn.Module):
    """down(act(gate(x)) · up(x)), or down(act(up(x))) where the family has no gate. Gate and up are one matrix."""

    def __init__(self, config: ModelConfig, scheme: Scheme) -> None:
        super().__init__()
        wide = config.intermediate_size * (2 if config.gated_mlp else 1)
        self.up = scheme.linear(config.hidden_size, wide, config.mlp_bias)
        self.down = scheme.linear(config.intermediate_size, config.hidden_size, config.mlp_bias)
        self.gated, self.num_hidden = config.gated_mlp, config.intermediate_size
        self.act = activation(config.activation)

    def forward(self, x_TD: Tensor) -> Tensor:
        """[T, D] → [T, D]"""
        hidden_TF = self.up(x_TD)
        if not self.gated:
            return self.down(self.act(hidden_TF))  # type: ignore[no-any-return]
        gate_TF, up_TF = hidden_TF.chunk(2, dim=-1)
        return self.down(self.act(gate_TF) * up_TF)  # type: ignore[no-any-return]
