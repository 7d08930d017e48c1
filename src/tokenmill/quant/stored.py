"""Rows of a matrix as they are stored: floating point, or codes with a scale, and a minimum, for each group of a row.

Every integer scheme and every quantised file can be written as one of these:

    value = (code - zero) · scale            zero 128 for 8 bits, 8 for 4
    value = code · scale + minimum           where there are minimums

so that codes of a file can be kept by a scheme, and nothing is rounded twice.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

__all__ = ["GROUP", "Stored"]

GROUP = 32


@dataclass(frozen=True)
class Stored:
    """R rows of K values: floats `numbers` [R, K], or `codes` [R, K] uint8 with `scales` [R, K / 32] float32.

    minimums: as the scales, where there are any.
    """

    bits: int
    numbers: Tensor | None = None
    codes: Tensor | None = None
    scales: Tensor | None = None
    minimums: Tensor | None = None

    @classmethod
    def plain(cls, numbers: Tensor) -> "Stored":
        return cls(8 * numbers.element_size(), numbers)

    @property
    def num_rows(self) -> int:
        return len(self.codes if self.numbers is None else self.numbers)  # type: ignore[arg-type]

    def map(self, transform: Callable[[Tensor], Tensor]) -> "Stored":
        tensors = (self.numbers, self.codes, self.scales, self.minimums)
        return Stored(self.bits, *(None if tensor is None else transform(tensor) for tensor in tensors))

    def values(self) -> Tensor:
        """[R, K]: the floating-point rows, or the float32 values of the codes."""
        if self.numbers is not None:
            return self.numbers
        assert self.codes is not None and self.scales is not None
        codes_RGC = self.codes.view(self.num_rows, -1, GROUP).float()
        if self.minimums is None:
            values_RGC = (codes_RGC - (1 << self.bits - 1)) * self.scales[..., None]
        else:
            values_RGC = codes_RGC * self.scales[..., None] + self.minimums[..., None]
        return values_RGC.view(self.num_rows, -1)
