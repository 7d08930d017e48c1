"""Weight schemes: one file and one line each. A scheme makes the module that stands for one matrix.

The loader fills the module's plain parameters; `finish` then turns them into whatever the scheme multiplies with, one
matrix at a time. Which of them a program can run, and which it likes best, is the program's to say.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import nn

from tokenmill.errors import ConfigError
from tokenmill.quant.stored import Stored
from tokenmill.registry import lookup

__all__ = ["SCHEMES", "Matrix", "Scheme", "choose"]

SCHEMES = {
    "packed": "tokenmill.quant.packed:Packed",
    "dense": "tokenmill.quant.dense:Dense",
    "q8": "tokenmill.quant.quantized:Q8",
    "q4": "tokenmill.quant.quantized:Q4",
    "file": "tokenmill.quant.quantized:AsStored",
}


class Matrix(nn.Module):
    """What stands for one matrix of a model; its plain parameters are `weight` [out, in] and `bias`, or None."""

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(self, in_features: int, out_features: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None

    @property
    def num_bytes(self) -> int:
        """Bytes of the matrix and its bias."""
        return sum(parameter.nbytes for parameter in self.parameters())

    def finish(self) -> None:
        """Called once, after the parameters were filled."""

    def parts(self) -> list[Stored]:
        """All rows in order, for a program that multiplies them itself."""
        assert self.weight is not None, "a packed matrix has no rows any more"
        return [Stored.plain(self.weight.detach())]

    def release(self) -> None:
        """Let go of what takes memory: a program has its own form of it."""
        self.weight = None


class Scheme(Protocol):
    """How matrices are stored."""

    copies_tied_head: bool
    """True when a head tied to the embedding needs a copy of its own."""
    bits_per_weight: float | None
    """Scales included; None where it is the dtype's, or the file's."""

    @staticmethod
    def refuse(device: torch.device, dtype: torch.dtype) -> str | None:
        """Why this scheme cannot serve there, or None."""

    def linear(self, in_features: int, out_features: int, bias: bool) -> Matrix:
        """A module x_TD → x_TF with parameters not filled yet."""

    def router(self, in_features: int, out_features: int) -> Matrix:
        """The same for what chooses experts, which no scheme rounds: its choices are all or nothing."""


def choose(name: str, device: torch.device, dtype: torch.dtype, usable: Sequence[str]) -> tuple[str, Scheme]:
    """The scheme of that name, or with "auto" the first of the `usable` ones that does not refuse."""
    reasons = {}
    for candidate in usable if name == "auto" else [name]:
        scheme: Scheme = lookup(SCHEMES, candidate, "scheme")()
        reason = scheme.refuse(device, dtype)
        if reason is None:
            return candidate, scheme
        reasons[candidate] = reason
    refusals = "; ".join(f"{candidate} {reason}" for candidate, reason in reasons.items())
    raise ConfigError("scheme", name, f"{refusals}; use auto, or another dtype or device")
