"""Rows of a matrix as they are stored: what codes, scales and minimums stand for, by hand."""

import torch

from tokenmill.quant.nibbles import joined_nibbles, split_nibbles
from tokenmill.quant.stored import Stored

HALVES = torch.tensor([[16 * (i % 5) + i for i in range(16)] + [255] * 16], dtype=torch.uint8)


def test_neighbours_share_a_byte():
    """GPTQ's order: the earlier of two inputs in the low half."""
    bytes_ = joined_nibbles(torch.tensor([[1, 2, 15, 0]], dtype=torch.uint8))
    assert bytes_.tolist() == [[0x21, 0x0F]]
    assert split_nibbles(bytes_).tolist() == [[1, 2, 15, 0]]


def test_halves_are_the_first_and_the_last_sixteen_codes_of_a_group():
    """Q4_0 of GGUF has them so: the low halves of 16 bytes come first."""
    stored = Stored(4, None, None, torch.tensor([[0.5, 2.0]]), None, HALVES)
    codes = stored.unpacked()
    assert codes.halves is None
    assert codes.codes.tolist() == [[*range(16), *(i % 5 for i in range(16)), *[15] * 32]]
    assert stored.values().tolist() == codes.values().tolist()
    assert codes.values()[0, [0, 15, 16, 17, 32, 63]].tolist() == [-4.0, 3.5, -4.0, -3.5, 14.0, 14.0]


def test_what_has_bytes_is_not_unpacked():
    stored = Stored(8, None, torch.zeros(2, 32, dtype=torch.uint8), torch.ones(2, 1))
    assert stored.unpacked() is stored


def test_the_zero_is_in_the_middle_where_there_are_no_minimums():
    codes = torch.tensor([[0, 128, 255] + [129] * 29], dtype=torch.uint8)
    values = Stored(8, None, codes, torch.tensor([[0.25]])).values()
    assert values.tolist() == [[-32.0, 0.0, 31.75] + [0.25] * 29]
    codes = torch.tensor([[0, 8, 15] + [9] * 29], dtype=torch.uint8)
    assert Stored(4, None, codes, torch.tensor([[0.5]])).values()[0, :4].tolist() == [-4.0, 0.0, 3.5, 0.5]


def test_minimums_are_added():
    codes = torch.tensor([[0, 15] + [3] * 30, [1] * 32], dtype=torch.uint8)
    stored = Stored(4, None, codes, torch.tensor([[0.5], [2.0]]), torch.tensor([[-1.0], [4.0]]))
    assert stored.values()[:, :3].tolist() == [[-1.0, 6.5, 0.5], [6.0, 6.0, 6.0]]


def test_plain_rows_say_the_bits_of_their_numbers():
    numbers = torch.ones(3, 5, dtype=torch.bfloat16)
    stored = Stored.plain(numbers)
    assert (stored.bits, stored.num_rows) == (16, 3) and stored.values() is numbers
    assert Stored.plain(numbers.float()).bits == 32


def test_rows_are_counted_in_each_form():
    scales = torch.ones(4, 2)
    assert Stored(4, None, None, scales, None, torch.zeros(4, 32, dtype=torch.uint8)).num_rows == 4
    assert Stored(8, None, torch.zeros(2, 64, dtype=torch.uint8), scales[:2]).num_rows == 2


def test_groups_are_spread_over_every_32_inputs():
    """70 inputs in groups of 64: two scales of 32 each, a shorter group, and 26 codes of padding."""
    codes = torch.full((2, 70), 7, dtype=torch.uint8)
    stored = Stored.of_groups(4, codes, 64, torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[5.0, 6.0]] * 2))
    assert stored.codes.shape == (2, 96) and stored.codes.is_contiguous()
    assert stored.codes.sum(1).tolist() == [490, 490] and stored.codes[:, 70:].eq(0).all()
    assert stored.scales.tolist() == [[1.0, 1.0, 2.0], [3.0, 3.0, 4.0]]
    assert stored.minimums.tolist() == [[5.0, 5.0, 6.0]] * 2
    alone = Stored.of_groups(8, codes[:, :64], 32, torch.ones(2, 2))
    assert alone.codes.shape == (2, 64) and alone.scales.shape == (2, 2) and alone.minimums is None


def test_parts_are_joined_by_rows_and_mapped_in_each_tensor():
    codes = torch.arange(64, dtype=torch.uint8).view(2, 32)
    stored = Stored(8, None, codes, torch.tensor([[1.0], [2.0]]))
    joined = Stored.joined([stored, stored])
    assert joined.bits == 8 and joined.num_rows == 4 and joined.numbers is None and joined.minimums is None
    assert joined.scales.tolist() == [[1.0], [2.0], [1.0], [2.0]]
    assert torch.equal(joined.codes, torch.cat([codes, codes]))
    last = joined.map(lambda tensor: tensor[3:])
    assert last.bits == 8 and last.scales.tolist() == [[2.0]] and torch.equal(last.codes, codes[1:])
