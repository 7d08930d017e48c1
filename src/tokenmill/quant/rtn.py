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
    """Codes [R, K] uint8, scales and minimums [R, K / 32]."""
    rest = rows_RK.shape[1] % group
    whole = rows_RK.shape[1] - rest
    parts = []
    for columns_RK, size in ((rows_RK[:, :whole], group), (rows_RK[:, whole:], rest)):
        if columns_RK.shape[1]:
            codes_RGC, *numbers = _round(columns_RK.reshape(len(rows_RK), -1, size), bits)
            parts.append([codes_RGC.flatten(1), *(number.repeat_interleave(size // GROUP, 1) for number in numbers)])
    return [torch.cat(same, 1) for same in zip(*parts, strict=True)]


def _round(groups_RGC: Tensor, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """Codes [R, G, C] uint8, scales and minimums [R, G]."""
    if bits == 8:
        scales_RG = _half(groups_RGC.abs().amax(-1) / 127)
        codes_RGC = (groups_RGC / _safe(scales_RG)).round_().clamp_(-127, 127).add_(128)
        return codes_RGC.to(torch.uint8), scales_RG, scales_RG
    low_RG, high_RG = groups_RGC.amin(-1), groups_RGC.amax(-1)
    best: tuple[Tensor, Tensor, Tensor] | None = None
    min_error_RG = torch.full_like(low_RG, torch.inf)
    for shrink in SHRINK:
        spare_RG = (high_RG - low_RG) * (1 - shrink) / 2
        minimums_RG = _half(low_RG + spare_RG)
        scales_RG = _half((high_RG - low_RG) * shrink / 15)
        codes_RGC = torch.round((groups_RGC - minimums_RG[..., None]) / _safe(scales_RG)).clamp_(0, 15)
        values_RGC = codes_RGC * scales_RG[..., None] + minimums_RG[..., None]
        error_RG = (values_RGC - groups_RGC).square_().sum(-1)
        found = (codes_RGC.to(torch.uint8), scales_RG, minimums_RG)
        better_RG = error_RG < min_error_RG
        min_error_RG = torch.where(better_RG, error_RG, min_error_RG)
        if best is None:
            best = found
        else:
            best = tuple(  # type: ignore[assignment]
                torch.where(better_RG[..., None] if new.dim() == 3 else better_RG, new, old)
                for new, old in zip(found, best, strict=True)
            )
    assert best is not None
    return best


def _half(values: Tensor) -> Tensor:
    return values.half().float()


def _safe(scales_RG: Tensor) -> Tensor:
    """The scales to divide by, [R, G, 1]: a group of zeros has scale zero, and is divided by one."""
    return torch.where(scales_RG == 0, 1.0, scales_RG)[..., None]
