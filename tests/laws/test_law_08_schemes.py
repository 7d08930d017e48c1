"""Law 8: rounding to codes and back stays within half a step, and rounds nothing twice."""

import pytest
import torch

from tokenmill.quant.rtn import round_to_nearest


def numbers(rows: int, columns: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("columns", [32, 67, 256])
def test_rounding_stays_within_half_a_step(bits, columns):
    """Half a step, and what rounding the scale and the minimum to half floats (11 bits) may add over their range."""
    given = numbers(37, columns)
    stored = round_to_nearest(given, bits)
    error = (stored.values()[:, :columns] - given).abs()
    steps = stored.scales.repeat_interleave(32, 1)[:, :columns]
    if bits == 8:
        assert (error <= steps * (0.5 + 127 / 2048)).all()
    else:  # the search may cut the ends of a group off where that leaves a smaller sum of squares
        plain = (given - given.mean()).pow(2).mean()
        assert error.pow(2).mean() < plain / 150  # 15 steps over about 4 deviations: (4 / 15)² / 12 is 1 / 169


def test_what_is_rounded_already_is_kept():
    stored = round_to_nearest(numbers(8, 64), 8)
    again = round_to_nearest(stored.values(), 8)
    torch.testing.assert_close(again.values(), stored.values(), rtol=2e-3, atol=0)


def test_groups_of_zeros_and_of_one_number():
    for bits in (4, 8):
        assert not round_to_nearest(torch.zeros(2, 32), bits).values().any()
        constant = round_to_nearest(torch.full((2, 32), 0.75), bits).values()
        torch.testing.assert_close(constant, torch.full((2, 32), 0.75), rtol=1e-3, atol=0)
