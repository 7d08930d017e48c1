"""The module of a gated short convolution."""

from collections.abc import Collection

import torch
from torch import Tensor, nn

from tokenmill.cache.pool import LayerStates
from tokenmill.cache.step import Step
from tokenmill.kernels.attend.kernel import Attend
from tokenmill.model.layers import make_linear
from tokenmill.model.mixers.convolution import convolve
from tokenmill.model.mixers.short_conv import ShortConvBlock
from tokenmill.model.rope import Angles
from tokenmill.quant.schemes import Scheme


class ShortConv(nn.Module):
    def __init__(self, block: ShortConvBlock, scheme: Scheme, fused: Collection[str]) -> None:
        super().__init__()
        self.inner = make_linear(block.inner, scheme, ("inner",))
        self.out = make_linear(block.out, scheme, ())
        self.conv = nn.Parameter(torch.empty(block.width, block.num_taps))
        self.conv_bias = nn.Parameter(torch.empty(block.width)) if block.bias else None

    def forward(self, x_TD: Tensor, angles: Angles | None, kept: LayerStates, step: Step, attend: Attend) -> Tensor:
        b_TD, c_TD, x_TD = self.inner(x_TD).chunk(3, dim=-1)
        mixed_TD = convolve(b_TD * x_TD, self.conv, self.conv_bias, kept, step)
        return self.out(c_TD * mixed_TD.to(c_TD.dtype))  # type: ignore[no-any-return]
