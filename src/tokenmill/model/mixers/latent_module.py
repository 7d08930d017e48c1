"""The module of latent attention."""

from collections.abc import Collection

import torch
from torch import Tensor, nn

from tokenmill.cache.formats.layer import LayerKV
from tokenmill.cache.step import Step
from tokenmill.kernels.attend.kernel import Attend
from tokenmill.model.layers import make_linear, make_norm
from tokenmill.model.mixers.attention_module import temperatures
from tokenmill.model.mixers.latent import LatentBlock
from tokenmill.model.rope import Angles, apply_rotary, apply_rotary_in_halves
from tokenmill.quant.schemes import Scheme


class LatentAttention(nn.Module):
    """Attention with one kv head, whose rows are keys and values: see latent.py. R: the width of a row."""

    def __init__(self, block: LatentBlock, scheme: Scheme, fused: Collection[str]) -> None:
        super().__init__()
        self.block = block
        self.down = make_linear(block.down, scheme, ("down",))
        self.q_norm = make_norm(block.q_norm, fused)
        self.q_up = None if block.q_up is None else make_linear(block.q_up, scheme, fused)
        self.kv_norm = make_norm(block.kv_norm, fused)
        self.keys, self.values = (
            nn.ModuleList(make_linear(matrix, scheme, fused) for _ in range(block.num_heads))
            for matrix in (block.key, block.value)
        )
        self.out = make_linear(block.out, scheme, fused)
        self.rotate = apply_rotary_in_halves if "rotary" in fused else apply_rotary

    def forward(self, x_TD: Tensor, angles: Angles | None, layer_kv: LayerKV, step: Step, attend: Attend) -> Tensor:
        block = self.block
        q_TF, row_TR = torch.split(self.down(x_TD), list(block.down.parts), dim=-1)
        if self.q_up is not None:
            q_TF = self.q_up(self.q_norm(q_TF))
        q_TNF = q_TF.view(-1, block.num_heads, block.query_dim)
        plain_TNP, turned_TNE = torch.split(q_TNF, [block.plain_dim, block.rope_dim], dim=-1)
        latent_TL, end_TE = torch.split(row_TR, [block.latent_dim, block.rope_dim], dim=-1)
        end_T1E = end_TE[:, None]
        if angles is not None:
            turned_TNE, end_T1E = self.rotate(turned_TNE, *angles), self.rotate(end_T1E, *angles)
        row_T1R = torch.cat((self.kv_norm(latent_TL)[:, None], end_T1E), dim=-1)
        q_TNR = torch.cat((self._each(self.keys, plain_TNP), turned_TNE), dim=-1)
        if block.temperature is not None:
            q_TNR = q_TNR * temperatures(step.positions_T, *block.temperature).to(q_TNR.dtype)
        out_TNR = attend(q_TNR, row_T1R, row_T1R, layer_kv, step, block.shape)
        return self.out(self._each(self.values, out_TNR[..., : block.latent_dim]).flatten(1))  # type: ignore[no-any-return]

    @staticmethod
    def _each(matrices: nn.ModuleList, x_TNI: Tensor) -> Tensor:
        """Multiply each head's numbers with the head's own matrix, [T, N, I] → [T, N, O]."""
        pairs = zip(matrices, x_TNI.unbind(1), strict=True)
        return torch.stack([matrix(x_TI.contiguous()) for matrix, x_TI in pairs], dim=1)
