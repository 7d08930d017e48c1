"""Round to nearest: each group of a row by itself, with the scale that leaves the smallest squared error."""

import torch
from torch import Tensor
from torch.nn import functional as F

from tokenmill.kernels.threads import over_rows
from tokenmill.quant.grid import divisor, fit, round_on
from tokenmill.quant.schemes import GROUP
from tokenmill.quant.stored import Stored

SHRINK = (1.0, 0.97, 0.94, 0.91, 0.88, 0.85)  # of a group's range: cutting off its ends may lower the error
ROWS = 1024  # at a time, so that temporaries stay small


def round_to_nearest(
    numbers_RK: Tensor,
    bits: int,
    group: int = GROUP,
    grid: str = "minimum",
    weights_K: Tensor | None = None,
    quick: bool = False,
) -> Stored:
    """Round [R, K] values to 8 bits with a scale, or 4 bits with a scale and a minimum, for each group of inputs.

    group: a multiple of 32; the rest of a row is a shorter group. K is padded with zeros to a multiple of 32. Scales
    and minimums are half floats, held as float32 and repeated for every 32 inputs. grid: a name in GRIDS, for 4 bits;
    8 bits are symmetric. A symmetric grid has no minimums, and the minimums of "zero_point" are no half floats.
    weights_K: of the errors of each input. quick: six scales are tried and not fitted, as for loading; with a free
    minimum only.
    """
    assert group % GROUP == 0, "scales are held for every 32 inputs"
    assert not quick or grid == "minimum" or bits == 8, "only a free minimum is found quickly"
    missing = -numbers_RK.shape[1] % GROUP
    padded_RK = F.pad(numbers_RK.float(), (0, missing))
    if quick or (bits == 8 and weights_K is None):
        pieces = [_round_rows(rows, bits, group) for rows in torch.split(padded_RK, ROWS)]
    else:
        weights_K = torch.ones(numbers_RK.shape[1]) if weights_K is None else weights_K.float()
        weights_K = F.pad(weights_K, (0, missing))  # padding is never multiplied
        kind = "symmetric" if bits == 8 else grid
        pieces = over_rows(lambda share: _search_rows(share, bits, group, kind, weights_K), padded_RK)
    codes, scales, minimums = (torch.cat(parts) for parts in zip(*pieces, strict=True))
    return Stored(bits, None, codes, scales, None if bits == 8 or grid == "symmetric" else minimums)


def _round_rows(rows_RK: Tensor, bits: int, group: int) -> list[Tensor]:
    parts = []
    for columns_RK, size in _whole_groups(rows_RK, group):
        codes_RGC, *numbers = _round(columns_RK.reshape(len(rows_RK), -1, size), bits)
        parts.append([codes_RGC.flatten(1), *(number.repeat_interleave(size // GROUP, 1) for number in numbers)])
    return [torch.cat(same, 1) for same in zip(*parts, strict=True)]


def _search_rows(rows_RK: Tensor, bits: int, group: int, grid: str, weights_K: Tensor) -> list[Tensor]:
    codes, scales, minimums = list[Tensor](), list[Tensor](), list[Tensor]()
    for columns_RC, weights_C in zip(torch.split(rows_RK, group, 1), torch.split(weights_K, group), strict=True):
        columns_CR = columns_RC.t().contiguous()
        found = fit(columns_CR, bits, grid, weights_C)
        codes.append(round_on(found, columns_CR, bits).t().to(torch.uint8))
        for numbers, number_R in ((scales, found.scales), (minimums, found.minimums)):
            numbers.append(number_R[:, None].expand(-1, columns_RC.shape[1] // GROUP))
    return [torch.cat(same, 1) for same in (codes, scales, minimums)]


def _whole_groups(rows_RK: Tensor, group: int) -> list[tuple[Tensor, int]]:
    """Split rows into the columns of whole groups and the columns of a shorter group at the end, with group sizes."""
    rest = rows_RK.shape[1] % group
    whole = rows_RK.shape[1] - rest
    both = ((rows_RK[:, :whole], group), (rows_RK[:, whole:], rest))
    return [(columns_RK, size) for columns_RK, size in both if columns_RK.shape[1]]


def _round(groups_RGC: Tensor, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    if bits == 8:
        scales_RG1 = (groups_RGC.abs().amax(-1, keepdim=True) / 127).half().float()
        codes_RGC = (groups_RGC / divisor(scales_RG1)).round_().clamp_(-127, 127).add_(128)
        return codes_RGC.to(torch.uint8), scales_RG1.squeeze(-1), scales_RG1.squeeze(-1)
    low_RG1, high_RG1 = groups_RGC.amin(-1, keepdim=True), groups_RGC.amax(-1, keepdim=True)
    best: list[Tensor] = []
    min_error_RG1 = torch.full_like(low_RG1, torch.inf)
    for shrink in SHRINK:
        spare_RG1 = (high_RG1 - low_RG1) * (1 - shrink) / 2
        minimums_RG1 = (low_RG1 + spare_RG1).half().float()
        scales_RG1 = ((high_RG1 - low_RG1) * shrink / 15).half().float()
        codes_RGC = torch.round((groups_RGC - minimums_RG1) / divisor(scales_RG1)).clamp_(0, 15)
        error_RG1 = (codes_RGC * scales_RG1 + minimums_RG1 - groups_RGC).square_().sum(-1, keepdim=True)
        found = [codes_RGC.to(torch.uint8), scales_RG1, minimums_RG1]
        better_RG1 = error_RG1 < min_error_RG1
        min_error_RG1 = torch.where(better_RG1, error_RG1, min_error_RG1)
        best = [torch.where(better_RG1, new, old) for new, old in zip(found, best or found, strict=True)]
    codes_RGC, scales_RG1, minimums_RG1 = best
    return codes_RGC, scales_RG1.squeeze(-1), minimums_RG1.squeeze(-1)
