"""The module of Mamba 2."""

from collections.abc import Collection

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tokenmill.cache.pool import LayerStates
from tokenmill.cache.step import Step
from tokenmill.kernels.attend.kernel import Attend
from tokenmill.model.layers import make_linear, make_norm, silu
from tokenmill.model.mixers.convolution import convolve
from tokenmill.model.mixers.mamba2 import Mamba2Block
from tokenmill.model.mixers.recurrence import recur
from tokenmill.model.rope import Angles
from tokenmill.quant.schemes import Scheme


class Mamba2(nn.Module):
    """Between the matrices everything is computed in float32."""

    def __init__(self, block: Mamba2Block, scheme: Scheme, fused: Collection[str]) -> None:
        super().__init__()
        self.block = block
        self.inner, self.out = make_linear(block.inner, scheme, ("inner",)), make_linear(block.out, scheme, ())
        self.conv = nn.Parameter(torch.empty(block.num_channels, block.num_taps))
        self.conv_bias = nn.Parameter(torch.empty(block.num_channels)) if block.conv_bias else None
        self.A_log, self.D, self.dt_bias = (nn.Parameter(torch.empty(block.num_heads)) for _ in range(3))
        self.norm = make_norm(block.norm, fused)

    def forward(self, x_TD: Tensor, angles: Angles | None, kept: LayerStates, step: Step, attend: Attend) -> Tensor:
        block = self.block
        inner = torch.split(self.inner(x_TD), list(block.inner.parts), dim=-1)
        z_TI, x_TI, b_TS, c_TS, dt_TN = (
            part if by == 1.0 else part * by for part, by in zip(inner, block.multipliers, strict=True)
        )
        mixed_TC = silu(convolve(torch.cat([x_TI, b_TS, c_TS], -1), self.conv, self.conv_bias, kept, step))
        x_TI, b_TS, c_TS = torch.split(mixed_TC, list(block.inner.parts[1:4]), dim=-1)
        x_TNV = x_TI.reshape(-1, block.num_heads, block.head_dim)
        b_TNK, c_TNK = (
            part.view(-1, block.num_groups, block.state_dim).repeat_interleave(block.num_heads // block.num_groups, 1)
            for part in (b_TS, c_TS)
        )
        step_TN = F.softplus(dt_TN.float() + self.dt_bias.float()).clamp(*block.dt_limits)
        decay_TN = torch.exp(-torch.exp(self.A_log.float()) * step_TN)
        out_TNV = recur(c_TNK, b_TNK, x_TNV * step_TN[..., None], decay_TN, None, kept, step)
        out_TNV += x_TNV * self.D.float()[:, None]
        return self.out(self._gated(out_TNV.flatten(1), silu(z_TI.float())).to(x_TD.dtype))  # type: ignore[no-any-return]

    def _gated(self, out_TI: Tensor, gate_TI: Tensor) -> Tensor:
        """Multiply by the gate, before or after the norm of each group."""
        first_TI = out_TI * gate_TI if self.norm is None or self.block.gate_first else out_TI
        if self.norm is None:
            return first_TI
        groups_TGI = first_TI.view(len(first_TI), self.block.num_groups, -1)
        groups_TGI = groups_TGI * torch.rsqrt(groups_TGI.square().mean(-1, keepdim=True) + self.norm.eps)
        normed_TI = groups_TGI.flatten(1) * self.norm.weight.float()
        return normed_TI if self.block.gate_first else normed_TI * gate_TI  # type: ignore[no-any-return]
