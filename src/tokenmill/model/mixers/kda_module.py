"""The module of Kimi delta attention."""

from collections.abc import Collection

import torch
from torch import Tensor, nn

from tokenmill.cache.pool import LayerStates
from tokenmill.cache.step import Step
from tokenmill.kernels.attend.kernel import Attend
from tokenmill.model.layers import make_linear, make_norm, sigmoid, silu
from tokenmill.model.mixers.convolution import convolve
from tokenmill.model.mixers.delta_net_module import to_unit
from tokenmill.model.mixers.kda import KimiDeltaBlock
from tokenmill.model.mixers.recurrence import recur, softplus
from tokenmill.model.rope import Angles
from tokenmill.quant.schemes import Scheme


class KimiDelta(nn.Module):
    """Between the matrices everything is computed in float32."""

    def __init__(self, block: KimiDeltaBlock, scheme: Scheme, fused: Collection[str]) -> None:
        super().__init__()
        self.block = block
        made = (make_linear(matrix, scheme, ("qkv",)) for matrix in block.matrices.values())
        self.qkv, self.beta, self.forget_in, self.forget_out, self.gate_in, self.gate_out, self.out = made
        self.conv = nn.Parameter(torch.empty(block.num_channels, block.num_taps))
        self.A_log = nn.Parameter(torch.empty(block.num_heads))
        self.dt_bias = nn.Parameter(torch.empty(block.num_heads * block.head_dim))
        self.norm = make_norm(block.norm, fused)

    def forward(self, x_TD: Tensor, angles: Angles | None, kept: LayerStates, step: Step, attend: Attend) -> Tensor:
        block, shape = self.block, (-1, self.block.num_heads, self.block.head_dim)
        mixed_TC = silu(convolve(self.qkv(x_TD), self.conv, None, kept, step))
        q_TNK, k_TNK, v_TNV = (part.reshape(shape) for part in mixed_TC.chunk(3, dim=-1))
        forget_TC = self.forget_out(self.forget_in(x_TD)).float() + self.dt_bias.float()
        rate_N1 = torch.exp(self.A_log.float())[:, None]
        decay_TNK = torch.exp(-rate_N1 * softplus(forget_TC).view(shape))
        scale = block.head_dim**-0.5
        beta_TN = sigmoid(self.beta(x_TD).float())
        out_TNV = recur(to_unit(q_TNK) * scale, to_unit(k_TNK), v_TNV, decay_TNK, beta_TN, kept, step)
        gate_TNV = sigmoid(self.gate_out(self.gate_in(x_TD)).float()).view(shape)
        return self.out((self.norm(out_TNV) * gate_TNV).flatten(1).to(x_TD.dtype))  # type: ignore[no-any-return]
