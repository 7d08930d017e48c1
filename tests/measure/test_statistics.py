"""Percentiles and spreads."""

import numpy as np
import pytest

from tokenmill.measure.statistics import Spread, percentile


@pytest.mark.parametrize("num", [1, 2, 3, 10, 101])
def test_percentiles_are_those_of_numpy(num):
    values = np.random.default_rng(num).random(num).tolist()
    for percent in (0, 1, 50, 90, 95, 99, 100):
        assert percentile(values, percent) == pytest.approx(np.percentile(values, percent))


def test_no_values_have_no_percentile_and_no_spread():
    assert percentile([], 50) is None
    with pytest.raises(ValueError, match="no values"):
        Spread.of([])


def test_a_spread_is_the_median_with_the_extremes():
    assert Spread.of([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0)
    assert Spread.of([4.0, 1.0]) == Spread(2.5, 1.0, 4.0)
    assert Spread.of([4.0, 1.0]).columns("ms") == {"ms": 2.5, "ms_min": 1.0, "ms_max": 4.0}
