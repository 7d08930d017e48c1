"""Grids: the values that the codes of a group can stand for, and the search for the grid that loses least.

A group of inputs has `1 << bits` levels at equal distances, value = code · scale + minimum, in one of three kinds:

    minimum     any minimum, a half float: our own directories and Q4_1 of GGUF
    zero_point  minimum = -zero · scale with an integer zero from 1 to the highest code: GPTQ, whose first format stores
                zero - 1 and so has no zero of 0
    symmetric   the same with the zero in the middle: Q4_0 and Q8_0 of GGUF, and all our codes of 8 bits

Scales are half floats in each. The search starts from the range of the group, cut off at either end by several amounts,
rounds, and then fits scale and minimum to the codes by weighted least squares, as llama.cpp's k-quants do.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["GRIDS", "Fit", "divisor", "fit", "round_on"]

GRIDS = ("minimum", "zero_point", "symmetric")
CUTS = (0.0, 0.06, 0.12)  # of a group's range, at either end
FACTORS = (1.0, 0.94, 0.88, 0.82, 0.76)  # of the largest value, where the zero is in the middle
REFITS = 3  # 25 starts with one refit each took as long and lost 1 % more
HALF_MAX = 65504.0


class Fit(NamedTuple):
    """Scales and minimums of groups, [..., 1] float32; they broadcast over the inputs of a group."""

    scales: Tensor
    minimums: Tensor


def round_on(grid: Fit, numbers: Tensor, bits: int) -> Tensor:
    """The code of the nearest level for each number, as floats."""
    return torch.round((numbers - grid.minimums) / divisor(grid.scales)).clamp_(0, (1 << bits) - 1)


def fit(numbers: Tensor, bits: int, kind: str = "minimum", weights: Tensor | None = None) -> Fit:
    """The grid with the smallest weighted squared error of each group of `numbers`, [..., C].

    weights: of the errors, at least 0, in a shape that broadcasts to that of the numbers; None for equal ones.
    """
    assert kind in GRIDS, kind
    weights = torch.ones(1) if weights is None else weights
    # A weight of 0 everywhere says nothing of a group, whose error is then counted as it is.
    weights = torch.where(weights.amax(-1, keepdim=True) > 0, weights, 1.0)
    best: Fit | None = None
    min_error = torch.empty(())
    for start in _starts(numbers, bits, kind):
        grid = start
        for refit in range(REFITS + 1):
            codes = round_on(grid, numbers, bits)
            error = (codes * grid.scales + grid.minimums).sub_(numbers).square_().mul_(weights).sum(-1, keepdim=True)
            if best is None:
                best, min_error = grid, error
            else:
                better = error < min_error
                min_error = torch.where(better, error, min_error)
                best = Fit(*(torch.where(better, new, old) for new, old in zip(grid, best, strict=True)))
            if refit < REFITS:
                grid = _refitted(numbers, codes, grid, kind, weights)
    assert best is not None, "there is always a start"
    return best


def _starts(numbers: Tensor, bits: int, kind: str) -> Iterator[Fit]:
    low, high = numbers.amin(-1, keepdim=True), numbers.amax(-1, keepdim=True)
    levels = (1 << bits) - 1
    if kind == "zero_point":  # zero is one of the levels
        low, high = low.clamp(max=0), high.clamp(min=0)
    if kind == "symmetric":
        # The lowest code is one step farther from the zero than the highest, so it goes to the larger end.
        middle = 1 << bits - 1
        largest = torch.where(-low > high, low, high)
        for factor in FACTORS:
            scales = _half(largest * (-factor / middle))
            yield Fit(scales, -middle * scales)
        return
    for cut_low in CUTS:
        for cut_high in CUTS:
            first, last = low + (high - low) * cut_low, high - (high - low) * cut_high
            scales = _half((last - first) / levels)
            yield _with_minimums(first, scales, levels, kind)


def _with_minimums(minimums: Tensor, scales: Tensor, levels: int, kind: str) -> Fit:
    """The minimums as this kind of grid can have them."""
    if kind == "minimum":
        return Fit(scales, _half(minimums))
    zeros = torch.round(-minimums / divisor(scales)).clamp_(1, levels)
    return Fit(scales, -zeros * scales)


def _refitted(numbers: Tensor, codes: Tensor, start: Fit, kind: str, weights: Tensor) -> Fit:
    """The grid that these codes fit best; that of the start where the codes do not say."""
    if kind != "minimum":
        zeros = torch.round(-start.minimums / divisor(start.scales))
        steps = codes - zeros
        weighted = steps * weights
        square = (weighted * steps).sum(-1, keepdim=True)
        scales = _half((weighted * numbers).sum(-1, keepdim=True) / divisor(square))
        scales = torch.where(square > 0, scales, start.scales)
        return Fit(scales, -zeros * scales)
    weighted = codes * weights
    total = weights.expand(numbers.shape).sum(-1, keepdim=True)
    sum_c, sum_cc = weighted.sum(-1, keepdim=True), (weighted * codes).sum(-1, keepdim=True)
    sum_x, sum_cx = (numbers * weights).sum(-1, keepdim=True), (weighted * numbers).sum(-1, keepdim=True)
    determinant = total * sum_cc - sum_c.square()
    usable = determinant > 1e-6 * total * sum_cc
    scales = (total * sum_cx - sum_c * sum_x) / divisor(determinant)
    minimums = (sum_cc * sum_x - sum_c * sum_cx) / divisor(determinant)
    found = _half(scales), _half(minimums)
    return Fit(*(torch.where(usable, new, old) for new, old in zip(found, start, strict=True)))


def _half(numbers: Tensor) -> Tensor:
    """As half floats hold them."""
    return numbers.clamp(-HALF_MAX, HALF_MAX).half().float()


def divisor(scales: Tensor) -> Tensor:
    """The scales to divide by: a group of zeros has scale zero, and is divided by one."""
    return torch.where(scales == 0, 1.0, scales)
