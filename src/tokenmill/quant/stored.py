"""Rows of a matrix as they are stored: floating point, or codes with a scale, and a minimum, for each group of a row.

Every integer scheme and every quantised file can be written as one of these:

    value = (code - zero) · scale            zero 128 for 8 bits, 8 for 4
    value = code · scale + minimum           where there are minimums: 4 bits or 5
    value = (code - 32) · factor · scale     6 bits, with an integer factor for each 16 inputs

so that codes of a file can be kept by a scheme, and nothing is rounded twice.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from tokenmill.quant.schemes import GROUP


@dataclass(frozen=True)
class Stored:
    """R rows of K values: floats `numbers` [R, K], or `codes` [R, K] uint8 with `scales` [R, K / 32] float32.

    minimums: like the scales, where there are any. halves: codes of 4 bits may be here instead, [R, K / 2] uint8, as
    most files have them: 16 bytes for each group, whose low halves are its first 16 codes. factors: [R, K / 16] int8.
    steps: of which scales and minimums are multiples from 0 to 63, and minus 63 to 0, where they are: for each group
    both, one after the other, [R, K / 16] float16.
    """

    bits: int
    numbers: Tensor | None = None
    codes: Tensor | None = None
    scales: Tensor | None = None
    minimums: Tensor | None = None
    halves: Tensor | None = None
    factors: Tensor | None = None
    steps: Tensor | None = None

    @classmethod
    def plain(cls, numbers: Tensor) -> "Stored":
        return cls(8 * numbers.element_size(), numbers)

    @property
    def num_rows(self) -> int:
        return next(len(each) for each in (self.numbers, self.codes, self.halves) if each is not None)

    @classmethod
    def of_groups(
        cls, bits: int, codes_RK: Tensor, group: int, scales_RG: Tensor, minimums_RG: Tensor | None = None
    ) -> "Stored":
        """Store codes whose scales are for `group` inputs each, a multiple of 32; a row's last group may be shorter.

        Codes are padded to a multiple of 32, scales and minimums repeated for every 32 inputs.
        """
        codes_RK = F.pad(codes_RK, (0, -codes_RK.shape[1] % GROUP)).contiguous()
        repeats, count = group // GROUP, codes_RK.shape[1] // GROUP
        numbers = (
            None if number is None else number.repeat_interleave(repeats, 1)[:, :count].contiguous()
            for number in (scales_RG, minimums_RG)
        )
        return cls(bits, None, codes_RK, *numbers)

    @classmethod
    def joined(cls, parts: Sequence["Stored"]) -> "Stored":
        """Join the rows of all parts, which are stored alike."""
        tensors = ([getattr(part, name) for part in parts] for name in TENSORS)
        return cls(
            parts[0].bits, *(None if any(part is None for part in each) else torch.cat(each) for each in tensors)
        )

    def map(self, transform: Callable[[Tensor], Tensor]) -> "Stored":
        tensors = (getattr(self, name) for name in TENSORS)
        return Stored(self.bits, *(None if tensor is None else transform(tensor) for tensor in tensors))

    def rows(self, which: range) -> "Stored":
        return self.map(lambda tensor: tensor[which.start : which.stop])

    def unpacked(self) -> "Stored":
        """Give each code a byte of its own."""
        if self.halves is None:
            return self
        halves_RGB = self.halves.view(self.num_rows, -1, GROUP // 2)
        codes = halves_RGB.new_empty(*halves_RGB.shape[:2], 2, GROUP // 2)
        torch.bitwise_and(halves_RGB, 15, out=codes[:, :, 0])
        torch.bitwise_right_shift(halves_RGB, 4, out=codes[:, :, 1])
        return replace(self, codes=codes.flatten(1), halves=None)

    def values(self) -> Tensor:
        """Return the rows in floating point, or compute the float32 values of the codes: [R, K]."""
        if self.numbers is not None:
            return self.numbers
        if self.halves is not None:
            return self.unpacked().values()
        assert self.scales is not None
        values_RGC = self.integers() * self.scales[..., None]
        if self.minimums is not None:
            values_RGC = values_RGC + self.minimums[..., None]
        return values_RGC.view(self.num_rows, -1)

    def integers(self) -> Tensor:
        """Compute the integers that are multiplied by the scales: [R, K / 32, 32] float32."""
        assert self.codes is not None
        codes_RGC = self.codes.view(self.num_rows, -1, GROUP).float()
        if self.minimums is not None:
            return codes_RGC
        signed_RGC = codes_RGC - (1 << self.bits - 1)
        if self.factors is None:
            return signed_RGC
        halves_RGC = signed_RGC.view(self.num_rows, -1, GROUP // 2) * self.factors[..., None]
        return halves_RGC.view(signed_RGC.shape)


TENSORS = ("numbers", "codes", "scales", "minimums", "halves", "factors", "steps")  # of Stored, in this order
