"""The largest of each row: numpy's answer, whoever gives it."""

import numpy as np
import pytest
import torch

from tokenmill.kernels import native_library
from tokenmill.sample.largest import largest, largest_allowed

BUILT = native_library.why_not() is None
SIZES = (1, 2, 15, 16, 17, 63, 64, 65, 511, 512, 513, 1024, 49157)


def answers(logits_RV: torch.Tensor) -> tuple[list[int], list[float]]:
    ids_R, values_R = largest(logits_RV)
    return [int(i) for i in ids_R], [float(v) for v in values_R]


def assert_as_numpy(logits_RV: torch.Tensor) -> None:
    table = logits_RV.float().numpy()
    ids, values = answers(logits_RV)
    expected = table.argmax(-1)
    assert ids == expected.tolist()
    np.testing.assert_array_equal(np.array(values, dtype=np.float32), table[np.arange(len(ids)), expected])


@pytest.mark.parametrize("size", SIZES)
def test_is_numpys_for_any_size(size):
    torch.manual_seed(size)
    assert_as_numpy(torch.randn(5, size))


@pytest.mark.parametrize("size", SIZES)
def test_the_first_of_equals(size):
    torch.manual_seed(size)
    assert_as_numpy(torch.randint(-3, 3, (5, size)).float())
    assert_as_numpy(torch.full((2, size), -torch.inf))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_what_is_no_number_or_infinite(size, value):
    torch.manual_seed(size)
    for place in {0, size // 2, size - 1}:
        logits_RV = torch.randn(3, size)
        logits_RV[1, place] = value
        assert_as_numpy(logits_RV)
        logits_RV[1, -1] = torch.nan  # a second one, behind
        assert_as_numpy(logits_RV)


def test_rows_that_the_library_does_not_take():
    wide = torch.randn(6, 64)
    assert_as_numpy(wide[::2])
    assert_as_numpy(wide.bfloat16())
    assert answers(wide[:0]) == ([], [])


@pytest.mark.skipif(not BUILT, reason="the library was not built")
def test_the_library_is_asked_where_there_is_one():
    assert isinstance(largest(torch.zeros(1, 8))[0], list)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_largest_that_a_mask_admits(dtype):
    chance = np.random.default_rng(0)
    logits_RV = torch.from_numpy(chance.integers(-5, 5, (40, 1000)).astype(np.float32)).to(dtype)  # many are equal
    words_RW = chance.integers(-(2**31), 2**31, (40, 32), dtype=np.int64).astype(np.int32)
    words_RW[10:20] &= chance.integers(0, 2, (10, 32), dtype=np.int32)  # few are admitted
    words_RW[20] = 0
    masks = [None if number % 7 == 0 else words_W[: 20 + number % 13] for number, words_W in enumerate(words_RW)]
    ids, allowed, values = largest_allowed(logits_RV, masks)
    for number, words_W in enumerate(masks):
        logits_V = logits_RV[number].float()
        assert values[number] == logits_V.max()
        if words_W is not None:
            bits = torch.from_numpy(np.unpackbits(words_W.view(np.uint8), bitorder="little"))[:1000].bool()
            logits_V = torch.where(
                torch.cat([bits, torch.zeros(1000 - len(bits), dtype=torch.bool)]), logits_V, -torch.inf
            )
        assert (allowed[number], ids[number]) == tuple(each.item() for each in logits_V.max(dim=-1))
