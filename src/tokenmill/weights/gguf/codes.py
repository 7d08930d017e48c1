"""Quantised blocks of GGUF files as they are: codes, scales and minimums, without rounding again.

Blocks of 32: Q4_0 [d, 16 bytes], Q4_1 [d, m, 16 bytes], Q8_0 [d, 32 bytes]; the low halves of the 4-bit bytes are the
first 16 numbers. Q5_0 fits into 8 bits. Q4_K has 256 numbers in eight groups, whose 6-bit scales and minimums multiply
two half floats (layouts: https://github.com/ggml-org/llama.cpp/blob/master/ggml/src/ggml-common.h).
"""

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tokenmill.quant.stored import Stored

__all__ = ["BITS", "KINDS", "decode"]

Bytes = NDArray[np.uint8]
KIND = gguf.GGMLQuantizationType
KINDS = (KIND.Q4_0, KIND.Q4_1, KIND.Q5_0, KIND.Q8_0, KIND.Q4_K)
BITS = {KIND.F32: 32.0, KIND.Q4_0: 4.5, KIND.Q4_1: 5.0, KIND.Q4_K: 6.0, KIND.F16: 16.0, KIND.BF16: 16.0}
"""Per number once it is packed, with scales; of all others 8.5."""


def decode(rows: Bytes, kind: gguf.GGMLQuantizationType) -> Stored:
    """[R, bytes of a row] → R rows of codes."""
    block_bytes = gguf.GGML_QUANT_SIZES[kind][1]
    blocks = rows.reshape(len(rows), -1, block_bytes)  # [R, G, bytes]
    if kind == KIND.Q8_0:
        signed = torch.from_numpy(blocks[:, :, 2:])
        return _stored(8, (signed ^ 128).numpy(), _halves(blocks, 0))  # from -128 … 127 to 0 … 255
    if kind == KIND.Q4_0:
        return _stored(4, _nibbles(blocks[:, :, 2:]), _halves(blocks, 0))
    if kind == KIND.Q4_1:
        return _stored(4, _nibbles(blocks[:, :, 4:]), _halves(blocks, 0), _halves(blocks, 2))
    if kind == KIND.Q5_0:
        high = np.unpackbits(np.ascontiguousarray(blocks[:, :, 2:6]), axis=-1, bitorder="little")
        codes = _nibbles(blocks[:, :, 6:]) + (high << np.uint8(4)) + np.uint8(112)  # 16 of 32 stands for zero
        return _stored(8, codes, _halves(blocks, 0))
    return _q4_k(blocks)


def _q4_k(blocks: Bytes) -> Stored:
    """d, dmin, 12 bytes of scales, 128 bytes of nibbles: 64 numbers from each 32 bytes, low halves first."""
    scales, minimums = _six_bits(blocks[:, :, 4:16])
    codes = _nibbles(blocks[:, :, 16:].reshape(*blocks.shape[:2], 4, 32))
    d, dmin = _halves(blocks, 0), _halves(blocks, 2)
    wide = (d[..., None] * scales).reshape(len(blocks), -1)
    low = (-dmin[..., None] * minimums).reshape(len(blocks), -1)
    return _stored(4, codes, wide, low)


def _six_bits(packed: Bytes) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Eight scales and eight minimums of 6 bits from 12 bytes: four in the low bits, four put together from pieces."""
    first, second, third = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scales = np.concatenate([first & 63, third & 15 | first >> 6 << 4], axis=-1)
    minimums = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=-1)
    return scales.astype(np.float32), minimums.astype(np.float32)


def _nibbles(bytes_: Bytes) -> Bytes:
    """[…, n] → […, 2 n], the low halves of n bytes first. By torch, which takes a seventh of numpy's time."""
    packed = torch.from_numpy(bytes_)
    halves = packed.new_empty(*packed.shape[:-1], 2, packed.shape[-1])
    torch.bitwise_and(packed, 15, out=halves[..., 0, :])
    torch.bitwise_right_shift(packed, 4, out=halves[..., 1, :])
    codes: Bytes = halves.flatten(-2).numpy()
    return codes


def _halves(blocks: Bytes, at: int) -> NDArray[np.float32]:
    return np.ascontiguousarray(blocks[:, :, at : at + 2]).view(np.float16)[..., 0].astype(np.float32)


def _stored(
    bits: int, codes: Bytes, scales: NDArray[np.float32], minimums: NDArray[np.float32] | None = None
) -> Stored:
    def tensor(array: NDArray[np.float32]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array))

    rows = torch.from_numpy(np.ascontiguousarray(codes)).reshape(len(codes), -1)
    return Stored(bits, None, rows, tensor(scales), None if minimums is None else tensor(minimums))
