"""GPTQ: a matrix is rounded column by column, and each rounding error is compensated in the columns not rounded yet.

A column holds the weights of one input.
The loss is |(W - Q) X|² over the inputs X that the matrix sees, which is the sum over rows of e H eᵀ with H = X Xᵀ. A
rounding error in one column is compensated by adding a multiple of a row of the Cholesky factor of H⁻¹ to the columns
that are not rounded yet (Frantar et al. 2022, arXiv 2210.17323). Rows do not depend on each other.

Groups are rounded in descending order of the mean of H's diagonal over their columns, and the columns of a group in
descending order of H's diagonal, so that many columns are left to compensate the errors that cost most. No permutation
is stored: a group stays together, and its scale is chosen when the group is reached.
"""

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from tokenmill.kernels import native_library
from tokenmill.quant.grid import Fit, fit, round_on
from tokenmill.quant.stored import Stored

DAMPING = 0.01  # of the mean of H's diagonal, added to the diagonal: columns whose inputs are near zero count as well
MAX_DAMPING = 1.0


class NotInvertible(ArithmeticError):
    """H has numbers that are missing or infinite, or no Cholesky factor even when it is damped."""


class Compensation(NamedTuple):
    """The factors by which errors are compensated in all matrices that have the same inputs; made by `compensation`.

    order_K: the columns in the order in which they are rounded. bounds: where in it the groups begin, and its end.
    factor_KK: the upper Cholesky factor of the inverse of the damped H, in that order.
    """

    order_K: Tensor
    bounds: list[int]
    factor_KK: Tensor


def compensation(hessian_KK: Tensor, group: int) -> Compensation:
    """Compute the factors for the hessian X Xᵀ, times any number. NotInvertible where it has no Cholesky factor."""
    order_K, bounds = _order(hessian_KK.diagonal(), group)
    return Compensation(order_K, bounds, _factor(hessian_KK[order_K][:, order_K]))


def gptq(numbers_RK: Tensor, bits: int, group: int, grid: str, compensated: Compensation) -> Stored:
    """Round [R, K] values so that the outputs change least, for the inputs of which the compensation was made.

    bits, group, grid: see round_to_nearest; 8 bits are symmetric.
    """
    order_K, bounds, factor_KK = compensated
    num_rows, num_inputs = numbers_RK.shape
    left_RK = numbers_RK.float()[:, order_K]
    codes_RK = torch.empty(num_rows, num_inputs, dtype=torch.uint8)
    num_groups = len(bounds) - 1
    scales_RG, minimums_RG = torch.empty(num_rows, num_groups), torch.empty(num_rows, num_groups)
    for first, end in pairwise(bounds):
        part_CR = left_RK[:, first:end].t().contiguous()  # so that an input is a row of memory
        factor_CC = factor_KK[first:end, first:end]
        # The loss that an error of each column leaves after its compensation (eq. 2 of the paper).
        weights_C = factor_CC.diagonal().square().reciprocal()
        found = fit(part_CR, bits, "symmetric" if bits == 8 else grid, weights_C)
        codes_CR, errors_CR = _round(part_CR, found, factor_CC.contiguous(), bits)
        left_RK[:, end:] -= errors_CR.t() @ factor_KK[first:end, end:]
        codes_RK[:, order_K[first:end]] = codes_CR.t()
        place = int(order_K[first]) // group
        scales_RG[:, place], minimums_RG[:, place] = found
    has_minimums = bits == 4 and grid != "symmetric"
    return Stored.of_groups(bits, codes_RK, group, scales_RG, minimums_RG if has_minimums else None)


def _order(diagonal_K: Tensor, group: int) -> tuple[Tensor, list[int]]:
    """Order the columns as they are rounded, and find where in this order the groups begin and end."""
    chunks = torch.split(torch.arange(len(diagonal_K)), group)
    means = torch.stack([diagonal_K[chunk].mean() for chunk in chunks])
    bounds, order = [0], []
    for number in means.argsort(descending=True, stable=True).tolist():
        chunk = chunks[number]
        order.append(chunk[diagonal_K[chunk].argsort(descending=True, stable=True)])
        bounds.append(bounds[-1] + len(chunk))
    return torch.cat(order), bounds


def _factor(hessian_KK: Tensor) -> Tensor:
    """Compute the upper Cholesky factor of the inverse of the damped H."""
    diagonal_K = hessian_KK.diagonal()
    mean = diagonal_K.mean()
    if not torch.isfinite(hessian_KK).all():
        raise NotInvertible("the inputs of the matrix hold infinite or missing numbers")
    damping = DAMPING
    while damping <= MAX_DAMPING:
        damped_KK = hessian_KK.clone()
        damped_KK.diagonal().add_(damping * mean + (mean == 0))
        lower_KK, failed = torch.linalg.cholesky_ex(damped_KK)
        if not failed:
            inverse_KK = torch.cholesky_inverse(lower_KK)
            factor_KK: Tensor
            factor_KK, failed = torch.linalg.cholesky_ex(inverse_KK, upper=True)
            if not failed:
                return factor_KK
        damping *= 10
    raise NotInvertible("the products of its inputs have no Cholesky factor")


def _round(part_CR: Tensor, found: Fit, factor_CC: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Round one group to codes, and compute errors in units of the factor's diagonal, [C, R]."""
    return (_round_natively if native_library.is_usable() else _round_plainly)(part_CR, found, factor_CC, bits)


def _round_plainly(part_CR: Tensor, found: Fit, factor_CC: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    part_CR = part_CR.clone()
    codes_CR, errors_CR = torch.empty(part_CR.shape, dtype=torch.uint8), torch.empty_like(part_CR)
    for c in range(len(part_CR)):
        codes_R = round_on(found, part_CR[c], bits)
        codes_CR[c] = codes_R
        errors_CR[c] = (part_CR[c] - (codes_R * found.scales + found.minimums)) / factor_CC[c, c]
        part_CR[c + 1 :] -= factor_CC[c, c + 1 :, None] * errors_CR[c]
    return codes_CR, errors_CR


def _round_natively(
    part_CR: Tensor, found: Fit, factor_CC: Tensor, bits: int, build: str = ""
) -> tuple[Tensor, Tensor]:
    """Compute the same bits by native/kernels/round_group.h."""
    assert part_CR.is_cpu and part_CR.is_contiguous()
    (num_inputs, num_rows), scratch = part_CR.shape, torch.empty(native_library.LANES * len(part_CR))
    codes_CR, errors_CR = torch.empty(part_CR.shape, dtype=torch.uint8), torch.empty_like(part_CR)
    pointers = (each.data_ptr() for each in (*found, factor_CC, scratch, codes_CR, errors_CR))
    what = build.encode(), part_CR.data_ptr(), num_rows, num_inputs, bits
    assert not native_library.library().tm_round_group(*what, *pointers), build
    return codes_CR, errors_CR
