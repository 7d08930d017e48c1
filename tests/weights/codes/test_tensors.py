"""Codes in their words, by hand and both ways: our own, GPTQ's and AWQ's."""

import pytest
import torch

from tokenmill.errors import CheckpointError
from tokenmill.quant.rtn import round_to_nearest
from tokenmill.quant.stored import Stored
from tokenmill.weights.codes.awq import AWQ
from tokenmill.weights.codes.gptq import GPTQ
from tokenmill.weights.codes.integer_tensors import pack_gptq, pack_own, unpack_awq, unpack_gptq, unpack_own
from tokenmill.weights.codes.own import Own
from tokenmill.weights.codes.words import stream_of, words_of


def numbers(rows: int, columns: int) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(3))


def test_words_by_hand():
    words = torch.tensor([[0x76543210, -1]], dtype=torch.int32)
    assert stream_of(words, 4).tolist() == [[0, 1, 2, 3, 4, 5, 6, 7, *[15] * 8]]
    assert stream_of(words, 8).tolist() == [[0x10, 0x32, 0x54, 0x76, *[255] * 4]]
    for bits in (4, 8):
        assert torch.equal(words_of(stream_of(words, bits), bits), words)
    square = torch.arange(4, dtype=torch.int32).reshape(2, 2)
    assert stream_of(square.t(), 8)[:, ::4].tolist() == [[0, 2], [1, 3]]


def word(*codes: int) -> int:
    """Codes of 4 bits from the low bits up, as a signed number."""
    value = sum(code << 4 * i for i, code in enumerate(codes))
    return value - (1 << 32) if value >> 31 else value


def test_gptq_by_hand():
    """Eight rows of 32 inputs: row r has the codes r, 8 + r % 8, 0, 0, …; its zero is r + 1, stored less one."""
    qweight = torch.zeros(4, 8, dtype=torch.int32)
    qweight[0] = torch.tensor([word(row, 8 + row) for row in range(8)])
    parts = {
        "qweight": qweight,
        "qzeros": torch.tensor([[word(*range(8))]], dtype=torch.int32),
        "scales": torch.full((1, 8), 0.5).half(),
        "g_idx": torch.zeros(32, dtype=torch.int32),
    }
    stored = unpack_gptq(GPTQ(4, 32, 1), parts, "x")
    values = stored.values()
    for row in range(8):
        assert values[row, :3].tolist() == [(row - row - 1) * 0.5, (8 + row - row - 1) * 0.5, (-row - 1) * 0.5]
    straight = unpack_gptq(GPTQ(4, 32), parts, "x").values()
    assert straight[3, :2].tolist() == [0.0, 4.0], "in the second format zeros are what they are"
    del parts["g_idx"]
    assert torch.equal(unpack_gptq(GPTQ(4, 32, 1), parts, "x").values(), values)


def test_a_stored_zero_of_15_is_16_and_wraps():
    """As AutoGPTQ computes: (zero + 1) & 15."""
    parts = {
        "qweight": torch.zeros(4, 8, dtype=torch.int32),
        "qzeros": torch.tensor([[word(*[15] * 8)]], dtype=torch.int32),
        "scales": torch.ones(1, 8).half(),
    }
    assert unpack_gptq(GPTQ(4, 32, 1), parts, "x").values().abs().max() == 0
    assert unpack_gptq(GPTQ(4, 32), parts, "x").values().unique().tolist() == [-15.0]


def test_awq_by_hand():
    """One input for eight outputs: the fields of a word are those of columns 0 2 4 6 1 3 5 7."""
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    qweight = torch.zeros(32, 1, dtype=torch.int32)
    qweight[0] = word(*(8 + column for column in order))
    parts = {
        "qweight": qweight,
        "qzeros": torch.tensor([[word(*order)]], dtype=torch.int32),
        "scales": (torch.arange(8) + 1.0).half()[None],
    }
    stored = unpack_awq(AWQ(4, 32), parts, "x")
    values = stored.values()
    assert values.shape == (8, 32) and stored.bits == 4
    assert values[:, 0].tolist() == [8.0 * (row + 1) for row in range(8)]
    assert values[:, 1].tolist() == [-row * (row + 1.0) for row in range(8)]


