"""Tensors out of one allocation: where each begins, that it is zero, and how much was handed out."""

import pytest
import torch

from tokenmill.memory import arena as module
from tokenmill.memory.arena import ALIGNMENT, Arena, unreserved


def test_tensors_lie_one_after_the_other_at_cache_lines():
    arena = Arena(4 + 12 + 128, 3)
    assert arena.used == 0 and arena.bytes.shape == (0,)
    first = arena.zeros((2, 2), torch.uint8)
    assert (first.shape, first.dtype, first.tolist(), arena.used) == ((2, 2), torch.uint8, [[0, 0], [0, 0]], 64)
    second = arena.zeros((3,), torch.float32)
    assert (second.data_ptr() - first.data_ptr(), arena.used) == (64, 128)
    third = arena.zeros((16, 4), torch.bfloat16)
    assert (third.data_ptr() - first.data_ptr(), arena.used) == (128, 256)
    assert first.data_ptr() % ALIGNMENT == 0


def test_what_is_written_to_the_tensors_is_in_the_bytes():
    arena = Arena(100, 2)
    arena.zeros((3,), torch.uint8).fill_(7)
    arena.zeros((1,), torch.int16).fill_(0x0201)
    assert arena.bytes.dtype == torch.uint8
    assert arena.bytes.tolist() == [7, 7, 7, *[0] * 61, 1, 2, *[0] * 62]


def test_tensors_share_no_storage():
    """torch.compile takes tensors of one storage for overlapping."""
    arena = Arena(100, 2)
    one, two = arena.zeros((4,), torch.uint8), arena.zeros((4,), torch.uint8)
    assert one.untyped_storage().data_ptr() != two.untyped_storage().data_ptr()


def test_an_empty_tensor_takes_nothing():
    arena = Arena(10)
    assert arena.zeros((0, 5), torch.float16).shape == (0, 5)
    assert arena.used == 0


@pytest.mark.parametrize(("num_bytes", "num_pieces"), [(1, 1), (64, 1), (1000, 1), (1000, 7)])
def test_there_is_room_for_that_many_pieces_however_they_are_cut(num_bytes, num_pieces):
    arena = Arena(num_bytes, num_pieces)
    for size in (1,) * (num_pieces - 1):
        arena.zeros((size,), torch.uint8)
    arena.zeros((num_bytes - num_pieces + 1,), torch.uint8)
    assert arena.used <= num_bytes + ALIGNMENT * num_pieces


def test_no_more_is_handed_out_than_there_is():
    """One byte and 64 for each of two ends: 129 bytes are there."""
    Arena(1).zeros((129,), torch.uint8)
    with pytest.raises(AssertionError, match="the caller reserved room for all tensors"):
        Arena(1).zeros((130,), torch.uint8)
    arena = Arena(1)
    arena.zeros((65,), torch.uint8)
    with pytest.raises(AssertionError, match="the caller reserved room"):
        arena.zeros((2,), torch.uint8)


def test_how_much_memory_is_asked_for(monkeypatch):
    asked, pages = [], module.map_pages

    def record(num_bytes, reserved):
        asked.append((num_bytes, reserved))
        return pages(num_bytes, reserved)

    monkeypatch.setattr(module, "map_pages", record)
    Arena(1000, 3)
    Arena(1000)
    Arena(10, 1, reserved=False)
    unreserved(10, 2)
    assert asked == [(1000 + 4 * 64, True), (1000 + 2 * 64, True), (10 + 2 * 64, False), (10 + 3 * 64, False)]
