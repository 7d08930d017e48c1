"""The largest of each row: numpy's answer, whoever gives it."""

import numpy as np
import pytest
import torch

from tokenmill.kernels import native_library
from tokenmill.sample.native import largest

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
