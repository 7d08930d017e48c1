"""Blocks of GGUF files as codes: one block of each kind by hand, many at random as the gguf package reads them."""

import struct

import gguf
import numpy as np
import pytest
import torch

from tests.gguf_files import random_rows
from tokenmill.quant.stored import Stored
from tokenmill.weights.gguf.codes import decode, encode
from tokenmill.weights.gguf.header import KINDS

Kind = gguf.GGMLQuantizationType


def half(*numbers: float) -> bytes:
    return struct.pack(f"<{len(numbers)}e", *numbers)


def rows_of(*blocks: bytes) -> np.ndarray:
    return np.frombuffer(bytearray(b"".join(blocks)), np.uint8).reshape(len(blocks), -1)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_values_are_those_of_the_gguf_package(kind):
    rows = random_rows(kind, 5, 768)
    stored = decode(rows, kind)
    assert torch.equal(stored.values(), torch.from_numpy(gguf.dequantize(rows, kind)))
    assert stored.unpacked().codes.int().max() < 1 << stored.bits
    assert (stored.minimums is not None) == (kind.name[:4] in ("Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K"))
    assert [stored.factors is not None, stored.bits == 6] == [kind in (Kind.Q3_K, Kind.Q6_K)] * 2
    assert (stored.halves is not None) == (kind in (Kind.Q4_0, Kind.Q4_1))
    assert stored.scales.shape == (5, 24)


def test_every_exponent_of_mxfp4():
    """The smallest are denormal numbers, the largest are no half floats."""
    rows = np.concatenate([np.array([[e] + [0x10 * (e % 16) + 5] * 16], np.uint8) for e in range(252)])
    assert torch.equal(decode(rows, Kind.MXFP4).values(), torch.from_numpy(gguf.dequantize(rows, Kind.MXFP4)))


NIBBLES = bytes(range(16, 32))  # low halves 0 … 15, then high halves that are all 1


def test_one_block_of_each_kind_by_hand():
    ramp, ones = list(range(16)), [1] * 16
    q4_0 = decode(rows_of(half(0.5) + NIBBLES), Kind.Q4_0)
    assert q4_0.values()[0].tolist() == [(code - 8) * 0.5 for code in ramp + ones]
    q4_1 = decode(rows_of(half(0.5, -3.0) + NIBBLES), Kind.Q4_1)
    assert q4_1.values()[0].tolist() == [code * 0.5 - 3.0 for code in ramp + ones]
    high = struct.pack("<I", 0x80000001)  # of the first number and the last
    q5_0 = decode(rows_of(half(2.0) + high + NIBBLES), Kind.Q5_0)
    codes = [16, *ramp[1:], *ones[:-1], 17]
    assert q5_0.values()[0].tolist() == [(code - 16) * 2.0 for code in codes]
    assert q5_0.codes[0].tolist() == codes and q5_0.minimums[0].tolist() == [-32.0]
    numbers = [-128, -1, 0, 1, 127, *range(27)]
    q8_0 = decode(rows_of(half(0.25) + struct.pack("<32b", *numbers)), Kind.Q8_0)
    assert q8_0.codes[0].tolist() == [number + 128 for number in numbers]
    assert q8_0.values()[0].tolist() == [number * 0.25 for number in numbers]


def test_a_block_of_256_by_hand():
    """Scales and minimums of 6 bits: the first four whole, the others in two parts."""
    small = [1, 2, 3, 63, 17, 34, 51, 62]  # scales: 17 is 1 and 1 above it, 62 is 14 and 3
    least = [5, 6, 7, 8, 33, 18, 3, 48]
    first = [small[i] | small[4 + i] >> 4 << 6 for i in range(4)]
    second = [least[i] | least[4 + i] >> 4 << 6 for i in range(4)]
    third = [small[4 + i] & 15 | (least[4 + i] & 15) << 4 for i in range(4)]
    nibbles = bytes([0x21] * 32 + [0x43] * 32 + [0x65] * 32 + [0x87] * 32)
    stored = decode(rows_of(half(0.5, 0.25) + bytes(first + second + third) + nibbles), Kind.Q4_K)
    assert stored.scales[0].tolist() == [0.5 * number for number in small]
    assert stored.minimums[0].tolist() == [-0.25 * number for number in least]
    assert stored.codes[0].tolist() == [code for code in range(1, 9) for _ in range(32)]
    assert stored.values()[0, ::32].tolist() == [
        c * 0.5 * s - 0.25 * m for c, s, m in zip(range(1, 9), small, least, strict=True)
    ]


def test_blocks_of_6_bits_by_hand():
    """Codes from nibbles and high bits, a factor of one byte for each 16 numbers."""
    nibbles = bytes([0x21] * 32 + [0x43] * 32 + [0] * 64)  # 1 and 3 are those of the first 64 numbers
    high = bytes([0b11100100] * 32 + [0] * 32)
    factors = struct.pack("<16b", *range(-8, 8))
    stored = decode(rows_of(nibbles + high + factors + half(0.5)), Kind.Q6_K)
    codes = [code for code in (1, 16 + 3, 32 + 2, 48 + 4) for _ in range(32)] + [0] * 128
    assert stored.codes[0].tolist() == codes and stored.factors[0].tolist() == list(range(-8, 8))
    assert stored.values()[0].tolist() == [(code - 32) * (i // 16 - 8) * 0.5 for i, code in enumerate(codes)]


@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q4_1, Kind.Q8_0], ids=lambda kind: kind.name)
def test_encoding_undoes_decoding(kind):
    rows = random_rows(kind, 5, 96)
    found = encode(decode(rows, kind), kind)
    assert found.dtype == torch.uint8 and np.array_equal(found.numpy(), rows)


def codes_of(minimums: torch.Tensor | None = None, scale: float = 0.5) -> Stored:
    return Stored(4, None, torch.zeros(2, 64, dtype=torch.uint8), torch.full((2, 2), scale), minimums)


def test_codes_of_another_grid_are_not_encoded():
    with pytest.raises(AssertionError, match="codes of another grid than Q4_0"):
        encode(codes_of(torch.ones(2, 2)), Kind.Q4_0)
    with pytest.raises(AssertionError, match="codes of another grid than Q4_1"):
        encode(codes_of(), Kind.Q4_1)
    with pytest.raises(AssertionError, match="scales and minimums are half floats"):
        encode(codes_of(scale=0.1), Kind.Q4_0)
    assert encode(codes_of(), Kind.Q4_0).shape == (2, 36)
