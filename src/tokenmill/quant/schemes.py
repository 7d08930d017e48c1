"""Weight schemes: how the matrices of a model are stored and multiplied.

A scheme is one file and one line in SCHEMES. It makes the module of one matrix, and it alone knows the
facts about its matrices that other rooms need: their bytes, their layout in the native program, where they run.
The loader fills the plain parameters of a module; `finish` then brings them into their final form, matrix by matrix.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import nn

from tokenmill.errors import ConfigError
from tokenmill.quant.stored import Stored
from tokenmill.registry import lookup

__all__ = ["AS_STORED", "REFERENCE", "SCHEMES", "Matrix", "Scheme", "choose", "find_scheme"]

SCHEMES = {
    "packed": "tokenmill.quant.packed:Packed",
    "dense": "tokenmill.quant.dense:Dense",
    "q8": "tokenmill.quant.quantized:Q8",
    "q4": "tokenmill.quant.quantized:Q4",
    "file": "tokenmill.quant.quantized:AsStored",
}
"""In the order of preference: of those that a program prefers, "auto" takes the first that does not refuse."""
REFERENCE = "dense"
"""The scheme that others are compared with: plain matrices, on every device."""
AS_STORED = "file"
"""The scheme that "auto" stands for where a checkpoint is quantised: nothing is rounded again."""


class Matrix(nn.Module):
    """The module of one matrix of a model; its plain parameters are `weight` [out, in] and `bias`, or None."""

    weight: nn.Parameter | None
    bias: nn.Parameter | None
    fills_in: torch.dtype | None = None
    """The dtype in which the parameters are filled before `finish`; None for the model's own."""
    keeps_codes = False
    """True when it takes rows of a checkpoint as codes: then `takes` and `keep` are called before `finish`."""

    def __init__(self, in_features: int, out_features: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None

    @property
    def num_bytes(self) -> int:
        """Bytes of the matrix and its bias."""
        return sum(parameter.nbytes for parameter in self.parameters())

    def takes(self, stored: Stored) -> bool:
        """Whether `keep` accepts these rows; otherwise their values are filled into `weight`."""
        raise NotImplementedError

    def keep(self, first: int, stored: Stored) -> None:
        """Take the rows from `first` on exactly as the checkpoint stores them."""
        raise NotImplementedError

    def finish(self) -> None:
        """Bring the matrix into its final form. Called once, after the parameters were filled."""

    def parts(self) -> list[Stored]:
        """All rows in order, for a program that multiplies them itself."""
        assert self.weight is not None, "a packed matrix has no rows any more"
        return [Stored.plain(self.weight.detach())]

    def release(self) -> None:
        """Free the memory of the rows: a program has its own form of them."""
        self.weight = None


class Scheme(Protocol):
    """How matrices are stored, and all that other rooms need to know about it."""

    bits_per_weight: float | None
    """Scales included; None where the dtype of the model or the codes of the checkpoint decide."""
    is_integer: bool
    """True when matrices may be integer codes. Programs may then round activations to 8 bits for each product."""
    is_plain: bool
    """True when `weight` stays a plain matrix after `finish`, so that its rows can be multiplied apart."""
    is_traceable: bool
    """True when torch.compile and torch.export can trace the product."""
    keeps_codes: bool
    """True when every matrix stays as the checkpoint stores it."""
    copies_tied_head: bool
    """True when a head that is tied to the embedding needs a matrix of its own."""
    fills_in: torch.dtype | None
    """See Matrix."""
    rounds_to: int | None
    """Bits to which it rounds floating-point matrices; None if it does not."""
    min_agreement: float
    """The share of golden tokens that must be equal; 1 where whole texts must be."""

    @staticmethod
    def refuse(device: torch.device, dtype: torch.dtype) -> str | None:
        """Why this scheme cannot serve there, or None."""

    @staticmethod
    def native_layout(dtype: torch.dtype) -> str | None:
        """The layout of its tiles in program native, a key of native/pack.py's LAYOUTS; None where native has none.

        Where a scheme keeps the codes of the checkpoint this is the layout of matrices that are no codes.
        """

    @staticmethod
    def matrix_bytes(outputs: int, inputs: int, dtype: torch.dtype, code_bits: float) -> int:
        """Bytes of one matrix as a PyTorch module, without its bias.

        code_bits: bits per number of the checkpoint's own codes, on average; 0 where it has none or they are unknown.
        """

    def linear(self, in_features: int, out_features: int, bias: bool) -> Matrix:
        """A module x_TD → x_TF with parameters not filled yet."""

    def router(self, in_features: int, out_features: int) -> Matrix:
        """The same for the router of experts, which no scheme rounds: a small error may choose another expert."""


def find_scheme(name: str) -> Scheme:
    """The scheme of that name; ConfigError with the valid names where there is none."""
    scheme: Scheme = lookup(SCHEMES, name, "scheme")()
    return scheme


def choose(name: str, device: torch.device, dtype: torch.dtype, usable: Sequence[str]) -> tuple[str, Scheme]:
    """The scheme of that name, or with "auto" the first of the `usable` ones that does not refuse."""
    reasons = {}
    for candidate in usable if name == "auto" else [name]:
        scheme = find_scheme(candidate)
        reason = scheme.refuse(device, dtype)
        if reason is None:
            return candidate, scheme
        reasons[candidate] = reason
    refusals = "; ".join(f"{candidate} {reason}" for candidate, reason in reasons.items())
    raise ConfigError("scheme", name, f"{refusals}; use auto, or another dtype or device")
