"""The tensors of codes that are numbers in floating point, or places in a table, as rows of codes or values: MXFP4,
MLX, fp8 and bitsandbytes. They are only read.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from tokenmill.quant.nibbles import eights_of, powers_of, split_nibbles, twice_of
from tokenmill.quant.schemes import GROUP
from tokenmill.quant.stored import Stored
from tokenmill.weights.codes.bitsandbytes import Bitsandbytes
from tokenmill.weights.codes.fp8 import FP8
from tokenmill.weights.codes.mlx import MLX
from tokenmill.weights.codes.mxfp4 import MXFP4
from tokenmill.weights.codes.words import of_minimums, stream_of, values_in_groups

_LARGEST = 448.0 * 6.0  # of a scale in fp8 times a number of E2M1
_STEP = 1 / 127  # multiplied with, as bitsandbytes does
_PART = 1 << 22  # codes of bitsandbytes at a time, so that temporaries stay small


def unpack_mxfp4(layout: MXFP4, parts: Mapping[str, Tensor], name: str) -> Stored:
    """Make R rows of codes."""
    return stored_mxfp4(split_nibbles(parts["blocks"].flatten(1)), parts["scales"])


def stored_mxfp4(codes_RK: Tensor, exponents_RG: Tensor) -> Stored:
    """Make R rows of codes of 8 bits from E2M1 codes of 4 bits and exponents from 0 to 255, of the scale of 32 each.

    Twice the value of an E2M1 code is a whole number up to 12, so that 8 bits with half the scale say the same.
    """
    halves_RG = powers_of(exponents_RG, 128)  # of the largest exponent the whole is no float32
    return Stored.of_groups(8, eights_of(codes_RK.flatten(1)), GROUP, halves_RG)


def unpack_mlx(layout: MLX, parts: Mapping[str, Tensor], name: str) -> Stored:
    """Make R rows of codes, or of values."""
    words, scales_RG = parts["weight"].contiguous().view(torch.int32), parts["scales"]
    if layout.mode == "affine":
        return of_minimums(layout, stream_of(words, layout.bits), scales_RG, parts["biases"])
    bytes_RB = words.view(torch.uint8)
    if layout.mode == "mxfp4":
        return stored_mxfp4(split_nibbles(bytes_RB), scales_RG)
    if layout.mode == "mxfp8":
        return values_in_groups(bytes_RB.view(torch.float8_e4m3fn).float(), powers_of(scales_RG), layout.group)
    scales_RG = scales_RG.view(torch.float8_e4m3fn).float()
    if (largest := parts.get("global_scale")) is not None:
        scales_RG = scales_RG * (largest.float() / _LARGEST)
    return values_in_groups(twice_of(split_nibbles(bytes_RB)).float() / 2, scales_RG, layout.group)


def unpack_fp8(layout: FP8, parts: Mapping[str, Tensor], name: str) -> Stored:
    """Make R rows of values. Scales of 8 bits are exponents of 2 with 127 added."""
    weight, scales = parts["weight"].float(), parts[layout.mark]
    scales = powers_of(scales) if scales.dtype == torch.uint8 else scales.float()
    if scales.dim() == 1 and len(scales) > 1:
        scales = scales[:, None]
    return Stored.plain(weight * over_blocks(scales, weight.shape, layout.block or (1, 1)))


def over_blocks(scales: Tensor, shape: torch.Size, block: tuple[int, int]) -> Tensor:
    """Widen a scale for all, for each row, for each group of inputs or for each block to one that is multiplied with a
    matrix of that shape.
    """
    if scales.dim() < 2 or (block == (1, 1) and scales.shape[1] == 1):
        return scales
    rows, inputs = shape
    if block == (1, 1):
        return scales.repeat_interleave(-(-inputs // scales.shape[1]), 1)[:, :inputs]
    return scales.repeat_interleave(block[0], 0)[:rows].repeat_interleave(block[1], 1)[:, :inputs]


def unpack_bitsandbytes(layout: Bitsandbytes, parts: Mapping[str, Tensor], name: str) -> Stored:
    """Make R rows of values."""
    if layout.kind == "int8":
        return Stored.plain(parts["weight"] * parts["SCB"].float()[:, None] * _STEP)
    table, factors = parts["weight.quant_map"].float(), _factors(layout, parts)
    codes = parts["weight"].contiguous().view(torch.uint8).flatten()
    num_rows, num_inputs = layout.shape
    values = torch.empty(2 * len(codes))
    for first in range(0, len(codes), _PART):
        some = codes[first : first + _PART]
        values[2 * first : 2 * (first + len(some))] = table[torch.stack((some >> 4, some & 15), 1).flatten().int()]
    values = values[: num_rows * num_inputs]
    whole = len(values) // layout.block * layout.block
    values[:whole].view(-1, layout.block).mul_(factors[: whole // layout.block, None])
    values[whole:].mul_(factors[-1:])
    return Stored.plain(values.view(num_rows, num_inputs))


def _factors(layout: Bitsandbytes, parts: Mapping[str, Tensor]) -> Tensor:
    """Find the factor of each block of codes. Factors may be codes of a table with factors of their own."""
    if not layout.nested_block:
        return parts["weight.absmax"].float()
    codes, table = parts["weight.absmax"].int(), parts["weight.nested_quant_map"].float()
    nested = parts["weight.nested_absmax"].float().repeat_interleave(layout.nested_block)[: len(codes)]
    return table[codes] * nested + layout.offset
