"""Quantised blocks of GGUF files as codes, scales and minimums, without rounding again, and back.

Blocks of 32 numbers: Q4_0 [d, 16 bytes], Q4_1 [d, m, 16 bytes], Q5_0 [d, 32 high bits, 16 bytes], Q5_1 [d, m, 32 high
bits, 16 bytes], Q8_0 [d, 32 bytes], IQ4_NL [d, 16 bytes], MXFP4 [exponent, 16 bytes], where d is the scale, m the
minimum, and the low halves of the 16 bytes are the first 16 numbers. Q5_0 becomes a grid with minimums, and the codes
of IQ4_NL and MXFP4 become codes of 8 bits.

Blocks of 256 numbers: Q4_K and Q5_K have eight groups, whose scales and minimums are integers of 6 bits times d and
dmin; Q3_K and Q6_K have sixteen groups, whose scales are integers times d; IQ4_XS has eight groups, whose scales are
integers of 6 bits times d, and codes that name one of 16 numbers; TQ1_0 and TQ2_0 have -1, 0 and 1 times d. IQ1_S,
IQ2_XXS, IQ3_XXS and IQ3_S have numbers of a grid, with a scale for each 32 of them
(https://github.com/ggml-org/llama.cpp/blob/master/ggml/src/ggml-common.h).
"""

from collections.abc import Callable
from dataclasses import replace

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tokenmill.quant.schemes import GROUP
from tokenmill.quant.stored import Stored
from tokenmill.weights.codes.floating_tensors import stored_mxfp4

KIND = gguf.GGMLQuantizationType
BLOCK = 256  # numbers of the larger blocks
NUMBERS_OF_IQ4 = (torch.tensor(gguf.quants.IQ4_NL.kvalues) + 128).to(torch.uint8)
"""The numbers that codes of four bits may name, as codes of 8 bits, from -127 to 113."""


def decode(rows: NDArray[np.uint8], kind: gguf.GGMLQuantizationType) -> Stored:
    """Turn [R, bytes of a row] into R rows of codes."""
    blocks_RGB = torch.from_numpy(rows).reshape(len(rows), -1, gguf.GGML_QUANT_SIZES[kind][1])
    return _DECODERS[kind](blocks_RGB)


def encode(stored: Stored, kind: gguf.GGMLQuantizationType) -> Tensor:
    """Store R rows of codes as Q4_0, Q4_1 or Q8_0: [R, bytes of a row]. The inverse of decode."""
    stored = stored.unpacked()
    assert stored.codes is not None and stored.scales is not None
    assert (stored.minimums is not None) == (kind == KIND.Q4_1), f"codes of another grid than {kind.name}"
    codes_RGC = stored.codes.view(stored.num_rows, -1, GROUP)
    numbers = [_half_bytes(each) for each in (stored.scales, stored.minimums) if each is not None]
    half = GROUP // 2
    codes = codes_RGC ^ 128 if kind == KIND.Q8_0 else codes_RGC[..., :half] | codes_RGC[..., half:] << 4
    return torch.cat([*numbers, codes], -1).flatten(1)


def _half_bytes(numbers_RG: Tensor) -> Tensor:
    """Return [R, G, 2] uint8: the inverse of _half_floats."""
    halves_RG = numbers_RG.half()
    assert torch.equal(halves_RG.float(), numbers_RG), "scales and minimums are half floats"
    return halves_RG.contiguous().view(torch.uint8).view(*numbers_RG.shape, 2)


def _q8_0(blocks_RGB: Tensor) -> Stored:
    return _stored_codes(8, blocks_RGB[:, :, 2:] ^ 128, _half_floats(blocks_RGB, 0))  # from -128 … 127 to 0 … 255


def _q4_0(blocks_RGB: Tensor) -> Stored:
    return Stored(4, scales=_half_floats(blocks_RGB, 0), halves=blocks_RGB[:, :, 2:].flatten(1))


def _q4_1(blocks_RGB: Tensor) -> Stored:
    scales, minimums = _half_floats(blocks_RGB, 0), _half_floats(blocks_RGB, 2)
    return Stored(4, scales=scales, minimums=minimums, halves=blocks_RGB[:, :, 4:].flatten(1))


