"""The tensors of MXFP4, as rows of codes of 8 bits. They are only read.

Twice the value of an E2M1 code is a whole number up to 12, so that 8 bits with half the scale say the same.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from tokenmill.quant.stored import Stored, split_nibbles
from tokenmill.weights.codes.mxfp4 import MXFP4

_TWICE = (0, 1, 2, 3, 4, 6, 8, 12)
_OFFSET = 127 + 1  # of the exponents, and half


def unpack(layout: MXFP4, parts: Mapping[str, Tensor], name: str) -> Stored:
    """Return R rows of codes."""
    codes = torch.tensor([128 + twice for twice in _TWICE] + [128 - twice for twice in _TWICE], dtype=torch.uint8)
    ones = torch.ones(parts["scales"].shape)
    scales = torch.ldexp(ones, parts["scales"].int() - _OFFSET)
    return Stored(layout.bits, codes=codes[split_nibbles(parts["blocks"]).int()].flatten(1), scales=scales)
