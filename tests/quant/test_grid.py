"""The search for grids: what it finds is better than what it starts from, and the library finds the same bits."""

import pytest
import torch

from tests.marks import needs_native, skip_unless_it_runs
from tokenmill.kernels import native_library
from tokenmill.quant import grid as grids
from tokenmill.quant.grid import GRIDS, Fit, _fit, _fit_natively, _starts, divisor, fit, round_on


def error(grid, numbers_CR, bits, weights_C):
    values_CR = round_on(grid, numbers_CR, bits) * grid.scales + grid.minimums
    return ((values_CR - numbers_CR).square() * weights_C[:, None]).sum(0)


def cases(num_inputs, num_rows):
    """Numbers and weights: usual ones, rows of zeros, one sign alone, equal rows, very small and very large ones."""
    torch.manual_seed(num_inputs + num_rows)
    numbers = 0.05 * torch.randn(num_inputs, num_rows)
    weights = torch.rand(num_inputs) ** 3
    with_zeros = numbers.clone()
    with_zeros[:, ::3] = 0
    yield numbers, torch.ones(num_inputs)
    yield with_zeros, weights
    yield numbers.abs() + 0.01, weights
    yield numbers[:1].expand(num_inputs, -1).contiguous(), weights
    yield numbers * 1e-7, weights
    yield numbers * 1e7, weights
    yield numbers, torch.zeros(num_inputs).index_fill_(0, torch.tensor([3]), 1.0)


@pytest.mark.slow
@needs_native
@pytest.mark.parametrize("build", native_library.BUILDS)
@pytest.mark.parametrize("kind", GRIDS)
@pytest.mark.parametrize("bits", [4, 8])
def test_the_library_finds_the_same_bits(build, kind, bits):
    skip_unless_it_runs(build)
    for num_inputs, num_rows in ((32, 1), (32, 37), (96, 16), (17, 5)):
        for numbers, weights in cases(num_inputs, num_rows):
            plain, native = (each(numbers, bits, kind, weights) for each in (_fit, lambda *a: _fit_natively(*a, build)))
            assert torch.equal(plain.scales, native.scales)
            assert torch.equal(plain.minimums, native.minimums)


@needs_native
def test_a_build_that_is_not_there_is_not_replaced_by_another():
    with pytest.raises(AssertionError):
        _fit_natively(torch.ones(32, 1), 4, "minimum", torch.ones(32), "none")


@pytest.mark.parametrize("kind", GRIDS)
def test_no_start_is_better_than_what_is_found(kind):
    for numbers, weights in cases(32, 37):
        found = error(fit(numbers, 4, kind, weights), numbers, 4, weights)
        for start in _starts(numbers, 4, kind):
            assert (found <= error(start, numbers, 4, weights) * 1.00001).all()


def test_the_kinds_are_what_they_say():
    numbers, weights = next(iter(cases(32, 37)))
    symmetric, with_zero = (fit(numbers, 4, kind, weights) for kind in ("symmetric", "zero_point"))
    assert torch.equal(symmetric.minimums, -8 * symmetric.scales)
    zeros = -with_zero.minimums / with_zero.scales
    assert torch.allclose(zeros, zeros.round(), atol=1e-5)
    assert zeros.min() >= 1 - 1e-5 and zeros.max() <= 15 + 1e-5


def test_weights_of_zero_count_as_equal_ones():
    numbers = torch.randn(32, 5)
    for a, b in zip(fit(numbers, 4, weights_C=torch.zeros(32)), fit(numbers, 4), strict=True):
        assert torch.equal(a, b)


@needs_native
@pytest.mark.parametrize("kind", GRIDS)
@pytest.mark.parametrize("bits", [4, 8])
def test_the_plain_form_and_the_library_agree_on_a_few(bits, kind):
    for number, (numbers, weights) in enumerate(cases(17, 5)):
        if number in (1, 3, 5):
            plain, native = _fit(numbers, bits, kind, weights), _fit_natively(numbers, bits, kind, weights)
            assert torch.equal(plain.scales, native.scales) and torch.equal(plain.minimums, native.minimums)


def test_without_the_library_the_plain_form_searches(monkeypatch):
    numbers, weights = next(iter(cases(17, 5)))
    asked, plain = [], grids._fit
    monkeypatch.setattr(grids, "_fit", lambda *given: asked.append(given) or plain(*given))
    monkeypatch.setattr(native_library, "is_usable", lambda: False)
    found = fit(numbers, 4, "symmetric", weights)
    assert [given[1:3] for given in asked] == [(4, "symmetric")]
    assert torch.equal(found.minimums, -8 * found.scales)


