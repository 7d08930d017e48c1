"""What a machine's own figures say of its peak."""

import pytest

from tokenmill.measure.machine import Limits


def limits(float32, bfloat16, int8):
    return Limits("cpu", "a processor", 2, 2, 40.0, 30.0, 160.0, 90.0, float32, bfloat16, int8)


@pytest.mark.parametrize(
    ("dtype", "integer", "peak"),
    [("float32", False, 200), ("bfloat16", False, 400), ("float16", False, 400), ("bfloat16", True, 800)],
)
def test_the_peak_is_that_of_the_numbers(dtype, integer, peak):
    assert limits(200.0, 400.0, 800.0).flop_s(dtype, integer) == 1e9 * peak


@pytest.mark.parametrize("int8", [2.0, None])
@pytest.mark.parametrize("integer", [False, True])
def test_a_processor_without_small_numbers_widens_them(integer, int8):
    """Measured on one without AVX-512: 175, 0.8 and 1.7, by which prefill was at 12,000 % of the floor."""
    assert limits(175.0, 1.0, int8).flop_s("bfloat16", integer) == 175e9
