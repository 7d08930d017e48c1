"""The product with a plain matrix, [out, in], in the dtype of the model: by torch on any device, or for a compiler."""

import torch
from torch import Tensor
from torch.nn import functional as F

from tokenmill.quant.ways import multiply


def is_traced() -> bool:
    """Whether a compiler traces this call; torch's is_compiling is also true for calls beside a compilation."""
    return torch.compiler.is_dynamo_compiling() or torch.compiler.is_exporting()


def is_one_traced_row(x_TD: Tensor) -> bool:
    return is_traced() and x_TD.device.type == "cpu" and x_TD.shape[0] == 1


def realised(x_D: Tensor) -> Tensor:
    """The same values, which inductor now stores: otherwise it computes them again for every row of a matrix."""
    return x_D.as_strided(x_D.shape, (1,))


def product(x_TD: Tensor, weight_FD: Tensor, bias_F: Tensor | None = None) -> Tensor:
    """x · weightᵀ + bias. On a CPU a row has the same bits alone and among others, see ways.py, unless a compiler asks.

    A compiler gets one row on a CPU as a sum, whose loop reads as fast as memory delivers. Torch's own product reads at
    two thirds of that (12 and 18 GB/s side by side, bfloat16, 2 Zen 4 cores).
    """
    if is_one_traced_row(x_TD):
        out_TF = (weight_FD.float() * realised(x_TD.float().flatten())).sum(-1)[None]
        return (out_TF if bias_F is None else out_TF + bias_F).to(x_TD.dtype)
    if x_TD.device.type != "cpu" or is_traced():
        return F.linear(x_TD, weight_FD, bias_F)
    return multiply(x_TD, weight_FD, bias_F)