def _q5_0(blocks_RGB: Tensor) -> Stored:
    scales = _half_floats(blocks_RGB, 0)
    return _stored_codes(5, _five_bits(blocks_RGB, 2), scales, -16 * scales)


def _q5_1(blocks_RGB: Tensor) -> Stored:
    return _stored_codes(5, _five_bits(blocks_RGB, 4), _half_floats(blocks_RGB, 0), _half_floats(blocks_RGB, 2))


def _iq4_nl(blocks_RGB: Tensor) -> Stored:
    return _stored_codes(8, NUMBERS_OF_IQ4[_nibbles(blocks_RGB[:, :, 2:]).int()], _half_floats(blocks_RGB, 0))


def _mxfp4(blocks_RGB: Tensor) -> Stored:
    return stored_mxfp4(_nibbles(blocks_RGB[:, :, 1:]), blocks_RGB[:, :, 0])


def _five_bits(blocks_RGB: Tensor, at: int) -> Tensor:
    """Read codes of 5 bits: 32 high bits from that byte on, then 16 bytes of nibbles."""
    high = torch.from_numpy(np.unpackbits(blocks_RGB[:, :, at : at + 4].numpy(), axis=-1, bitorder="little"))
    return _nibbles(blocks_RGB[:, :, at + 4 :]) + (high << 4)


def _q4_k(blocks_RGB: Tensor) -> Stored:
    """Read d, dmin, 12 bytes of 6-bit integers, 128 bytes of nibbles: 64 numbers from each 32, low halves first."""
    codes = _nibbles(_split(blocks_RGB[:, :, 16:], 4, GROUP))
    return replace(_stored_codes(4, codes, *_scales_and_minimums(blocks_RGB)), steps=_steps(blocks_RGB))


def _q5_k(blocks_RGB: Tensor) -> Stored:
    """Read Q5_K, which is Q4_K with 32 bytes before the nibbles: bit i of each is the high bit of group i."""
    codes = _split(_nibbles(_split(blocks_RGB[:, :, 48:], 4, GROUP)), 2, GROUP).flatten(2, 3)
    codes = codes | _fields(blocks_RGB[:, :, 16:48], 1) << 4
    return replace(_stored_codes(5, codes, *_scales_and_minimums(blocks_RGB)), steps=_steps(blocks_RGB))


def _q6_k(blocks_RGB: Tensor) -> Stored:
    """Read 128 bytes of nibbles, 64 of two high bits, 16 factors, d. Each half of a block has 64 bytes of nibbles, the
    low halves first, and 32 bytes of high bits, the lowest first.
    """
    low = _split(_nibbles(_split(blocks_RGB[:, :, :128], 2, 64)), 4, GROUP)
    codes = low | _fields(_split(blocks_RGB[:, :, 128:192], 2, GROUP), 2) << 4
    return _with_factors(codes, blocks_RGB[:, :, 192:208].contiguous().view(torch.int8), _half_floats(blocks_RGB, 208))


def _q3_k(blocks_RGB: Tensor) -> Stored:
    """Read 32 bytes of high bits, 64 of two low bits, 12 of 6-bit factors, d. Bit i of a high byte: group i."""
    low = _fields(_split(blocks_RGB[:, :, 32:96], 2, GROUP), 2).flatten(2, 3)
    high = _fields(blocks_RGB[:, :, :32], 1)
    scales = blocks_RGB[:, :, 96:108]
    factors = _nibbles(scales[:, :, :8]) | _fields(scales[:, :, 8:], 2).flatten(2) << 4
    codes = (low | high << 2) + 28  # zero is 4 of 8, and 32 of 64
    return _with_factors(codes, factors.to(torch.int8) - 32, _half_floats(blocks_RGB, 108))


def _iq4_xs(blocks_RGB: Tensor) -> Stored:
    """Read d, two bytes of the high bits of scales, four of their low bits, 16 bytes of nibbles for each group."""
    high = _fields(blocks_RGB[:, :, 2:4, None], 2).flatten(2)
    factors = blocks_RGB[:, :, 4:8, None] >> torch.tensor([0, 4], dtype=torch.uint8) & 15 | _split(high, 4, 2) << 4
    codes = NUMBERS_OF_IQ4[_nibbles(_split(blocks_RGB[:, :, 8:], 8, 16)).int()]
    return _stored_codes(8, codes, _half_floats(blocks_RGB, 0)[..., None] * (factors.flatten(2).float() - 32))


