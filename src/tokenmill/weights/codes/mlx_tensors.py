"""The tensors of MLX's layout, as rows of codes or values. They are only read."""

from collections.abc import Mapping

import torch
from torch import Tensor

from tokenmill.quant.stored import Stored, split_nibbles
from tokenmill.weights.codes.mlx import MLX
from tokenmill.weights.codes.mxfp4_tensors import stored_mxfp4
from tokenmill.weights.codes.words import of_minimums, stream_of


def unpack(layout: MLX, parts: Mapping[str, Tensor], name: str) -> Stored:
    """Make R rows of codes, or of values."""
    words = parts["weight"].contiguous().view(torch.int32)
    if layout.mode == "mxfp4":
        return stored_mxfp4(split_nibbles(words.view(torch.uint8)), parts["scales"])
    return of_minimums(layout, stream_of(words, layout.bits), parts["scales"], parts["biases"])
