"""The module of one matrix of a model. A scheme of schemes.py names the class of its matrices, a key of MATRICES;
matrices.py has the classes of matrices that do not stay plain.

A module is made without memory, and filled once with the parts of a WeightSource, which it brings into its final form.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tokenmill.quant.schemes import Scheme
from tokenmill.quant.stored import Stored
from tokenmill.quant.ways import multiply
from tokenmill.registry import MATRICES, lookup


def is_traced() -> bool:
    """Tell whether a compiler traces this call; torch's is_compiling is also true for calls beside a compilation."""
    return torch.compiler.is_dynamo_compiling() or torch.compiler.is_exporting()


def is_one_traced_row(x_TD: Tensor) -> bool:
    return is_traced() and x_TD.device.type == "cpu" and x_TD.shape[0] == 1


def realised(x_D: Tensor) -> Tensor:
    """Have inductor store these values: otherwise it computes them again for every row of a matrix."""
    return x_D.as_strided(x_D.shape, (1,))


def product(x_TD: Tensor, weight_FD: Tensor, bias_F: Tensor | None = None) -> Tensor:
    """Compute x · weightᵀ + bias. On a CPU a row has the same bits alone and among others, see ways.py, unless traced.

    A compiler gets one row on a CPU as a sum, whose loop reads as fast as memory delivers. Torch's own product reads at
    two thirds of that (12 and 18 GB/s side by side, bfloat16, 2 Zen 4 cores).
    """
    if is_one_traced_row(x_TD):
        out_TF = (weight_FD.float() * realised(x_TD.float().flatten())).sum(-1)[None]
        return (out_TF if bias_F is None else out_TF + bias_F).to(x_TD.dtype)
    if x_TD.device.type != "cpu" or is_traced():
        return F.linear(x_TD, weight_FD, bias_F)
    return multiply(x_TD, weight_FD, bias_F)


class Matrix(nn.Module):
    """The module of one matrix of a model, x · weightᵀ + bias; here it stays plain, and `bias` may be None."""

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(self, in_features: int, out_features: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None

    def fill(self, parts: Sequence[Stored]) -> None:
        """Take all rows, in order, as the scheme stores them; a plain matrix comes in one part. Called once."""
        (part,) = parts
        assert part.numbers is not None, "a plain matrix has no codes"
        self.weight = nn.Parameter(part.numbers, requires_grad=False)

    def forward(self, x_TD: Tensor) -> Tensor:
        assert self.weight is not None, "filled"
        return product(x_TD, self.weight, self.bias)


def make_matrix(scheme: Scheme, in_features: int, out_features: int, bias: bool) -> Matrix:
    """Make a module x_TD → x_TF of that scheme, with parameters not filled yet."""
    kind: type[Matrix] = lookup(MATRICES, scheme.matrix, "scheme")
    return kind(in_features, out_features, bias)
