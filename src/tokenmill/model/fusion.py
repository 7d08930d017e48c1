"""Which neighbouring operations are one: a switch for each, so that what it gains can be measured.

    qkv      one matrix product for Q, K and V, or three
    gate_up  one for gate and up, or two
    norm     torch's rms_norm, or its steps written out, which round as the Llama reference does
    rotary   the halves of a head rotated one after the other, or a swapped copy put together first; the same bits

The names that are on are handed to every module when it is made. Without qkv or gate_up the matrices must be plain.
"""

from collections.abc import Collection

import torch
from torch import Tensor

from tokenmill.model.blocks import Projection
from tokenmill.quant.dense import DenseLinear, product
from tokenmill.quant.schemes import Matrix, Scheme

__all__ = ["DEFAULT_FUSED", "make_linear"]

DEFAULT_FUSED = ("qkv", "gate_up")


class Apart(DenseLinear):
    """A plain matrix whose parts are multiplied one after the other."""

    def __init__(self, projection: Projection) -> None:
        super().__init__(projection.inputs, projection.outputs, projection.bias)
        self.sizes = [rows for _, rows in projection.parts]

    def forward(self, x_TD: Tensor) -> Tensor:
        """[T, in] → [T, out]"""
        assert self.weight is not None, "plain matrices keep theirs"
        weights = torch.split(self.weight, self.sizes)
        biases = [None] * len(weights) if self.bias is None else torch.split(self.bias, self.sizes)
        return torch.cat([product(x_TD, *part) for part in zip(weights, biases, strict=True)], dim=-1)


def make_linear(projection: Projection, scheme: Scheme, fused: Collection[str]) -> Matrix:
    """The module of a matrix, in one product or in as many as it has parts."""
    name = "_".join(part for part, _ in projection.parts) if projection.role == "up" else projection.role
    if len(projection.parts) > 1 and name not in fused:
        return Apart(projection)
    return scheme.linear(projection.inputs, projection.outputs, projection.bias)
