"""The module of schemes q8, q4 and file: a matrix of integer codes."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

import torch
from torch import Tensor
from torch.nn import functional as F

from tokenmill.quant.matrix import Matrix, is_one_traced_row, product, realised
from tokenmill.quant.nibbles import e2m1_of, eights_of, exponents_of, powers_of
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

    def forward(self, x_TD: Tensor) -> Tensor:
        times = _sums if is_one_traced_row(x_TD) else _product
        parts = self.parts()
        biases = [None] * len(parts) if self.bias is None else torch.split(self.bias, [part.num_rows for part in parts])
        return torch.cat([times(x_TD, part, bias) for part, bias in zip(parts, biases, strict=True)], dim=-1)


class CompactLinear(QuantizedLinear):
    """The same matrix in fewer bytes, for programs that read codes as they lie: neighbouring parts that are stored
    alike are one, codes of 4 bits lie two in a byte, and numbers are in float16 where that holds them exactly. Where
    the scales of its parts `as_they_lie` are in uint8 these are exponents of 2 with 127 added, and the codes E2M1.
    """

    def fill(self, parts: Sequence[Stored]) -> None:
        self.weight = None
        paired = [_paired(replace(part, steps=None)) for part in parts]  # steps: only program native reads them
        self.keep([_in_float16(Stored.joined(list(group))) for _, group in groupby(paired, key=kind_of)])

    def as_they_lie(self) -> list[Stored]:
        return super().parts()

    def parts(self) -> list[Stored]:
        return [_in_8_bits(part) if has_exponents(part) else part for part in self.as_they_lie()]


def has_exponents(part: Stored) -> bool:
    """Tell whether a part has exponents in the place of scales, and E2M1 codes."""
    return part.scales is not None and part.scales.dtype == torch.uint8


def kind_of(part: Stored) -> tuple[object, ...]:
    """Tell how rows are stored: rows of one kind can lie in one tensor."""
    return part.bits, has_exponents(part), *(getattr(part, name) is None for name in TENSORS)


def _in_8_bits(part: Stored) -> Stored:
    """Give E2M1 codes a byte each: an inverse of _paired."""
    codes = part.unpacked().codes
    assert codes is not None and part.scales is not None
    return Stored(8, codes=eights_of(codes), scales=powers_of(part.scales, 128))


def _paired(part: Stored) -> Stored:
    """Put codes of 4 bits two in a byte, as Stored has them in `halves`, and so codes of 8 bits that are E2M1 numbers
    times powers of 2: the same values.
    """
    codes, scales = part.codes, part.scales
    if codes is None or scales is None:
        return part
    if part.bits == 8 and part.minimums is None:
        if (exponents := exponents_of(scales, 128)) is None or (found := e2m1_of(codes)) is None:
            return part
        codes, scales = found, exponents
    elif part.bits != 4:
        return part
    codes_RG2B = codes.view(part.num_rows, -1, 2, GROUP // 2)
    halves = (codes_RG2B[:, :, 0] | codes_RG2B[:, :, 1] << 4).flatten(1)
    return replace(part, bits=4, codes=None, scales=scales, halves=halves)


def _in_float16(part: Stored) -> Stored:
    """Put scales and minimums into float16, each where that holds them exactly."""
    if has_exponents(part):
        return part
    numbers = {name: number for name in ("scales", "minimums") if (number := getattr(part, name)) is not None}
    halves = {name: number.half() for name, number in numbers.items()}
    exact = {name: each for name, each in halves.items() if torch.equal(each.float(), numbers[name].float())}
    return replace(part, **exact)


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
