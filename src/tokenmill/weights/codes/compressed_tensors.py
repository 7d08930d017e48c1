"""The tensors of compressed-tensors, as rows of codes or values. They are only read."""

from collections.abc import Mapping

import torch
from torch import Tensor

from tokenmill.errors import CheckpointError
from tokenmill.quant.stored import Stored, split_nibbles
from tokenmill.weights.codes.compressed import Compressed
from tokenmill.weights.codes.layout import Layout
from tokenmill.weights.codes.mxfp4_tensors import stored_mxfp4, twice_of
from tokenmill.weights.codes.words import of_integers, stream_of


def unpack(layout: Compressed, parts: Mapping[str, Tensor], name: str) -> Stored:
    """Make R rows of codes, or of values."""
    codes, scales = parts[layout.codes], parts["weight_scale"]
    if layout.kind == "mxfp4":
        return stored_mxfp4(split_nibbles(codes), scales)
    if layout.kind == "nvfp4":
        scales_RG = scales.float() / parts["weight_global_scale"].float()
        halves_RK = twice_of(split_nibbles(codes)).float() / 2
        return Stored.plain(halves_RK * scales_RG.repeat_interleave(layout.group, 1)[:, : layout.size])
    if layout.kind == "float":
        return Stored.plain(codes.float() * over_blocks(scales.float(), codes.shape, layout.block))
    return _unpack_integers(layout, parts, name)


def over_blocks(scales: Tensor, shape: torch.Size, block: tuple[int, int]) -> Tensor:
    """A scale for all, for each row, for each group of inputs or for each block, as one that is multiplied with a
    matrix of that shape.
    """
    if scales.dim() < 2 or (block == (1, 1) and scales.shape[1] == 1):
        return scales
    rows, inputs = shape
    if block == (1, 1):
        return scales.repeat_interleave(-(-inputs // scales.shape[1]), 1)[:, :inputs]
    return scales.repeat_interleave(block[0], 0)[:rows].repeat_interleave(block[1], 1)[:, :inputs]


def _unpack_integers(layout: Compressed, parts: Mapping[str, Tensor], name: str) -> Stored:
    codes, zeros, middle = parts[layout.codes], parts.get("weight_zero_point"), 1 << layout.bits - 1
    scales_RG = parts["weight_scale"].float()
    scales_RG = scales_RG.reshape(-1, 1) if scales_RG.dim() < 2 else scales_RG
    if layout.kind == "packed":
        codes_RK = stream_of(codes, layout.bits)[:, : layout.size]
        zeros_RG = None if zeros is None else stream_of(zeros.t(), layout.bits).t()[: len(codes)]
    else:
        moved = codes.to(torch.int16) + middle
        if moved.min() < 0 or moved.max() >= 2 * middle:
            raise CheckpointError(f"{name}.weight holds codes that have more than {layout.bits} bits")
        codes_RK, zeros_RG = (
            moved.to(torch.uint8),
            None if zeros is None else zeros.reshape(scales_RG.shape).int() + middle,
        )
    if layout.strategy == "block":
        wide = codes_RK.shape
        zeros_RK = middle if zeros_RG is None else over_blocks(zeros_RG.float(), wide, layout.block)
        return Stored.plain((codes_RK.float() - zeros_RK) * over_blocks(scales_RG, wide, layout.block))
    scales_RG = scales_RG.expand(len(codes), -1)
    zeros_RG = (
        torch.full_like(scales_RG, middle, dtype=torch.int16) if zeros_RG is None else zeros_RG.expand(len(codes), -1)
    )
    groups_K = parts.get("weight_g_idx")
    if groups_K is not None:
        order_K = torch.arange(layout.size) // (layout.group or layout.size)
        if torch.equal(groups_K, order_K.to(groups_K.dtype)) or layout.group == 0:
            groups_K = None
        elif groups_K.min() < 0 or groups_K.max() >= scales_RG.shape[1]:
            raise CheckpointError(f"{name}.weight_g_idx names groups that there are not: it has {scales_RG.shape[1]}")
    plain = Layout(layout.bits, layout.group)
    return of_integers(plain, codes_RK, zeros_RG, scales_RG, groups_K)
