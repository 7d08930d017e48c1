"""Blocks of 256 numbers of GGUF files as codes, scales and minimums, without rounding again.

Q4_K and Q5_K have eight groups, whose scales and minimums are integers of 6 bits times d and dmin; Q3_K and Q6_K have
sixteen groups, whose scales are integers times d; IQ4_XS has eight groups, whose scales are integers of 6 bits times d,
and codes that name one of 16 numbers; TQ1_0 and TQ2_0 have -1, 0 and 1 times d
(https://github.com/ggml-org/llama.cpp/blob/master/ggml/src/ggml-common.h).
"""

import torch
from torch import Tensor

from tokenmill.quant.schemes import GROUP
from tokenmill.quant.stored import Stored
from tokenmill.weights.gguf.fields import NUMBERS_OF_IQ4, half_floats, nibbles, stored_codes

BLOCK = 256


def q4_k(blocks_RGB: Tensor) -> Stored:
    """d, dmin, 12 bytes of 6-bit integers, 128 bytes of nibbles: 64 numbers from each 32 bytes, low halves first."""
    codes = nibbles(_split(blocks_RGB[:, :, 16:], 4, GROUP))
    return stored_codes(4, codes, *_scales_and_minimums(blocks_RGB))


def q5_k(blocks_RGB: Tensor) -> Stored:
    """As Q4_K, with 32 bytes before the nibbles: bit i of them is the high bit of group i."""
    codes = _split(nibbles(_split(blocks_RGB[:, :, 48:], 4, GROUP)), 2, GROUP).flatten(2, 3)
    codes = codes | _fields(blocks_RGB[:, :, 16:48], 1) << 4
    return stored_codes(5, codes, *_scales_and_minimums(blocks_RGB))


def q6_k(blocks_RGB: Tensor) -> Stored:
    """128 bytes of nibbles, 64 of two high bits, 16 factors, d. Each half of a block has 64 bytes of nibbles, the low
    halves first, and 32 bytes of high bits, the lowest first.
    """
    low = _split(nibbles(_split(blocks_RGB[:, :, :128], 2, 64)), 4, GROUP)
    codes = low | _fields(_split(blocks_RGB[:, :, 128:192], 2, GROUP), 2) << 4
    return _with_factors(codes, blocks_RGB[:, :, 192:208].contiguous().view(torch.int8), half_floats(blocks_RGB, 208))


def q3_k(blocks_RGB: Tensor) -> Stored:
    """32 bytes of high bits, 64 of two low bits, 12 bytes of 6-bit factors, d. Bit i of a high byte: group i."""
    low = _fields(_split(blocks_RGB[:, :, 32:96], 2, GROUP), 2).flatten(2, 3)
    high = _fields(blocks_RGB[:, :, :32], 1)
    scales = blocks_RGB[:, :, 96:108]
    factors = nibbles(scales[:, :, :8]) | _fields(scales[:, :, 8:], 2).flatten(2) << 4
    codes = (low | high << 2) + 28  # zero is 4 of 8, and 32 of 64
    return _with_factors(codes, factors.to(torch.int8) - 32, half_floats(blocks_RGB, 108))


def iq4_xs(blocks_RGB: Tensor) -> Stored:
    """d, two bytes of the high bits of the scales, four of their low bits, 16 bytes of nibbles for each group."""
    high = _fields(blocks_RGB[:, :, 2:4, None], 2).flatten(2)
    factors = blocks_RGB[:, :, 4:8, None] >> torch.tensor([0, 4], dtype=torch.uint8) & 15 | _split(high, 4, 2) << 4
    codes = NUMBERS_OF_IQ4[nibbles(_split(blocks_RGB[:, :, 8:], 8, 16)).int()]
    return stored_codes(8, codes, half_floats(blocks_RGB, 0)[..., None] * (factors.flatten(2).float() - 32))


def tq1_0(blocks_RGB: Tensor) -> Stored:
    """48 bytes of five digits of base 3 each, 4 bytes of four, d. The first digits of 32 (16, 4) bytes come first.

    A byte is 256 / 243 of the number that its digits say, rounded up, so that the product with a power of 3 begins with
    a digit.
    """
    parts = ((blocks_RGB[:, :, :32], 5), (blocks_RGB[:, :, 32:48], 5), (blocks_RGB[:, :, 48:52], 4))
    digits = [_shifted(part, count).flatten(2) for part, count in parts]
    codes = (torch.cat(digits, -1).int() * 3 >> 8).to(torch.uint8) + 7
    return _ternary(codes, half_floats(blocks_RGB, 52))


def tq2_0(blocks_RGB: Tensor) -> Stored:
    """64 bytes of four numbers of two bits, d. The lowest bits of 32 bytes come first."""
    codes = _fields(_split(blocks_RGB[:, :, :64], 2, GROUP), 2) + 7
    return _ternary(codes, half_floats(blocks_RGB, 64))


def _scales_and_minimums(blocks_RGB: Tensor) -> tuple[Tensor, Tensor]:
    """Of the 12 bytes, four hold the first four scales, four the first four minimums, in their low 6 bits. The other
    scales and minimums have their low 4 bits in the last four bytes, and their high 2 bits above those of the first.
    """
    first, second, third = blocks_RGB[:, :, 4:8], blocks_RGB[:, :, 8:12], blocks_RGB[:, :, 12:16]
    scales = torch.cat([first & 63, third & 15 | first >> 6 << 4], -1)
    minimums = torch.cat([second & 63, third >> 4 | second >> 6 << 4], -1)
    return half_floats(blocks_RGB, 0)[..., None] * scales, -half_floats(blocks_RGB, 2)[..., None] * minimums


def _split(bytes_: Tensor, *sizes: int) -> Tensor:
    """[…, n] → […, *sizes]."""
    return bytes_.reshape(*bytes_.shape[:-1], *sizes)


def _fields(bytes_: Tensor, bits: int) -> Tensor:
    """[…, n] → […, 8 / bits, n]: the lowest bits of all bytes first."""
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8)
    return bytes_.unsqueeze(-2) >> shifts[:, None] & (1 << bits) - 1


def _shifted(bytes_: Tensor, count: int) -> Tensor:
    """[…, n] → […, count, n]: the bytes times 1, 3, 9 …, without what exceeds a byte."""
    return bytes_.unsqueeze(-2) * torch.tensor([3**i for i in range(count)], dtype=torch.uint8)[:, None]


def _with_factors(codes: Tensor, factors: Tensor, d_RG: Tensor) -> Stored:
    """Codes of 6 bits with a factor for each 16 numbers."""
    scales = d_RG.repeat_interleave(BLOCK // GROUP, 1)
    return Stored(6, codes=codes.flatten(1).contiguous(), scales=scales, factors=factors.flatten(1).contiguous())


def _ternary(codes: Tensor, d_RG: Tensor) -> Stored:
    return stored_codes(4, codes, d_RG.repeat_interleave(BLOCK // GROUP, 1))