def test_a_grid_of_another_kind_is_refused():
    with pytest.raises(AssertionError, match="hexagonal"):
        fit(torch.ones(2, 1), 4, "hexagonal")


def as_lists(starts):
    return [(float(start.scales), float(start.minimums)) for start in starts]


def halves(*numbers):
    return torch.tensor(numbers).half().float().tolist()


def test_starts_cut_off_either_end_of_the_range():
    """The numbers go from -1 to 2: a range of 3, cut by 0, 0.18 and 0.36 at the low end and at the high end."""
    found = as_lists(_starts(torch.tensor([[-1.0], [2.0], [0.5]]), 4, "minimum"))
    widths = halves(*(round(3 - low - high, 2) / 15 for low in (0, 0.18, 0.36) for high in (0, 0.18, 0.36)))
    assert [scale for scale, _ in found] == pytest.approx(widths, rel=1e-3)
    assert [minimum for _, minimum in found] == [low for low in halves(-1, -0.82, -0.64) for _ in range(3)]


def test_starts_with_a_zero_among_their_levels():
    """The zero is a code from 1 to 15, whatever the signs of the numbers are."""
    for numbers, scale, zero in (((-1.0, 2.0), 0.2, 5), ((1.0, 3.0), 0.2, 1), ((-3.0, -1.5), 0.2, 15)):
        first = as_lists(_starts(torch.tensor(numbers)[:, None], 4, "zero_point"))[0]
        assert first == (halves(scale)[0], pytest.approx(-zero * halves(scale)[0]))


def test_starts_around_the_middle():
    """The lowest code is the farthest from the middle, so the larger end is there; of equal ends the higher one."""
    for numbers, sign in (((-1.0, 2.0), -1), ((-2.0, 1.0), 1), ((-2.0, 2.0), -1)):
        found = as_lists(_starts(torch.tensor(numbers)[:, None], 4, "symmetric"))
        scales = halves(*(sign * 2 * factor / 8 for factor in (1.0, 0.94, 0.88, 0.82, 0.76)))
        assert found == [(scale, -8 * scale) for scale in scales]
    (scale, minimum), *_ = as_lists(_starts(torch.tensor([[-1.0], [0.5]]), 8, "symmetric"))
    assert (scale, minimum) == (1 / 128, -1.0)


def test_numbers_on_a_grid_are_found_exactly():
    codes = torch.tensor([0.0, 3, 7, 8, 15, 1])[:, None]
    assert [each.tolist() for each in _fit(codes * 0.5 - 2, 4, "minimum", torch.ones(6))] == [[0.5], [-2.0]]
    assert [each.tolist() for each in _fit(codes * 0.5 - 1.5, 4, "zero_point", torch.ones(6))] == [[0.5], [-1.5]]


def test_numbers_beyond_half_floats():
    (largest,) = _fit(torch.tensor([[-1e9], [0.0]]), 4, "minimum", torch.ones(2)).minimums.tolist()
    assert largest == -65504.0


def test_codes_are_the_nearest_levels_within_the_bits():
    numbers = torch.tensor([-9.0, -1.0, -0.76, 0.0, 6.4, 99.0])
    assert round_on(Fit(torch.tensor(0.5), torch.tensor(-1.0)), numbers, 4).tolist() == [0, 0, 0, 2, 15, 15]
    assert round_on(Fit(torch.tensor(0.5), torch.tensor(-1.0)), numbers, 8).tolist() == [0, 0, 0, 2, 15, 200]
    assert round_on(Fit(torch.tensor(0.0), torch.tensor(1.0)), torch.tensor([1.0, 4.0]), 4).tolist() == [0, 3]
    assert divisor(torch.tensor([0.0, 2.0, -3.0])).tolist() == [1.0, 2.0, -3.0]


@pytest.mark.parametrize("kind", GRIDS)
def test_weights_count_beside_each_other(kind):
    """All of them a million times smaller, by a power of two so that nothing is rounded, give the same grid."""
    numbers, weights = next(iter(cases(17, 5)))
    for usual, small in zip(*(_fit(numbers, 4, kind, weights * 2.0**power) for power in (0, -20)), strict=True):
        assert torch.equal(usual, small)