def _tq1_0(blocks_RGB: Tensor) -> Stored:
    """Read 48 bytes of five digits of base 3 each, 4 bytes of four, d. First digits of 32 (16, 4) bytes come first.

    A byte is 256 / 243 of the number that its digits say, rounded up, so that the product with a power of 3 begins with
    a digit.
    """
    parts = ((blocks_RGB[:, :, :32], 5), (blocks_RGB[:, :, 32:48], 5), (blocks_RGB[:, :, 48:52], 4))
    digits = [_shifted(part, count).flatten(2) for part, count in parts]
    codes = (torch.cat(digits, -1).int() * 3 >> 8).to(torch.uint8) + 7
    return _ternary(codes, _half_floats(blocks_RGB, 52))


def _tq2_0(blocks_RGB: Tensor) -> Stored:
    """Read 64 bytes of four numbers of two bits, d. The lowest bits of 32 bytes come first."""
    codes = _fields(_split(blocks_RGB[:, :, :64], 2, GROUP), 2) + 7
    return _ternary(codes, _half_floats(blocks_RGB, 64))


def _iq2_xxs(blocks_RGB: Tensor) -> Stored:
    """Read d; for each group four bytes of numbers in the grid, and four of signs and, in the highest bits, a scale."""
    factors = blocks_RGB[:, :, 9::8] >> 4
    return _of_grid(blocks_RGB, KIND.IQ2_XXS, slice(9, None, 8), 0x0F, 8, (factors.float() + 0.5) * 0.25)


def _iq3_xxs(blocks_RGB: Tensor) -> Stored:
    """Read d, 64 bytes of numbers in the grid, four bytes for each group of signs and of a scale, as in IQ2_XXS."""
    factors = blocks_RGB[:, :, 69::4] >> 4
    return _of_grid(blocks_RGB, KIND.IQ3_XXS, slice(69, None, 4), 0x0F, 4, (factors.float() + 0.5) * 0.5)


def _iq3_s(blocks_RGB: Tensor) -> Stored:
    """Read d, 64 bytes of numbers in the grid, 8 of their high bits, 32 of signs, 4 of scales of 4 bits."""
    scales = blocks_RGB[:, :, 106:, None] >> torch.tensor([0, 4], dtype=torch.uint8) & 15
    return _of_grid(blocks_RGB, KIND.IQ3_S, slice(106, None), 0, 1, scales.flatten(2).float() * 2 + 1)


def _iq1_s(blocks_RGB: Tensor) -> Stored:
    """Read d, 32 bytes of numbers in the grid; for each group two bytes of their high bits, three bits of a scale and
    one that says whether an eighth is added or taken away. Codes are eighths.
    """
    factors = blocks_RGB[:, :, 35::2] >> 4 & 7
    return _of_grid(blocks_RGB, KIND.IQ1_S, slice(35, None, 2), 0x8F, 8, (factors.float() * 2 + 1) * 0.125)


def _of_grid(
    blocks_RGB: Tensor, kind: gguf.GGMLQuantizationType, scales: slice, kept: int, unit: int, factors_RGS: Tensor
) -> Stored:
    """Make codes of 8 bits of the numbers that a type looks up in its grid: of the same blocks with d = 1 and the least
    scales, whose values are integers over `unit`. scales: the bytes of scales, of which the bits in `kept` are others.
    """
    plain = blocks_RGB.clone()
    plain[:, :, :2] = torch.tensor([0, 0x3C], dtype=torch.uint8)  # 1 as a half float
    plain[:, :, scales] &= kept
    values = torch.from_numpy(gguf.dequantize(plain.flatten(1).numpy(), kind))
    return _stored_codes(8, (values * unit + 128).to(torch.uint8), _half_floats(blocks_RGB, 0)[..., None] * factors_RGS)