@pytest.mark.parametrize("bits", [4, 8])
def test_a_zero_in_the_middle_needs_no_minimum(bits):
    middle, fields = 1 << bits - 1, 32 // bits
    parts = {
        "qweight": torch.zeros(32 // fields, 8, dtype=torch.int32),
        "qzeros": words_of(torch.full((1, 8), middle - 1, dtype=torch.uint8), bits),
        "scales": torch.ones(1, 8).half(),
    }
    stored = unpack_gptq(GPTQ(bits, 32, 1), parts, "x")
    assert stored.minimums is None and stored.bits == bits
    assert stored.values().unique().tolist() == [-middle]
    other = unpack_gptq(GPTQ(bits, 32), parts, "x")
    assert other.values().unique().tolist() == [-(middle - 1)]
    assert bits == 8 or other.minimums.unique().tolist() == [-(middle - 1)], "8 bits hold it with their zero of 128"


@pytest.mark.parametrize("group", [32, 64])
@pytest.mark.parametrize(("bits", "grid"), [(4, "zero_point"), (4, "symmetric"), (8, "symmetric")])
def test_packing_for_gptq_is_undone_by_reading(group, bits, grid):
    stored = round_to_nearest(numbers(16, 128), bits, group, grid)
    layout = GPTQ(bits, group, 1)
    parts = pack_gptq(layout, stored, 128)
    assert {part: tuple(tensor.shape) for part, tensor in parts.items()} == layout.part_shapes(16, 128, False)
    assert [str(parts[part].dtype) for part in layout.parts] == [
        f"torch.{each}" for each in ("int32", "int32", "float16", "int32")
    ]
    again = unpack_gptq(layout, parts, "x")
    assert torch.equal(again.codes, stored.codes) and torch.equal(again.values(), stored.values())
    assert parts["g_idx"].tolist() == [column // group for column in range(128)]


def test_groups_of_zeros_have_a_zero_in_the_middle():
    stored = Stored(4, None, torch.zeros(8, 32, dtype=torch.uint8), torch.zeros(8, 1), torch.zeros(8, 1))
    parts = pack_gptq(GPTQ(4, 32, 1), stored, 32)
    assert stream_of(parts["qzeros"], 4).unique().tolist() == [7]


@pytest.mark.parametrize(("zero", "is_stored"), [(0, False), (1, True), (15, True), (16, True), (17, False)])
def test_zeros_that_gptq_can_store(zero, is_stored):
    codes, scales = torch.zeros(8, 32, dtype=torch.uint8), torch.ones(8, 1)
    stored = Stored(4, None, codes, scales, torch.full((8, 1), -float(zero)))
    if is_stored:
        assert stream_of(pack_gptq(GPTQ(4, 32, 1), stored, 32)["qzeros"], 4).unique().tolist() == [zero - 1]
    else:
        with pytest.raises(AssertionError, match="a zero that GPTQ cannot store"):
            pack_gptq(GPTQ(4, 32, 1), stored, 32)


def test_a_minimum_that_is_no_zero_times_its_scale_is_not_stored():
    codes, scales = torch.zeros(8, 32, dtype=torch.uint8), torch.ones(8, 1)
    with pytest.raises(AssertionError, match="a minimum that is no zero times its scale"):
        pack_gptq(GPTQ(4, 32, 1), Stored(4, None, codes, scales, torch.full((8, 1), -1.5)), 32)


def test_inputs_in_another_order_are_read_as_values():
    parts = {
        "qweight": torch.full((8, 8), 0x76543210, dtype=torch.int32),
        "qzeros": torch.zeros(2, 1, dtype=torch.int32),
        "scales": torch.arange(16).reshape(2, 8).half(),
        "g_idx": torch.arange(64, dtype=torch.int32) // 32,
    }
    in_order = unpack_gptq(GPTQ(4, 32, 1), parts, "x")
    assert in_order.numbers is None and in_order.num_rows == 8
    turned = unpack_gptq(GPTQ(4, 32, 1), parts | {"g_idx": parts["g_idx"].flip(0)}, "x").numbers
    assert turned[3, :3].tolist() == [-11.0, 0.0, 11.0] and turned[3, 32:35].tolist() == [-3.0, 0.0, 3.0]
    row = {key: tensor[:1] if key in ("qzeros", "scales") else tensor for key, tensor in parts.items()}
    whole = row | {"g_idx": torch.zeros(64, dtype=torch.int32)}
    assert unpack_gptq(GPTQ(4, 0, 1), whole, "x").num_rows == 8
    with pytest.raises(CheckpointError, match=r"^x.g_idx names groups that do not exist: it has 1"):
        unpack_gptq(GPTQ(4, 0, 1), whole | {"g_idx": parts["g_idx"]}, "x")


def test_our_own_by_hand():
    codes = torch.arange(64, dtype=torch.uint8).reshape(2, 32) % 16
    stored = Stored(4, None, codes, torch.full((2, 1), 0.5), torch.full((2, 1), -3.0))
    parts = pack_own(Own(4, 32), stored, 32)
    assert parts["codes"][0, :3].tolist() == [0x10, 0x32, 0x54] and parts["codes"].shape == (2, 16)
    assert (parts["scales"].dtype, parts["minimums"].dtype) == (torch.float16, torch.float16)
    again = unpack_own(Own(4, 32), parts, "x")
    assert torch.equal(again.values(), codes * 0.5 - 3.0) and again.bits == 4
    eight = Stored(8, None, codes, torch.full((2, 1), 0.5))
    parts = pack_own(Own(8, 32), eight, 30)
    assert set(parts) == {"codes", "scales"} and torch.equal(parts["codes"], codes[:, :30])
    again = unpack_own(Own(8, 32), parts, "x")
    assert (again.bits, again.minimums) == (8, None)
    assert torch.equal(again.values()[:, :30], (codes[:, :30].float() - 128) * 0.5)


def test_wide_groups_are_stored_once():
    stored = round_to_nearest(numbers(3, 160), 4, 64)
    parts = pack_own(Own(4, 64), stored, 160)
    assert parts["scales"].shape == parts["minimums"].shape == (3, 3)
    again = unpack_own(Own(4, 64), parts, "x")
    assert torch.equal(again.scales, stored.scales) and torch.equal(again.minimums, stored.minimums)
    packed = Stored(4, None, None, torch.ones(1, 1), None, torch.zeros(1, 16, dtype=torch.uint8))
    assert pack_own(Own(4, 32), packed, 32)["codes"].shape == (1, 16), "halves are unpacked before"
