"""The module of Mamba 2."""

from collections.abc import Collection

import torch
from torch import Tensor, nn

from tokenmill.cache.pool import LayerStates
from tokenmill.cache.step import Step
from tokenmill.kernels.attend.kernel import Attend
from tokenmill.model.blocks import Norm
from tokenmill.model.layers import RMSNorm, make_linear, silu
from tokenmill.model.mixers.convolution import convolve
from tokenmill.model.mixers.mamba2 import Mamba2Block
from tokenmill.model.mixers.recurrence import recur, softplus
from tokenmill.model.rope import Angles
from tokenmill.quant.schemes import Scheme


class GroupedNorm(RMSNorm):
    """A norm of each group by itself, in float32."""

    def __init__(self, norm: Norm, num_groups: int) -> None:
        super().__init__(norm, fused=False)
        self.num_groups = num_groups

    def forward(self, x_TI: Tensor) -> Tensor:
        x_TGI = x_TI.view(x_TI.shape[0], self.num_groups, -1)
        x_TGI = x_TGI * torch.rsqrt(x_TGI.square().mean(-1, keepdim=True) + self.eps)
        return x_TGI.flatten(1) * self.weight.float()


class Mamba2(nn.Module):
    """Between the matrices everything is computed in float32."""

    def __init__(self, block: Mamba2Block, scheme: Scheme, fused: Collection[str]) -> None:
        super().__init__()
        self.block = block
        self.inner, self.out = make_linear(block.inner, scheme, ("inner",)), make_linear(block.out, scheme, ())
        self.conv = nn.Parameter(torch.empty(block.num_channels, block.num_taps))
        self.conv_bias = nn.Parameter(torch.empty(block.num_channels)) if block.conv_bias else None
        self.A_log, self.D, self.dt_bias = (nn.Parameter(torch.empty(block.num_heads)) for _ in range(3))
        self.norm = None if block.norm is None else GroupedNorm(block.norm, block.num_groups)

    def forward(self, x_TD: Tensor, angles: Angles | None, kept: LayerStates, step: Step, attend: Attend) -> Tensor:
        block = self.block
        parts = [block.width, block.num_channels, block.num_heads]
        z_TI, mixed_TC, dt_TN = torch.split(self.inner(x_TD), parts, dim=-1)
        mixed_TC = silu(convolve(mixed_TC, self.conv, self.conv_bias, kept, step))
        x_TI, b_TS, c_TS = torch.split(mixed_TC, list(block.inner.parts[1:4]), dim=-1)
        x_TNV = x_TI.reshape(-1, block.num_heads, block.head_dim)
        b_TNK, c_TNK = (
            part.view(-1, block.num_groups, block.state_dim).repeat_interleave(block.num_heads // block.num_groups, 1)
            for part in (b_TS, c_TS)
        )
        step_TN = softplus(dt_TN.float() + self.dt_bias.float()).clamp(*block.dt_limits)
        decay_TN = torch.exp(-torch.exp(self.A_log.float()) * step_TN)
        out_TNV = recur(c_TNK, b_TNK, x_TNV * step_TN[..., None], decay_TN, None, kept, step)
        out_TNV += x_TNV * self.D.float()[:, None]
        out_TI, gate_TI = out_TNV.flatten(1), silu(z_TI.float())
        if self.norm is None:
            gated_TI = out_TI * gate_TI
        else:
            gated_TI = self.norm(out_TI) * gate_TI if block.norm_first else self.norm(out_TI * gate_TI)
        return self.out(gated_TI.to(x_TD.dtype))  # type: ignore[no-any-return]
