"""The plain scheme: a matrix in the dtype of the model, [out, in], multiplied by torch on any device."""

import torch
from torch import Tensor
from torch.nn import functional as F

from tokenmill.quant.schemes import Matrix

__all__ = ["Dense", "DenseLinear", "is_one_traced_row", "is_traced", "product", "realised"]


def is_traced() -> bool:
    """Whether a compiler traces this call; torch's is_compiling is also true for calls beside a compilation."""
    return torch.compiler.is_dynamo_compiling() or torch.compiler.is_exporting()


def is_one_traced_row(x_TD: Tensor) -> bool:
    """Whether a compiler traces a product of a single row on a CPU."""
    return is_traced() and x_TD.device.type == "cpu" and x_TD.shape[0] == 1


def realised(x_D: Tensor) -> Tensor:
    """The same values, which inductor now stores: otherwise it computes them again for every row of a matrix."""
    return x_D.as_strided(x_D.shape, (1,))


def product(x_TD: Tensor, weight_FD: Tensor, bias_F: Tensor | None = None) -> Tensor:
    """x · weightᵀ + bias. A compiler gets one row on a CPU as a sum, whose loop reads as fast as memory delivers.

    Torch's own product reads at two thirds of that (12 and 18 GB/s side by side, bfloat16, 2 Zen 4 cores).
    """
    if is_one_traced_row(x_TD):
        out_TF = (weight_FD.float() * realised(x_TD.float().flatten())).sum(-1)[None]
        return (out_TF if bias_F is None else out_TF + bias_F).to(x_TD.dtype)
    return F.linear(x_TD, weight_FD, bias_F)


class DenseLinear(Matrix):
    """x · weightᵀ + bias."""

    def forward(self, x_TD: Tensor) -> Tensor:
        """[T, in] → [T, out]"""
        assert self.weight is not None
        return product(x_TD, self.weight, self.bias)


class Dense:
    """See Scheme. float32, bfloat16 or float16."""

    bits_per_weight: float | None = None
    is_integer = False
    is_plain = True
    is_traceable = True
    keeps_codes = False
    copies_tied_head = False
    fills_in: torch.dtype | None = None
    rounds_to: int | None = None
    min_agreement = 1.0

    @staticmethod
    def refuse(device: torch.device, dtype: torch.dtype) -> str | None:
        """Never."""
        del device, dtype
        return None

    @staticmethod
    def native_layout(dtype: torch.dtype) -> str | None:
        """See Scheme."""
        return str(dtype).removeprefix("torch.")

    @staticmethod
    def matrix_bytes(outputs: int, inputs: int, dtype: torch.dtype, code_bits: float) -> int:
        """See Scheme."""
        del code_bits
        return outputs * inputs * dtype.itemsize

    def linear(self, in_features: int, out_features: int, bias: bool) -> Matrix:
        """See Scheme."""
        return DenseLinear(in_features, out_features, bias)

    def router(self, in_features: int, out_features: int) -> Matrix:
        """See Scheme."""
        return self.linear(in_features, out_features, False)
