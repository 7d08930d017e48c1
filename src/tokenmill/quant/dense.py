"""The plain scheme: a matrix in the dtype of the model, [out, in], multiplied by torch on any device."""

import torch
from torch import Tensor
from torch.nn import functional as F

from tokenmill.quant.schemes import Matrix

__all__ = ["Dense", "DenseLinear"]


class DenseLinear(Matrix):
    """x · weightᵀ + bias, as it stands."""

    def forward(self, x_TD: Tensor) -> Tensor:
        """[T, in] → [T, out]"""
        assert self.weight is not None
        return F.linear(x_TD, self.weight, self.bias)


class Dense:
    """float32, bfloat16 or float16 as they are."""

    bits_per_weight: float | None = None
    copies_tied_head = False

    @staticmethod
    def refuse(device: torch.device, dtype: torch.dtype) -> str | None:
        """Never."""
        del device, dtype
        return None

    def linear(self, in_features: int, out_features: int, bias: bool) -> Matrix:
        """See Scheme."""
        return DenseLinear(in_features, out_features, bias)
