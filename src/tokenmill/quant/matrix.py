"""The module of one matrix of a model. A scheme of schemes.py names the class of its matrices, a key of MATRICES.

It is made without memory, and filled once with the parts of a WeightSource, which it brings into its final form.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tokenmill.quant.dense import product
from tokenmill.quant.schemes import Scheme
from tokenmill.quant.stored import Stored
from tokenmill.registry import MATRICES, lookup

__all__ = ["Matrix", "make_matrix"]


class Matrix(nn.Module):
    """The module of one matrix of a model, x · weightᵀ + bias; here it stays plain, and `bias` may be None."""

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(self, in_features: int, out_features: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None

    def fill(self, parts: Sequence[Stored]) -> None:
        """Take all rows, in order, as the scheme stores them: plain ones in one part. Called once."""
        (part,) = parts
        assert part.numbers is not None, "a plain matrix has no codes"
        self.weight = nn.Parameter(part.numbers, requires_grad=False)

    def forward(self, x_TD: Tensor) -> Tensor:
        assert self.weight is not None, "filled"
        return product(x_TD, self.weight, self.bias)


def make_matrix(scheme: Scheme, in_features: int, out_features: int, bias: bool) -> Matrix:
    """A module x_TD → x_TF of that scheme, with parameters not filled yet."""
    kind: type[Matrix] = lookup(MATRICES, scheme.matrix, "scheme")
    return kind(in_features, out_features, bias)
