"""Quantised blocks of GGUF files as codes, scales and minimums, without rounding again, and back.

Blocks of 32 numbers: Q4_0 [d, 16 bytes], Q4_1 [d, m, 16 bytes], Q5_0 [d, 32 high bits, 16 bytes], Q8_0 [d, 32 bytes],
where d is the scale, m the minimum, and the low halves of the 16 bytes are the first 16 numbers. Codes of Q5_0 become
codes of 8 bits. Q4_K has 256 numbers in eight groups, whose scales and minimums are integers of 6 bits times d and dmin
(https://github.com/ggml-org/llama.cpp/blob/master/ggml/src/ggml-common.h).
"""

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tokenmill.quant.schemes import GROUP
from tokenmill.quant.stored import Stored

KIND = gguf.GGMLQuantizationType


def decode(rows: NDArray[np.uint8], kind: gguf.GGMLQuantizationType) -> Stored:
    """Turn [R, bytes of a row] into R rows of codes."""
    blocks_RGB = torch.from_numpy(rows).reshape(len(rows), -1, gguf.GGML_QUANT_SIZES[kind][1])
    scales = _half_floats(blocks_RGB, 0)
    if kind == KIND.Q8_0:
        return _stored(8, blocks_RGB[:, :, 2:] ^ 128, scales)  # from -128 … 127 to 0 … 255
    if kind == KIND.Q4_0:
        return Stored(4, None, None, scales, None, blocks_RGB[:, :, 2:].flatten(1))
    if kind == KIND.Q4_1:
        return Stored(4, None, None, scales, _half_floats(blocks_RGB, 2), blocks_RGB[:, :, 4:].flatten(1))
    if kind == KIND.Q5_0:
        high = torch.from_numpy(np.unpackbits(blocks_RGB[:, :, 2:6].numpy(), axis=-1, bitorder="little"))
        codes = _nibbles(blocks_RGB[:, :, 6:]) + (high << 4) + 112  # zero is 16 of 32, and 128 of 256
        return _stored(8, codes, scales)
    return _q4_k(blocks_RGB, scales)


def encode(stored: Stored, kind: gguf.GGMLQuantizationType) -> Tensor:
    """Store R rows of codes as Q4_0, Q4_1 or Q8_0: [R, bytes of a row]. The inverse of decode."""
    stored = stored.unpacked()
    assert stored.codes is not None and stored.scales is not None
    assert (stored.minimums is not None) == (kind == KIND.Q4_1), f"codes of another grid than {kind.name}"
    codes_RGC = stored.codes.view(stored.num_rows, -1, GROUP)
    numbers = [_half_bytes(each) for each in (stored.scales, stored.minimums) if each is not None]
    half = GROUP // 2
    codes = codes_RGC ^ 128 if kind == KIND.Q8_0 else codes_RGC[..., :half] | codes_RGC[..., half:] << 4
    return torch.cat([*numbers, codes], -1).flatten(1)


def _half_bytes(numbers_RG: Tensor) -> Tensor:
    """[R, G, 2] uint8: the inverse of _half_floats."""
    halves_RG = numbers_RG.half()
    assert torch.equal(halves_RG.float(), numbers_RG), "scales and minimums are half floats"
    return halves_RG.contiguous().view(torch.uint8).view(*numbers_RG.shape, 2)


def _q4_k(blocks_RGB: Tensor, d: Tensor) -> Stored:
    """d, dmin, 12 bytes of 6-bit integers, 128 bytes of nibbles: 64 numbers from each 32 bytes, low halves first.

    Of the 12 bytes, four hold the first four scales, four the first four minimums, in their low 6 bits. The other
    scales and minimums have their low 4 bits in the last four bytes, and their high 2 bits above those of the first.
    """
    first, second, third = blocks_RGB[:, :, 4:8], blocks_RGB[:, :, 8:12], blocks_RGB[:, :, 12:16]
    scales = torch.cat([first & 63, third & 15 | first >> 6 << 4], -1)
    minimums = torch.cat([second & 63, third >> 4 | second >> 6 << 4], -1)
    codes = _nibbles(blocks_RGB[:, :, 16:].reshape(*blocks_RGB.shape[:2], 4, 32))
    return _stored(4, codes, d[..., None] * scales, -_half_floats(blocks_RGB, 2)[..., None] * minimums)


def _nibbles(bytes_: Tensor) -> Tensor:
    """[…, n] → […, 2 n], the low halves of n bytes first."""
    halves = bytes_.new_empty(*bytes_.shape[:-1], 2, bytes_.shape[-1])
    torch.bitwise_and(bytes_, 15, out=halves[..., 0, :])
    torch.bitwise_right_shift(bytes_, 4, out=halves[..., 1, :])
    return halves.flatten(-2)


def _half_floats(blocks_RGB: Tensor, at: int) -> Tensor:
    """[R, G] float32: the half float at that byte of each block."""
    return blocks_RGB[:, :, at : at + 2].contiguous().view(torch.float16)[..., 0].float()


def _stored(bits: int, codes: Tensor, scales: Tensor, minimums: Tensor | None = None) -> Stored:
    minimums = None if minimums is None else minimums.flatten(1)
    return Stored(bits, None, codes.flatten(1).contiguous(), scales.flatten(1), minimums)
