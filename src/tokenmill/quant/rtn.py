"""Round to nearest: each group of a row by itself, with the scale that leaves the smallest squared error."""

import torch
from torch import Tensor
from torch.nn import functional as F

from tokenmill.quant.stored import GROUP, Stored

__all__ = ["round_to_nearest"]

SHRINK = (1.0, 0.97, 0.94, 0.91, 0.88, 0.85)  # of a group's range: cutting off its ends may lower the error
ROWS = 1024  # at a time, so that temporaries stay small


def round_to_nearest(numbers_RK: Tensor, bits: int, group: int = GROUP) -> Stored:
    """[R, K] values in 8 bits with a scale, or 4 bits with a scale and a minimum, per group of so many inputs.

    group: a multiple of 32; the rest of a row is a shorter group. K is padded with zeros to a multiple of 32. Scales
    and minimums are half floats, held as float32 and repeated for every 32 inputs.
    """
    assert group % GROUP == 0, "scales are held for every 32 inputs"
    padded_RK = F.pad(numbers_RK.float(), (0, -numbers_RK.shape[1] % GROUP))
    pieces = [_round_rows(rows, bits, group) for rows in torch.split(padded_RK, ROWS)]
    codes, scales, minimums = (torch.cat(parts) for parts in zip(*pieces, strict=True))
    return Stored(bits, None, codes, scales, minimums if bits == 4 else None)


def _round_rows(rows_RK: Tensor, bits: int, group: int) -> list[Tensor]:
    rest = rows_RK.shape[1] % group
    whole = rows_RK.shape[1] - rest
    parts = []
    for columns_RK, size in ((rows_RK[:, :whole], group), (rows_RK[:, whole:], rest)):
        if columns_RK.shape[1]:
            codes_RGC, *numbers = _round(columns_RK.reshape(len(rows_RK), -1, size), bits)
            parts.append([codes_RGC.flatten(1), *(number.repeat_interleave(size // GROUP, 1) for number in numbers)])
    return [torch.cat(same, 1) for same in zip(*parts, strict=True)]


def _round(groups_RGC: Tensor, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    if bits == 8:
        scales_RG1 = (groups_RGC.abs().amax(-1, keepdim=True) / 127).half().float()
        codes_RGC = (groups_RGC / _safe(scales_RG1)).round_().clamp_(-127, 127).add_(128)
        return codes_RGC.to(torch.uint8), scales_RG1.squeeze(-1), scales_RG1.squeeze(-1)
    low_RG1, high_RG1 = groups_RGC.amin(-1, keepdim=True), groups_RGC.amax(-1, keepdim=True)
    best: list[Tensor] = []
    min_error_RG1 = torch.full_like(low_RG1, torch.inf)
    for shrink in SHRINK:
        spare_RG1 = (high_RG1 - low_RG1) * (1 - shrink) / 2
        minimums_RG1 = (low_RG1 + spare_RG1).half().float()
        scales_RG1 = ((high_RG1 - low_RG1) * shrink / 15).half().float()
        codes_RGC = torch.round((groups_RGC - minimums_RG1) / _safe(scales_RG1)).clamp_(0, 15)
        error_RG1 = (codes_RGC * scales_RG1 + minimums_RG1 - groups_RGC).square_().sum(-1, keepdim=True)
        found = [codes_RGC.to(torch.uint8), scales_RG1, minimums_RG1]
        better_RG1 = error_RG1 < min_error_RG1
        min_error_RG1 = torch.where(better_RG1, error_RG1, min_error_RG1)
        best = [torch.where(better_RG1, new, old) for new, old in zip(found, best or found, strict=True)]
    codes_RGC, scales_RG1, minimums_RG1 = best
    return codes_RGC, scales_RG1.squeeze(-1), minimums_RG1.squeeze(-1)


def _safe(scales: Tensor) -> Tensor:
    """The scales to divide by: a group of zeros has scale zero, and is divided by one."""
    return torch.where(scales == 0, 1.0, scales)
