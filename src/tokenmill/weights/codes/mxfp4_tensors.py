"""The tensors of MXFP4, as rows of codes of 8 bits. They are only read.

Twice the value of an E2M1 code is a whole number up to 12, so that 8 bits with half the scale say the same.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from tokenmill.quant.schemes import GROUP
from tokenmill.quant.stored import Stored, split_nibbles
from tokenmill.weights.codes.mxfp4 import MXFP4

_TWICE = (0, 1, 2, 3, 4, 6, 8, 12)


def unpack(layout: MXFP4, parts: Mapping[str, Tensor], name: str) -> Stored:
    """Return R rows of codes."""
    return stored_mxfp4(split_nibbles(parts["blocks"].flatten(1)), parts["scales"])


def stored_mxfp4(codes_RK: Tensor, exponents_RG: Tensor) -> Stored:
    """R rows of E2M1 codes of 4 bits, and the exponents of the scales of 32 each, from 0 to 255, as codes of 8 bits."""
    halves_RG = powers_of(exponents_RG, 128)  # of the largest exponent the whole is no float32
    return Stored.of_groups(8, (twice_of(codes_RK.flatten(1)) + 128).to(torch.uint8), GROUP, halves_RG)


def powers_of(exponents: Tensor, added: int = 127) -> Tensor:
    """The scales of exponents from 0 to 255, float32: powers of 2, with `added` to each exponent. They may be of the
    type of such scales, float8_e8m0fnu.
    """
    return torch.ldexp(torch.ones(exponents.shape), exponents.view(torch.uint8).int() - added)


def twice_of(codes: Tensor) -> Tensor:
    """Twice the values of E2M1 codes, int16."""
    table = torch.tensor([*_TWICE, *(-twice for twice in _TWICE)], dtype=torch.int16)
    return table[codes.int()]
