"""Which neighbouring operations are one: a switch for each, so that what it gains can be measured.

    qkv      one matrix product for Q, K and V, or three
    gate_up  one for gate and up, or two
    norm     torch's rms_norm, or its steps written out, which round as the Llama reference does
    rotary   the halves of a head turned one after the other, or a swapped copy put together first; the same bits

They are set on a decoder whose weights are there, as plain matrices.
"""

from collections.abc import Collection, Sequence

import torch
from torch import Tensor, nn

from tokenmill.model.attention import Attention
from tokenmill.model.decoder import Decoder
from tokenmill.model.layers import MLP, RMSNorm
from tokenmill.model.rope import apply_rotary, apply_rotary_in_halves
from tokenmill.quant.dense import DenseLinear, product

__all__ = ["Apart", "fuse"]


class Apart(nn.Module):
    """A matrix whose stretches of rows are multiplied one after the other."""

    def __init__(self, whole: DenseLinear, sizes: Sequence[int]) -> None:
        super().__init__()
        self.whole, self.sizes = whole, list(sizes)

    def forward(self, x_TD: Tensor) -> Tensor:
        """[T, in] → [T, out]"""
        assert self.whole.weight is not None, "plain matrices keep theirs"
        weights = torch.split(self.whole.weight, self.sizes)
        biases = [None] * len(weights) if self.whole.bias is None else torch.split(self.whole.bias, self.sizes)
        return torch.cat([product(x_TD, *part) for part in zip(weights, biases, strict=True)], dim=-1)


def fuse(decoder: Decoder, names: Collection[str]) -> None:
    """Make one what is named, and take apart what is not."""
    for module in list(decoder.modules()):
        if isinstance(module, RMSNorm):
            module.fused = "norm" in names
        elif isinstance(module, Attention):
            module.rotate = apply_rotary_in_halves if "rotary" in names else apply_rotary
            if "qkv" not in names:
                kv = module.num_kv_heads * module.head_dim
                _take_apart(module, "qkv", (module.num_heads * module.head_dim, kv, kv))
        elif isinstance(module, MLP) and module.gated and "gate_up" not in names:
            _take_apart(module, "up", (module.num_hidden, module.num_hidden))


def _take_apart(module: nn.Module, name: str, sizes: Sequence[int]) -> None:
    whole = getattr(module, name)
    assert isinstance(whole, DenseLinear), "other schemes are refused before"
    setattr(module, name, Apart(whole, sizes))
