"""The tensors of MLX's layout, as rows of codes or values. They are only read."""

from collections.abc import Mapping

import torch
from torch import Tensor

from tokenmill.quant.stored import Stored, split_nibbles
from tokenmill.weights.codes.mlx import MLX
from tokenmill.weights.codes.mxfp4_tensors import powers_of, stored_mxfp4, twice_of
from tokenmill.weights.codes.words import of_minimums, stream_of, values_in_groups

_LARGEST = 448.0 * 6.0  # of a scale in fp8 times a number of E2M1


def unpack(layout: MLX, parts: Mapping[str, Tensor], name: str) -> Stored:
    """Make R rows of codes, or of values."""
    words = parts["weight"].contiguous().view(torch.int32)
    if layout.mode != "affine":
        return _of_numbers(layout, words.view(torch.uint8), parts)
    return of_minimums(layout, stream_of(words, layout.bits), parts["scales"], parts["biases"])


def _of_numbers(layout: MLX, bytes_RB: Tensor, parts: Mapping[str, Tensor]) -> Stored:
    """Make R rows of the modes whose codes are numbers in floating point."""
    scales_RG = parts["scales"]
    if layout.mode == "mxfp4":
        return stored_mxfp4(split_nibbles(bytes_RB), scales_RG)
    if layout.mode == "mxfp8":
        return values_in_groups(bytes_RB.view(torch.float8_e4m3fn).float(), powers_of(scales_RG), layout.group)
    scales_RG = scales_RG.view(torch.float8_e4m3fn).float()
    if (largest := parts.get("global_scale")) is not None:
        scales_RG = scales_RG * (largest.float() / _LARGEST)
    return values_in_groups(twice_of(split_nibbles(bytes_RB)).float() / 2, scales_RG, layout.group)