def _scales_and_minimums(blocks_RGB: Tensor) -> tuple[Tensor, Tensor]:
    """Read the scales and minimums of Q4_K and Q5_K. Of the 12 bytes, four hold the first four scales, four the first
    four minimums, in their low 6 bits. The other scales and minimums have their low 4 bits in the last four bytes, and
    their high 2 bits in the high bits of the first eight.
    """
    first, second, third = blocks_RGB[:, :, 4:8], blocks_RGB[:, :, 8:12], blocks_RGB[:, :, 12:16]
    scales = torch.cat([first & 63, third & 15 | first >> 6 << 4], -1)
    minimums = torch.cat([second & 63, third >> 4 | second >> 6 << 4], -1)
    return _half_floats(blocks_RGB, 0)[..., None] * scales, -_half_floats(blocks_RGB, 2)[..., None] * minimums


def _steps(blocks_RGB: Tensor) -> Tensor:
    """Read d and dmin of Q4_K and Q5_K for each group, one after the other: [R, 2 · groups] float16."""
    both = blocks_RGB[:, :, :4].contiguous().view(torch.float16)
    return both.repeat_interleave(BLOCK // GROUP, 1).flatten(1)


def _split(bytes_: Tensor, *sizes: int) -> Tensor:
    return bytes_.reshape(*bytes_.shape[:-1], *sizes)


def _fields(bytes_: Tensor, bits: int) -> Tensor:
    """Turn […, n] bytes into […, 8 / bits, n] fields: the lowest bits of all bytes first."""
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8)
    return bytes_.unsqueeze(-2) >> shifts[:, None] & (1 << bits) - 1


def _shifted(bytes_: Tensor, count: int) -> Tensor:
    """Multiply […, n] bytes by 1, 3, 9 …, without the bits that exceed a byte: […, count, n]."""
    return bytes_.unsqueeze(-2) * torch.tensor([3**i for i in range(count)], dtype=torch.uint8)[:, None]


def _with_factors(codes: Tensor, factors: Tensor, d_RG: Tensor) -> Stored:
    """Make rows of 6 bits with a factor for each 16 numbers."""
    scales = d_RG.repeat_interleave(BLOCK // GROUP, 1)
    return Stored(6, codes=codes.flatten(1).contiguous(), scales=scales, factors=factors.flatten(1).contiguous())


def _ternary(codes: Tensor, d_RG: Tensor) -> Stored:
    return _stored_codes(4, codes, d_RG.repeat_interleave(BLOCK // GROUP, 1))


def _nibbles(bytes_: Tensor) -> Tensor:
    """Turn […, n] bytes into […, 2 n] codes, the low halves of the n bytes first."""
    halves = bytes_.new_empty(*bytes_.shape[:-1], 2, bytes_.shape[-1])
    torch.bitwise_and(bytes_, 15, out=halves[..., 0, :])
    torch.bitwise_right_shift(bytes_, 4, out=halves[..., 1, :])
    return halves.flatten(-2)


def _half_floats(blocks_RGB: Tensor, at: int) -> Tensor:
    """Return [R, G] float32, the half float at that byte of each block."""
    return blocks_RGB[:, :, at : at + 2].contiguous().view(torch.float16)[..., 0].float()


def _stored_codes(bits: int, codes: Tensor, scales: Tensor, minimums: Tensor | None = None) -> Stored:
    """Make rows of codes, scales and minimums, which are in the order of the numbers."""
    minimums = None if minimums is None else minimums.flatten(1)
    return Stored(bits, None, codes.flatten(1).contiguous(), scales.flatten(1), minimums)


_DECODERS: dict[gguf.GGMLQuantizationType, Callable[[Tensor], Stored]] = {
    KIND.Q4_0: _q4_0,
    KIND.Q4_1: _q4_1,
    KIND.Q5_0: _q5_0,
    KIND.Q5_1: _q5_1,
    KIND.Q8_0: _q8_0,
    KIND.IQ4_NL: _iq4_nl,
    KIND.MXFP4: _mxfp4,
    KIND.Q3_K: _q3_k,
    KIND.Q4_K: _q4_k,
    KIND.Q5_K: _q5_k,
    KIND.Q6_K: _q6_k,
    KIND.IQ4_XS: _iq4_xs,
    KIND.IQ1_S: _iq1_s,
    KIND.IQ2_XXS: _iq2_xxs,
    KIND.IQ3_XXS: _iq3_xxs,
    KIND.IQ3_S: _iq3_s,
    KIND.TQ1_0: _tq1_0,
    KIND.TQ2_0: _tq2_0,
}
