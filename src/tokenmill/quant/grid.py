"""Grids: the values that the codes of a group can stand for, and the search for the grid with the smallest error.

A group of inputs has `1 << bits` levels at equal distances, value = code · scale + minimum, in one of three kinds:

    minimum     any minimum, a half float: our own directories and Q4_1 of GGUF
    zero_point  minimum = -zero · scale with an integer zero from 1 to the highest code: GPTQ, whose first format stores
                zero - 1 and so has no zero of 0
    symmetric   the same with the zero in the middle: Q4_0 and Q8_0 of GGUF, and all our codes of 8 bits

Scales are half floats in each. The search starts from the range of the group, cut off at either end by several amounts,
rounds, and then fits scale and minimum to the codes by weighted least squares, as llama.cpp's k-quants do. On a CPU the
native library searches, where there is one: native/kernels/fit_grid.h, the same bits in a fiftieth of the time. Both
add numbers in the order of the inputs.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from tokenmill.kernels import native_library

GRIDS = ("minimum", "zero_point", "symmetric")  # in the order of GridKind in native/kernels/kernels.h
CUTS = (0.0, 0.06, 0.12)  # of a group's range, at either end
FACTORS = (1.0, 0.94, 0.88, 0.82, 0.76)  # of the largest value, where the zero is in the middle
REFITS = 3  # 25 starts with one refit each took as long and lost 1 % more
HALF_MAX = 65504.0


class Fit(NamedTuple):
    """Scales and minimums of groups, float32."""

    scales: Tensor
    minimums: Tensor


def round_on(grid: Fit, numbers: Tensor, bits: int) -> Tensor:
    """Find the code of the nearest level for each number, as floats. The grid broadcasts to the numbers."""
    return torch.round((numbers - grid.minimums) / divisor(grid.scales)).clamp_(0, (1 << bits) - 1)


def fit(numbers_CR: Tensor, bits: int, kind: str = "minimum", weights_C: Tensor | None = None) -> Fit:
    """Find the grid [R] with the smallest weighted squared error for a group of C inputs in each of R rows.

    numbers_CR: an input is a row of memory. weights_C: of the errors, at least 0; None for equal ones.
    """
    assert kind in GRIDS, kind
    if weights_C is None or not weights_C.any():  # a weight of 0 everywhere says nothing of a group
        weights_C = torch.ones(len(numbers_CR))
    if native_library.is_usable():
        return _fit_natively(numbers_CR.float().contiguous(), bits, kind, weights_C.float().contiguous())
    return _fit(numbers_CR, bits, kind, weights_C)


def _fit_natively(numbers_CR: Tensor, bits: int, kind: str, weights_C: Tensor, build: str = "") -> Fit:
    assert numbers_CR.is_cpu
    (num_inputs, num_rows), scratch = numbers_CR.shape, torch.empty(native_library.LANES * len(numbers_CR))
    found = Fit(torch.empty(num_rows), torch.empty(num_rows))
    pointers = (each.data_ptr() for each in (weights_C, scratch, *found))
    what = build.encode(), numbers_CR.data_ptr(), num_rows, num_inputs, bits, GRIDS.index(kind)
    assert not native_library.library().tm_fit_grid(*what, *pointers), build
    return found


def _fit(numbers_CR: Tensor, bits: int, kind: str, weights_C: Tensor) -> Fit:
    weights_C1 = weights_C[:, None]
    best: Fit | None = None
    min_error_R = torch.empty(())
    for start in _starts(numbers_CR, bits, kind):
        grid = start
        for refit in range(REFITS + 1):
            codes_CR = round_on(grid, numbers_CR, bits)
            errors_CR = (codes_CR * grid.scales).add_(grid.minimums).sub_(numbers_CR).square_()
            error_R = _total(errors_CR.mul_(weights_C1))
            if best is None:
                best, min_error_R = grid, error_R
            else:
                better_R = error_R < min_error_R
                min_error_R = torch.where(better_R, error_R, min_error_R)
                best = Fit(*(torch.where(better_R, new, old) for new, old in zip(grid, best, strict=True)))
            if refit < REFITS:
                grid = _refitted(numbers_CR, codes_CR, grid, kind, weights_C1)
    assert best is not None, "there is always a start"
    return best


def _starts(numbers_CR: Tensor, bits: int, kind: str) -> Iterator[Fit]:
    low_R, high_R = numbers_CR.amin(0), numbers_CR.amax(0)
    levels = (1 << bits) - 1
    if kind == "zero_point":  # zero is one of the levels
        low_R, high_R = low_R.clamp(max=0), high_R.clamp(min=0)
    if kind == "symmetric":
        # The lowest code is one step farther from the zero than the highest, so it goes to the larger end.
        middle = 1 << bits - 1
        largest_R = torch.where(-low_R > high_R, low_R, high_R)
        for factor in FACTORS:
            scales_R = _half(largest_R * (-factor / middle))
            yield Fit(scales_R, -middle * scales_R)
        return
    for cut_low in CUTS:
        for cut_high in CUTS:
            first_R, last_R = low_R + (high_R - low_R) * cut_low, high_R - (high_R - low_R) * cut_high
            scales_R = _half((last_R - first_R) / levels)
            yield _with_minimums(first_R, scales_R, levels, kind)


def _with_minimums(minimums_R: Tensor, scales_R: Tensor, levels: int, kind: str) -> Fit:
    """Round minimums to values that this kind of grid can have."""
    if kind == "minimum":
        return Fit(scales_R, _half(minimums_R))
    zeros_R = torch.round(-minimums_R / divisor(scales_R)).clamp_(1, levels)
    return Fit(scales_R, -zeros_R * scales_R)


def _refitted(numbers_CR: Tensor, codes_CR: Tensor, start: Fit, kind: str, weights_C1: Tensor) -> Fit:
    """Fit scale and minimum to these codes by least squares; where all codes are equal the grid stays as it is."""
    if kind != "minimum":
        zeros_R = torch.round(-start.minimums / divisor(start.scales))
        steps_CR = codes_CR - zeros_R
        weighted_CR = steps_CR * weights_C1
        square_R = _total(weighted_CR * steps_CR)
        scales_R = _half(_total(weighted_CR * numbers_CR) / divisor(square_R))
        scales_R = torch.where(square_R > 0, scales_R, start.scales)
        return Fit(scales_R, -zeros_R * scales_R)
    weighted_CR = codes_CR * weights_C1
    total = _total(weights_C1)
    sum_c, sum_cc = _total(weighted_CR), _total(weighted_CR * codes_CR)
    sum_x, sum_cx = _total(numbers_CR * weights_C1), _total(weighted_CR * numbers_CR)
    determinant_R = total * sum_cc - sum_c.square()
    usable_R = determinant_R > total * 1e-6 * sum_cc
    scales_R = (total * sum_cx - sum_c * sum_x) / divisor(determinant_R)
    minimums_R = (sum_cc * sum_x - sum_c * sum_cx) / divisor(determinant_R)
    found = _half(scales_R), _half(minimums_R)
    return Fit(*(torch.where(usable_R, new, old) for new, old in zip(found, start, strict=True)))


def _total(numbers_CR: Tensor) -> Tensor:
    """Add up over the inputs, in their order."""
    total_R = numbers_CR[0].clone()
    for numbers_R in numbers_CR[1:]:
        total_R += numbers_R
    return total_R


def _half(numbers: Tensor) -> Tensor:
    return numbers.clamp(-HALF_MAX, HALF_MAX).half().float()


def divisor(scales: Tensor) -> Tensor:
    """Replace scales of zero, which groups of zeros have, by one, to divide by them."""
    return torch.where(scales == 0, 1.0, scales)
