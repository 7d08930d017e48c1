"""Matrices of codes: what the integer schemes and quantised files have in common.

Rows come from the file as codes and are kept exactly, or they come as numbers and are rounded when the matrix is whole.
The module multiplies by turning its rows back into numbers, which is right everywhere and fast nowhere: programs take
the parts and have their own kernels.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from tokenmill.quant.rtn import round_to_nearest
from tokenmill.quant.schemes import Matrix
from tokenmill.quant.stored import Stored

__all__ = ["Q4", "Q8", "AsStored", "QuantizedLinear"]


class QuantizedLinear(Matrix):
    """x · weightᵀ + bias, from parts that each cover some rows; numbers are rounded to `bits`, unless that is None."""

    def __init__(self, in_features: int, out_features: int, bias: bool, bits: int | None) -> None:
        super().__init__(in_features, out_features, bias)
        self.fills_in = None if bits is None else torch.float32  # rounded once, not twice
        self._bits, self._out_features = bits, out_features
        self._kept: dict[int, Stored] = {}
        self._parts: list[Stored] = []

    @property
    def num_bytes(self) -> int:
        """See Matrix."""
        return super().num_bytes + sum(part.num_bytes for part in self._parts)

    def takes(self, stored: Stored) -> bool:
        """Whether rows of a file are kept as they are: those that are as small as asked for."""
        return self._bits is None or stored.bits <= self._bits

    def keep(self, first: int, stored: Stored) -> None:
        """Rows from `first` on, exactly as they are."""
        self._kept[first] = stored

    def finish(self) -> None:
        """Round what came as numbers, and let go of those."""
        assert self.weight is not None, "finish is called once"
        first = 0
        for start, stored in [*sorted(self._kept.items()), (self._out_features, None)]:
            if start > first:
                numbers = self.weight[first:start].detach()
                self._parts.append(
                    Stored.plain(numbers.clone()) if self._bits is None else round_to_nearest(numbers, self._bits)
                )
            if stored is not None:
                self._parts.append(stored)
                first = start + stored.num_rows
        self._kept, self.weight = {}, None

    def parts(self) -> list[Stored]:
        """See Matrix."""
        return self._parts

    def release(self) -> None:
        """See Matrix."""
        self._parts = []

    def forward(self, x_TD: Tensor) -> Tensor:
        """[T, in] → [T, out]"""
        weight = torch.cat([part.values()[:, : x_TD.shape[1]].to(x_TD.dtype) for part in self._parts])
        return F.linear(x_TD, weight, self.bias)


class _Integer:
    """What the schemes of this file share."""

    copies_tied_head = True
    bits_per_weight: float | None

    @staticmethod
    def refuse(device: torch.device, dtype: torch.dtype) -> str | None:
        """Never."""
        del device, dtype
        return None


class Q8(_Integer):
    """8 bits and a scale for each 32 inputs: 8.5 bits per weight. Rows of a file in 4 or 8 bits are kept."""

    bits_per_weight = 8.5

    def linear(self, in_features: int, out_features: int, bias: bool) -> Matrix:
        """See Scheme."""
        return QuantizedLinear(in_features, out_features, bias, 8)


class Q4(_Integer):
    """4 bits, a scale and a minimum for each 32 inputs: 5 bits per weight. 4-bit rows of a file are kept."""

    bits_per_weight = 5.0

    def linear(self, in_features: int, out_features: int, bias: bool) -> Matrix:
        """See Scheme."""
        return QuantizedLinear(in_features, out_features, bias, 4)


class AsStored(_Integer):
    """As the file has it: codes stay codes, numbers stay numbers."""

    bits_per_weight = None

    def linear(self, in_features: int, out_features: int, bias: bool) -> Matrix:
        """See Scheme."""
        return QuantizedLinear(in_features, out_features, bias, None)
