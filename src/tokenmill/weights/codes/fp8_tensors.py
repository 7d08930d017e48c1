"""The tensors of directories in fp8, as rows of values. They are only read."""

from collections.abc import Mapping

import torch
from torch import Tensor

from tokenmill.quant.stored import Stored
from tokenmill.weights.codes.compressed_tensors import over_blocks
from tokenmill.weights.codes.fp8 import FP8


def unpack(layout: FP8, parts: Mapping[str, Tensor], name: str) -> Stored:
    """Make R rows of values. Scales of 8 bits are exponents of 2 with 127 added."""
    weight, scales = parts["weight"].float(), parts[layout.mark]
    scales = (
        torch.ldexp(torch.ones(scales.shape), scales.int() - 127) if scales.dtype == torch.uint8 else scales.float()
    )
    if scales.dim() == 1 and len(scales) > 1:
        scales = scales[:, None]
    return Stored.plain(weight * over_blocks(scales, weight.shape, layout.block or (1, 1)))
