"""The module of a gated delta net."""

from collections.abc import Collection

import torch
from torch import Tensor, nn

from tokenmill.cache.pool import LayerStates
from tokenmill.cache.step import Step
from tokenmill.kernels.attend.kernel import Attend
from tokenmill.model.layers import make_linear, make_norm, sigmoid, silu
from tokenmill.model.mixers.convolution import convolve
from tokenmill.model.mixers.delta_net import DeltaNetBlock
from tokenmill.model.mixers.recurrence import recur, softplus
from tokenmill.model.rope import Angles
from tokenmill.quant.schemes import Scheme

EPS = 1e-6  # within the root, as the reference has it


def to_unit(x_TNK: Tensor) -> Tensor:
    """Bring each head's row to length 1."""
    return x_TNK * torch.rsqrt(x_TNK.square().sum(-1, keepdim=True) + EPS)


class DeltaNet(nn.Module):
    """Between the matrices everything is computed in float32."""

    def __init__(self, block: DeltaNetBlock, scheme: Scheme, fused: Collection[str]) -> None:
        super().__init__()
        self.block = block
        self.qkvz, self.gates, self.out = (
            make_linear(matrix, scheme, ("qkvz", "gates")) for matrix in block.matrices.values()
        )
        self.conv = nn.Parameter(torch.empty(block.num_channels, block.num_taps))
        self.A_log, self.dt_bias = (nn.Parameter(torch.empty(block.num_v_heads)) for _ in range(2))
        self.norm = make_norm(block.norm, fused)

    def forward(self, x_TD: Tensor, angles: Angles | None, kept: LayerStates, step: Step, attend: Attend) -> Tensor:
        block = self.block
        inner_TC, z_TC = self.qkvz(x_TD).tensor_split([block.num_channels], dim=-1)
        mixed_TC = silu(convolve(inner_TC, self.conv, None, kept, step))
        q_TC, k_TC, v_TC = torch.split(mixed_TC, list(block.qkvz.parts[:3]), dim=-1)
        served = block.num_v_heads // block.num_k_heads
        q_TNK, k_TNK = (
            to_unit(part.view(-1, block.num_k_heads, block.key_dim)).repeat_interleave(served, dim=1)
            for part in (q_TC, k_TC)
        )
        b_TN, a_TN = self.gates(x_TD).float().chunk(2, dim=-1)
        decay_TN = torch.exp(-torch.exp(self.A_log.float()) * softplus(a_TN + self.dt_bias.float()))
        out_TNV = recur(
            q_TNK * block.key_dim**-0.5,
            k_TNK,
            v_TC.reshape(-1, block.num_v_heads, block.value_dim),
            decay_TN,
            sigmoid(b_TN) * block.max_beta,
            kept,
            step,
        )
        gated_TNV = self.norm(out_TNV) * silu(z_TC.float()).view(out_TNV.shape)
        return self.out(gated_TNV.flatten(1).to(x_TD.dtype))  # type: ignore[no-any-return]
