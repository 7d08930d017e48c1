"""Fields of GGUF's blocks: nibbles, half floats, and the numbers that codes of four bits may name."""

import gguf
import torch
from torch import Tensor

from tokenmill.quant.stored import Stored

NUMBERS_OF_IQ4 = (torch.tensor(gguf.quants.IQ4_NL.kvalues) + 128).to(torch.uint8)
"""As codes of 8 bits, from -127 to 113."""


def nibbles(bytes_: Tensor) -> Tensor:
    """[…, n] → […, 2 n], the low halves of n bytes first."""
    halves = bytes_.new_empty(*bytes_.shape[:-1], 2, bytes_.shape[-1])
    torch.bitwise_and(bytes_, 15, out=halves[..., 0, :])
    torch.bitwise_right_shift(bytes_, 4, out=halves[..., 1, :])
    return halves.flatten(-2)


def half_floats(blocks_RGB: Tensor, at: int) -> Tensor:
    """[R, G] float32: the half float at that byte of each block."""
    return blocks_RGB[:, :, at : at + 2].contiguous().view(torch.float16)[..., 0].float()


def stored_codes(bits: int, codes: Tensor, scales: Tensor, minimums: Tensor | None = None) -> Stored:
    """Codes and what belongs to their groups, in the order of the numbers, as rows."""
    minimums = None if minimums is None else minimums.flatten(1)
    return Stored(bits, None, codes.flatten(1).contiguous(), scales.flatten(1), minimums)
