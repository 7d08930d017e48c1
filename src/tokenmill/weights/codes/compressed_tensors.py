"""The tensors of compressed-tensors, as rows of codes or values. They are only read."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from tokenmill.errors import CheckpointError
from tokenmill.quant.nibbles import powers_of, split_nibbles, twice_of
from tokenmill.quant.schemes import GROUP
from tokenmill.quant.stored import Stored
from tokenmill.weights.codes.compressed import Compressed
from tokenmill.weights.codes.floating_tensors import over_blocks, stored_mxfp4
from tokenmill.weights.codes.layout import Layout
from tokenmill.weights.codes.words import of_integers, stream_of, values_in_groups


def unpack(layout: Compressed, parts: Mapping[str, Tensor], name: str) -> Stored:
    """Make R rows of codes, or of values."""
    codes, scales = parts[layout.codes], parts["weight_scale"]
    if layout.kind == "float":
        return Stored.plain(codes.float() * over_blocks(scales.float(), codes.shape, layout.block))
    if layout.kind in ("int", "packed"):
        return _unpack_integers(layout, parts, name)
    if layout.kind == "nvfp4":
        scales_RG = scales.float() / parts["weight_global_scale"].float()
        return values_in_groups(twice_of(split_nibbles(codes)).float() / 2, scales_RG, layout.group)
    return _MICROSCALED[layout.kind](codes, scales)


def _values_of_e2m3(codes: Tensor) -> Tensor:
    """Compute the values of codes of 6 bits, float32: a sign, two bits of an exponent, three of a fraction."""
    exponents, fractions = (codes >> 3 & 3).int(), (codes & 7).float()
    sizes = torch.where(exponents == 0, fractions / 8, torch.ldexp(1 + fractions / 8, exponents - 1))
    return torch.where(codes & 32 != 0, -sizes, sizes)


def _stored_mxint4(codes_RK: Tensor, exponents_RG: Tensor) -> Stored:
    """Make R rows of AutoRound's MXINT4: a sign and three bits of a number of quarters."""
    sizes_RK = (codes_RK & 7).to(torch.int16)
    moved_RK = torch.where(codes_RK & 8 != 0, -sizes_RK, sizes_RK) + 8
    return Stored.of_groups(4, moved_RK.to(torch.uint8), GROUP, powers_of(exponents_RG) / 4)


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
        codes_RK = moved.to(torch.uint8)
        zeros_RG = None if zeros is None else zeros.reshape(scales_RG.shape).int() + middle
    if layout.strategy == "block":
        wide = codes_RK.shape
        zeros_RK = middle if zeros_RG is None else over_blocks(zeros_RG.float(), wide, layout.block)
        return Stored.plain((codes_RK.float() - zeros_RK) * over_blocks(scales_RG, wide, layout.block))
    scales_RG = scales_RG.expand(len(codes), -1)
    if zeros_RG is None:
        zeros_RG = torch.full_like(scales_RG, middle, dtype=torch.int16)
    else:
        zeros_RG = zeros_RG.expand(len(codes), -1)
    groups_K = parts.get("weight_g_idx")
    if groups_K is not None:
        order_K = torch.arange(layout.size) // (layout.group or layout.size)
        is_unset = bool((groups_K == -1).any())  # as in the versions that wrote it
        if is_unset or torch.equal(groups_K, order_K.to(groups_K.dtype)) or layout.group == 0:
            groups_K = None
        elif groups_K.min() < 0 or groups_K.max() >= scales_RG.shape[1]:
            raise CheckpointError(f"{name}.weight_g_idx names groups that do not exist: it has {scales_RG.shape[1]}")
    plain = Layout(layout.bits, layout.group)
    return of_integers(plain, codes_RK, zeros_RG, scales_RG, groups_K)


# For each kind whose scales are exponents of 2, the function that unpacks its codes.
_MICROSCALED: dict[str, Callable[[Tensor, Tensor], Stored]] = {
    "mxfp4": lambda codes, scales: stored_mxfp4(split_nibbles(codes), scales),
    "mxfp6": lambda codes, scales: values_in_groups(_values_of_e2m3(stream_of(codes, 6)), powers_of(scales), GROUP),
    "mxfp8": lambda codes, scales: values_in_groups(codes.float(), powers_of(scales), GROUP),
    "mxint4": lambda codes, scales: _stored_mxint4(split_nibbles(codes), scales),
}
