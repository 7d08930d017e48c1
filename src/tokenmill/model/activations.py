"""The activations of an MLP, and the sigmoid. On a CPU a number has the same bits wherever it stands in its row.

torch divides what it computes number by number among its threads, and what is left over at the end of each piece, since
it fills no vector, has another formula. So the last bits of its silu, sigmoid and gelu depend on the number of threads
and on what else is in the batch. Those of its exp, tanh and erf do not: the functions here are written with these, in
float32. Elsewhere, and for a compiler, they are torch's own.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tokenmill.quant.dense import is_traced


def _is_written_out(x: Tensor) -> bool:
    return x.device.type == "cpu" and not is_traced()


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x))."""
    if not _is_written_out(x):
        return torch.sigmoid(x)
    return torch.exp(-x.float()).add_(1).reciprocal_().to(x.dtype)


def silu(x: Tensor) -> Tensor:
    """x · sigmoid(x)."""
    if not _is_written_out(x):
        return F.silu(x)
    wide = x.float()
    return (wide / torch.exp(-wide).add_(1)).to(x.dtype)


def gelu(x: Tensor) -> Tensor:
    """x · Φ(x), the normal distribution's."""
    if not _is_written_out(x):
        return F.gelu(x)
    wide = x.float()
    return torch.erf(wide * math.sqrt(0.5)).add_(1).mul_(wide * 0.5).to(x.dtype)


def gelu_tanh(x: Tensor) -> Tensor:
    """gelu, with a tanh in place of Φ."""
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
    """(up + 1) · gate · sigmoid(alpha · gate), with gate <= limit and |up| <= limit, as gpt-oss has it."""
    gate, up = gate.clamp(max=limit), up.clamp(min=-limit, max=limit)
    return (up + 1) * (gate * sigmoid(gate * alpha))
