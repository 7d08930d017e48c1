"""The search for grids: what it finds is better than what it starts from, and the library finds the same bits."""

import pytest
import torch

from tokenmill.kernels import native_library
from tokenmill.quant.grid import GRIDS, _fit, _fit_natively, _starts, fit, round_on

needs_library = pytest.mark.skipif(
    native_library.why_not() is not None, reason=f"the library {native_library.why_not()}"
)


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
@needs_library
@pytest.mark.parametrize("build", native_library.BUILDS)
@pytest.mark.parametrize("kind", GRIDS)
@pytest.mark.parametrize("bits", [4, 8])
def test_the_library_finds_the_same_bits(build, kind, bits):
    if native_library.BUILDS.index(build) < native_library.BUILDS.index(native_library.best_build()):
        pytest.skip(f"this processor cannot run {build}")
    for num_inputs, num_rows in ((32, 1), (32, 37), (96, 16), (17, 5)):
        for numbers, weights in cases(num_inputs, num_rows):
            plain, native = (each(numbers, bits, kind, weights) for each in (_fit, lambda *a: _fit_natively(*a, build)))
            assert torch.equal(plain.scales, native.scales)
            assert torch.equal(plain.minimums, native.minimums)


@needs_library
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
