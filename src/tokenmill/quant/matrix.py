"""The module of one matrix of a model. A scheme of schemes.py names the class of its matrices, a key of MATRICES.

The loader fills the plain parameters of a module; `finish` then brings them into their final form, matrix by matrix.
"""

import torch
from torch import Tensor, nn

from tokenmill.quant.dense import product
from tokenmill.quant.schemes import Scheme
from tokenmill.quant.stored import Stored
from tokenmill.registry import MATRICES, lookup


class Matrix(nn.Module):
    """The module of one matrix of a model, x · weightᵀ + bias; here it stays plain, and `bias` may be None.

    bits: to what one rounds whose scheme rounds; None for floating point that stays as it is.
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None
    fills_in: torch.dtype | None = None  # the dtype of its parameters before `finish`; None for the model's own
    keeps_codes = False  # whether `keep` may accept the codes of a checkpoint

    def __init__(self, in_features: int, out_features: int, bias: bool, bits: int | None = None) -> None:
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


def make_matrix(scheme: Scheme, in_features: int, out_features: int, bias: bool, rounded: bool = True) -> Matrix:
    """A module x_TD → x_TF of that scheme, with parameters not filled yet.

    rounded: False for the router of experts, which no scheme rounds: a small error may choose another expert.
    """
    kind: type[Matrix] = lookup(MATRICES, scheme.matrix, "scheme")
    return kind(in_features, out_features, bias, scheme.rounds_to if rounded else None)
