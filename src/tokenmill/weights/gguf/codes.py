"""Quantised blocks of GGUF files as codes, scales and minimums, without rounding again, and back.

Blocks of 32 numbers: Q4_0 [d, 16 bytes], Q4_1 [d, m, 16 bytes], Q5_0 [d, 32 high bits, 16 bytes], Q5_1 [d, m, 32 high
bits, 16 bytes], Q8_0 [d, 32 bytes], IQ4_NL [d, 16 bytes], MXFP4 [exponent, 16 bytes], where d is the scale, m the
minimum, and the low halves of the 16 bytes are the first 16 numbers. Q5_0 becomes a grid with minimums,
and the codes of IQ4_NL and MXFP4 become codes of 8 bits. superblocks.py has the blocks of 256 numbers
(https://github.com/ggml-org/llama.cpp/blob/master/ggml/src/ggml-common.h).
"""

from collections.abc import Callable

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tokenmill.quant.schemes import GROUP
from tokenmill.quant.stored import Stored
from tokenmill.weights.codes.floating_tensors import stored_mxfp4
from tokenmill.weights.gguf import superblocks
from tokenmill.weights.gguf.fields import NUMBERS_OF_IQ4, half_floats, nibbles, stored_codes

KIND = gguf.GGMLQuantizationType


def decode(rows: NDArray[np.uint8], kind: gguf.GGMLQuantizationType) -> Stored:
    """Turn [R, bytes of a row] into R rows of codes."""
    blocks_RGB = torch.from_numpy(rows).reshape(len(rows), -1, gguf.GGML_QUANT_SIZES[kind][1])
    return _DECODERS[kind](blocks_RGB)


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


def _q8_0(blocks_RGB: Tensor) -> Stored:
    return stored_codes(8, blocks_RGB[:, :, 2:] ^ 128, half_floats(blocks_RGB, 0))  # from -128 … 127 to 0 … 255


def _q4_0(blocks_RGB: Tensor) -> Stored:
    return Stored(4, scales=half_floats(blocks_RGB, 0), halves=blocks_RGB[:, :, 2:].flatten(1))


def _q4_1(blocks_RGB: Tensor) -> Stored:
    scales, minimums = half_floats(blocks_RGB, 0), half_floats(blocks_RGB, 2)
    return Stored(4, scales=scales, minimums=minimums, halves=blocks_RGB[:, :, 4:].flatten(1))


def _q5_0(blocks_RGB: Tensor) -> Stored:
    scales = half_floats(blocks_RGB, 0)
    return stored_codes(5, _five_bits(blocks_RGB, 2), scales, -16 * scales)


def _q5_1(blocks_RGB: Tensor) -> Stored:
    return stored_codes(5, _five_bits(blocks_RGB, 4), half_floats(blocks_RGB, 0), half_floats(blocks_RGB, 2))


def _iq4_nl(blocks_RGB: Tensor) -> Stored:
    return stored_codes(8, NUMBERS_OF_IQ4[nibbles(blocks_RGB[:, :, 2:]).int()], half_floats(blocks_RGB, 0))


def _mxfp4(blocks_RGB: Tensor) -> Stored:
    return stored_mxfp4(nibbles(blocks_RGB[:, :, 1:]), blocks_RGB[:, :, 0])


def _five_bits(blocks_RGB: Tensor, at: int) -> Tensor:
    """32 high bits from that byte on, then 16 bytes of nibbles."""
    high = torch.from_numpy(np.unpackbits(blocks_RGB[:, :, at : at + 4].numpy(), axis=-1, bitorder="little"))
    return nibbles(blocks_RGB[:, :, at + 4 :]) + (high << 4)


_DECODERS: dict[gguf.GGMLQuantizationType, Callable[[Tensor], Stored]] = {
    KIND.Q4_0: _q4_0,
    KIND.Q4_1: _q4_1,
    KIND.Q5_0: _q5_0,
    KIND.Q5_1: _q5_1,
    KIND.Q8_0: _q8_0,
    KIND.IQ4_NL: _iq4_nl,
    KIND.MXFP4: _mxfp4,
    KIND.Q3_K: superblocks.q3_k,
    KIND.Q4_K: superblocks.q4_k,
    KIND.Q5_K: superblocks.q5_k,
    KIND.Q6_K: superblocks.q6_k,
    KIND.IQ4_XS: superblocks.iq4_xs,
    KIND.TQ1_0: superblocks.tq1_0,
    KIND.TQ2_0: superblocks.tq2_0,
}
