"""Rounding to nearest: groups by hand, the forms of GGUF, and the shapes that are padded."""

import gguf
import numpy as np
import pytest
import torch

from tokenmill.quant import rtn
from tokenmill.quant.rtn import round_to_nearest

STEPS = torch.arange(32.0).remainder(16)[None]  # 0 … 15 twice: exactly the levels of 4 bits
Q8_0 = gguf.GGMLQuantizationType.Q8_0


def random_rows(num_rows, num_inputs, seed=0):
    return torch.randn(num_rows, num_inputs, generator=torch.Generator().manual_seed(seed))


def loss(stored, numbers, weights=None):
    errors = (stored.values()[:, : numbers.shape[1]] - numbers).square()
    return float((errors if weights is None else errors * weights).sum())


def test_eight_bits_are_those_of_gguf():
    """Q8_0: a half float of the largest absolute value over 127. gguf divides by the scale before it becomes a half."""
    numbers = random_rows(7, 96)
    stored = round_to_nearest(numbers, 8)
    theirs = gguf.quantize(numbers.numpy(), Q8_0).reshape(7, 3, 34)
    scales = theirs[:, :, :2].copy().view(np.float16)[..., 0].astype(np.float32)
    codes = theirs[:, :, 2:].view(np.int8).reshape(7, 96).astype(int) + 128
    assert stored.bits == 8 and stored.minimums is None and stored.codes.dtype == torch.uint8
    assert torch.equal(stored.scales, torch.from_numpy(scales))
    differ = np.abs(stored.codes.numpy().astype(int) - codes)
    assert differ.max() <= 1 and differ.sum() <= 7


def test_the_ends_of_eight_bits():
    numbers = torch.zeros(1, 32)
    numbers[0, :4] = torch.tensor([127.0, -127.0, 63.6, -0.4])
    stored = round_to_nearest(numbers, 8)
    assert stored.codes[0, :5].tolist() == [255, 1, 192, 128, 128] and stored.scales.tolist() == [[1.0]]
    zeros = round_to_nearest(torch.zeros(1, 32), 8)
    assert zeros.scales.tolist() == [[0.0]] and zeros.codes.unique().tolist() == [128]


@pytest.mark.parametrize("quick", [True, False])
def test_levels_that_are_hit_are_kept_exactly(quick):
    stored = round_to_nearest(0.5 * STEPS - 2, 4, quick=quick)
    assert stored.codes.tolist() == STEPS.tolist()
    assert (stored.scales.tolist(), stored.minimums.tolist()) == ([[0.5]], [[-2.0]])
    flat = round_to_nearest(torch.full((1, 32), 3.0), 4, quick=quick)
    assert flat.values().tolist() == [[3.0] * 32]


def plainly(group, shrink):
    """Scale and minimum for a part of the range of a group, and the squared error, in numpy."""
    low, high = np.float32(group.min()), np.float32(group.max())
    minimum = np.float32(np.float16(low + (high - low) * np.float32(1 - shrink) / 2))
    scale = np.float32(np.float16((high - low) * np.float32(shrink) / 15))
    codes = np.clip(np.round((group - minimum) / scale), 0, 15)
    return np.square(codes * scale + minimum - group).sum(dtype=np.float64), scale, minimum, codes


def test_the_quick_way_takes_the_best_of_six_ranges():
    numbers = random_rows(60, 32, seed=3)
    numbers[:, 5] *= 3  # a value far outside, so that cutting off the ends often helps
    stored = round_to_nearest(numbers, 4, quick=True)
    chosen = set()
    for row, group in enumerate(numbers.numpy()):
        tries = [plainly(group, shrink) for shrink in (1.0, 0.97, 0.94, 0.91, 0.88, 0.85)]
        best = min(range(6), key=lambda at: tries[at][0])
        chosen.add(best)
        _, scale, minimum, codes = tries[best]
        assert (stored.scales[row, 0], stored.minimums[row, 0]) == (scale, minimum)
        assert stored.codes[row].tolist() == codes.tolist()
    assert len(chosen) > 3


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("quick", [True, False])
def test_a_row_of_any_length_is_padded(bits, quick):
    """70 inputs in groups of 64: the second group has the 6 that are left and 26 zeros."""
    numbers = random_rows(3, 70) + 3
    stored = round_to_nearest(numbers, bits, group=64, quick=quick)
    assert stored.codes.shape == (3, 96) and stored.scales.shape == (3, 3)
    assert torch.equal(stored.scales[:, 0], stored.scales[:, 1])
    assert not torch.equal(stored.scales[:, 1], stored.scales[:, 2])
    values = stored.values()
    step = stored.scales.repeat_interleave(32, 1)[:, :70]
    assert ((values[:, :70] - numbers).abs() <= 1.2 * step + (stored.bits == 4) * step).all()
    if bits == 8 or quick:  # otherwise the padding has no weight
        assert torch.allclose(values[:, 70:], torch.zeros(3, 26), atol=float(step.max()) / 2 + 1e-3)
    whole = round_to_nearest(numbers[:, :64], bits, group=64, quick=quick)
    assert torch.equal(whole.codes, stored.codes[:, :64])


@pytest.mark.parametrize(("rows", "bits"), [(1, 4), (3, 4), (3, 8)])
def test_rows_are_rounded_in_portions_that_do_not_matter(rows, bits, monkeypatch):
    numbers = random_rows(7, 64)
    whole = round_to_nearest(numbers, bits, quick=True)
    monkeypatch.setattr(rtn, "ROWS", rows)
    portions = round_to_nearest(numbers, bits, quick=True)
    assert torch.equal(whole.codes, portions.codes) and torch.equal(whole.scales, portions.scales)


def test_the_search_loses_less_than_the_quick_way():
    numbers = random_rows(20, 64)
    assert loss(round_to_nearest(numbers, 4), numbers) < loss(round_to_nearest(numbers, 4, quick=True), numbers)


@pytest.mark.parametrize("bits", [4, 8])
def test_weights_say_where_an_error_counts(bits):
    numbers, weights = random_rows(20, 96), torch.rand(96, generator=torch.Generator().manual_seed(1)) ** 4
    without, with_them = round_to_nearest(numbers, bits), round_to_nearest(numbers, bits, weights_K=weights)
    assert loss(with_them, numbers, weights) < loss(without, numbers, weights)


def test_grids_and_their_minimums():
    numbers = random_rows(4, 64)
    assert round_to_nearest(numbers, 4, grid="symmetric").minimums is None
    zeros = round_to_nearest(numbers, 4, grid="zero_point")
    steps = zeros.minimums / zeros.scales
    assert torch.allclose(steps, steps.round(), atol=1e-5)
    assert round_to_nearest(numbers, 8, grid="zero_point").minimums is None


def test_what_is_not_possible():
    numbers = random_rows(2, 64)
    with pytest.raises(AssertionError, match="every 32 inputs"):
        round_to_nearest(numbers, 4, group=48)
    with pytest.raises(AssertionError, match="only a free minimum"):
        round_to_nearest(numbers, 4, grid="symmetric", quick=True)
    assert round_to_nearest(numbers, 8, grid="symmetric", quick=True).bits == 8
