"""Weight schemes: how the matrices of a model are stored and multiplied.

A scheme makes the module of one matrix, and it alone knows the facts about its matrices that other rooms need: their
bytes, their layout in the native program, where they run.
The loader fills the plain parameters of a module; `finish` then brings them into their final form, matrix by matrix.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tokenmill.errors import ConfigError
from tokenmill.quant.dense import product
from tokenmill.quant.stored import Stored
from tokenmill.registry import lookup

__all__ = ["AS_STORED", "REFERENCE", "SCHEMES", "Matrix", "Scheme", "choose", "find_scheme"]

SCHEMES = {
    "packed": "tokenmill.quant.packed:Packed",
    "dense": "tokenmill.quant.schemes:Scheme",
    "q8": "tokenmill.quant.quantized:Q8",
    "q4": "tokenmill.quant.quantized:Q4",
    "file": "tokenmill.quant.quantized:AsStored",
}
"""In the order of preference: of those that a program prefers, "auto" takes the first that does not refuse."""
REFERENCE = "dense"  # what other schemes are compared with: plain matrices, on every device
AS_STORED = "file"  # what "auto" stands for where a checkpoint is quantised: nothing is rounded again


class Matrix(nn.Module):
    """The module of one matrix of a model, x · weightᵀ + bias; here it stays plain, and `bias` may be None."""

    weight: nn.Parameter | None
    bias: nn.Parameter | None
    fills_in: torch.dtype | None = None  # the dtype of its parameters before `finish`; None for the model's own
    keeps_codes = False  # whether `keep` may accept the codes of a checkpoint

    def __init__(self, in_features: int, out_features: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None

    def keep(self, first: int, stored: Stored) -> bool:
        """Take the rows from `first` on as the checkpoint stores them; False leaves them to be filled in."""
        raise NotImplementedError

    def finish(self) -> None:
        """Bring the matrix into its final form. Called once, after the parameters were filled or kept."""

    def forward(self, x_TD: Tensor) -> Tensor:
        assert self.weight is not None, "released"
        return product(x_TD, self.weight, self.bias)

    def take_parts(self) -> list[Stored]:
        """All rows in order, for a program that has its own form of them; the matrix keeps none.

        Called after `finish`, or after the parameters were filled or kept, in its place.
        """
        assert self.weight is not None, "a packed matrix has no rows any more"
        parts, self.weight = [Stored.plain(self.weight.detach())], None
        return parts


class Scheme:
    """How matrices are stored, and all that other rooms need to know about it; here dense, in the model's dtype."""

    matrix: type[Matrix] = Matrix
    bits_per_weight: float | None = None  # scales included; None where the model's dtype or the file's codes decide
    is_integer: bool = False  # may have integer codes; programs may then round activations to 8 bits for each product
    is_plain: bool = True  # `weight` stays plain after `finish`: its rows can be multiplied apart, and looked up
    is_traceable: bool = True  # torch.compile and torch.export can trace the product
    keeps_codes: bool = False  # every matrix stays as the checkpoint stores it
    rounds_to: int | None = None  # bits of what was floating point, and was filled in float32; None: not rounded
    min_agreement: float = 1.0  # the share of golden tokens that must be equal; 1 where whole texts must be

    @staticmethod
    def refuse(device: torch.device, dtype: torch.dtype) -> str | None:
        """Why this scheme cannot serve there, or None."""
        return None

    def native_layout(self, dtype: torch.dtype) -> str | None:
        """The layout of its tiles in program native, a key of native/pack.py's LAYOUTS; None where native has none.

        Where a scheme keeps the codes of the checkpoint this is the layout of matrices that are no codes.
        """
        return str(dtype).removeprefix("torch.")

    def matrix_bytes(self, outputs: int, inputs: int, dtype: torch.dtype, code_bits: float) -> int:
        """Bytes of one matrix as a PyTorch module, without its bias.

        code_bits: bits per number of the checkpoint's own codes, on average; 0 where it has none or they are unknown.
        """
        return outputs * inputs * dtype.itemsize

    def linear(self, in_features: int, out_features: int, bias: bool, rounded: bool = True) -> Matrix:
        """A module x_TD → x_TF with parameters not filled yet.

        rounded: False for the router of experts, which no scheme rounds: a small error may choose another expert.
        """
        return self.matrix(in_features, out_features, bias)


def find_scheme(name: str) -> Scheme:
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
