"""The module of schemes q8, q4 and file: a matrix of integer codes."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

import torch
from torch import Tensor
from torch.nn import functional as F

from tokenmill.quant.matrix import Matrix, is_one_traced_row, product, realised
from tokenmill.quant.schemes import GROUP
from tokenmill.quant.stored import TENSORS, Stored


class QuantizedLinear(Matrix):
    """Schemes q8, q4 and file: x · weightᵀ + bias, from parts that each cover some rows: codes, or plain numbers.

    Rows are dequantised to be multiplied, which works on every device and is fast on none. The native program reads the
    same parts and has kernels for them.
    """

    def fill(self, parts: Sequence[Stored]) -> None:
        self.weight = None
        self.keep([part.unpacked() for part in parts])

    def keep(self, parts: Sequence[Stored]) -> None:
        """Take these parts as they are, in the place of others with the same values."""
        for name in [*self._buffers]:
            delattr(self, name)
        self._bits = [part.bits for part in parts]
        for number, part in enumerate(parts):
            for name in TENSORS:
                self.register_buffer(f"{name}_{number}", getattr(part, name))

    def parts(self) -> list[Stored]:
        """Return all rows in order."""
        return [
            Stored(bits, **{name: getattr(self, f"{name}_{number}") for name in TENSORS})
            for number, bits in enumerate(self._bits)
        ]

    def compact(self) -> None:
        """Join neighbouring parts that are stored alike, and bring each into fewer bytes: the same values."""
        groups = groupby(self.parts(), key=lambda part: (part.bits, [getattr(part, name) is None for name in TENSORS]))
        joined = [compacted(Stored.joined(list(group))) for _, group in groups]
        self.keep(joined)

    def forward(self, x_TD: Tensor) -> Tensor:
        times = _sums if is_one_traced_row(x_TD) else _product
        parts = self.parts()
        biases = [None] * len(parts) if self.bias is None else torch.split(self.bias, [part.num_rows for part in parts])
        return torch.cat([times(x_TD, part, bias) for part, bias in zip(parts, biases, strict=True)], dim=-1)


def compacted(part: Stored) -> Stored:
    """Put codes of 4 bits two in a byte, as Stored has them in `halves`, and scales and minimums into float16 where
    that holds them exactly: the same values.
    """
    scales, minimums = (None if each is None else _in_float16(each) for each in (part.scales, part.minimums))
    part = replace(part, scales=scales, minimums=minimums)
    if part.codes is None or part.bits != 4:
        return part
    codes_RG2B = part.codes.view(part.num_rows, -1, 2, GROUP // 2)
    return replace(part, codes=None, halves=(codes_RG2B[:, :, 0] | codes_RG2B[:, :, 1] << 4).flatten(1))


def _in_float16(numbers: Tensor) -> Tensor:
    halves = numbers.half()
    return halves if torch.equal(halves.float(), numbers.float()) else numbers


def _product(x_TD: Tensor, part: Stored, bias_R: Tensor | None) -> Tensor:
    values_RD = part.values().to(x_TD.dtype)
    bias_R = None if bias_R is None else bias_R.to(x_TD.dtype)
    # Rows of codes are filled up to whole groups. Not cut off: inductor (2.13) makes NaN of a product with a slice.
    return product(F.pad(x_TD, (0, values_RD.shape[1] - x_TD.shape[1])), values_RD, bias_R)


def _sums(x_1D: Tensor, part: Stored, bias_R: Tensor | None) -> Tensor:
    """Compute the product of one row as sums, of which a compiler makes one pass over the codes."""
    if part.codes is None or part.scales is None:
        assert part.numbers is not None, "a part has numbers or codes"
        return product(x_1D, part.numbers, bias_R)
    missing = part.codes.shape[1] - x_1D.shape[1]
    x_GC = F.pad(realised(x_1D.float().flatten()), (0, missing)).view(-1, GROUP)
    out_R = (part.integers() * x_GC * part.scales[..., None]).sum((-1, -2))
    if part.minimums is not None:
        out_R = out_R + (part.minimums * realised(x_GC.sum(-1))).sum(-1)
    return (out_R if bias_R is None else out_R + bias_R)[None].to(x_1D.dtype)
