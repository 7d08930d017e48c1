"""Mixture of experts: each token goes through the few MLPs that a router picks for it (Shazeer et al. 2017)."""

import torch
from torch import Tensor, nn

from tokenmill.model.config import ModelConfig
from tokenmill.model.layers import MLP
from tokenmill.quant.dense import is_traced
from tokenmill.quant.schemes import Scheme

__all__ = ["MoE"]


class MoE(nn.Module):
    """A router and its experts. A token's sum over its experts runs in the order of the experts' numbers."""

    def __init__(self, config: ModelConfig, scheme: Scheme) -> None:
        super().__init__()
        self.router = scheme.router(config.hidden_size, config.num_experts)
        self.experts = nn.ModuleList(MLP(config, scheme) for _ in range(config.num_experts))
        self.num_chosen = config.num_experts_per_token
        self.norm_top_k = config.norm_top_k

    def forward(self, x_TD: Tensor) -> Tensor:
        """[T, D] → [T, D]"""
        probabilities_TE = torch.softmax(self.router(x_TD), dim=-1, dtype=torch.float32)
        weights_TC, chosen_TC = torch.topk(probabilities_TE, self.num_chosen, dim=-1)
        if self.norm_top_k:
            weights_TC = weights_TC / weights_TC.sum(dim=-1, keepdim=True)
        if is_traced():
            return self._all(x_TD, weights_TC, chosen_TC)
        out_TD = torch.zeros_like(x_TD)
        for expert in torch.unique(chosen_TC).tolist():
            rows, places = torch.where(chosen_TC == expert)
            part_RD = self.experts[expert](x_TD[rows]) * weights_TC[rows, places, None]
            out_TD.index_add_(0, rows, part_RD.to(x_TD.dtype))
        return out_TD

    def _all(self, x_TD: Tensor, weights_TC: Tensor, chosen_TC: Tensor) -> Tensor:
        """Every expert for every token, those not chosen times 0: nothing depends on data, as compilers need it."""
        out_TD = torch.zeros_like(x_TD)
        for number, expert in enumerate(self.experts):
            weights_T1 = torch.where(chosen_TC == number, weights_TC, 0).sum(-1, keepdim=True)
            out_TD = out_TD + (expert(x_TD) * weights_T1).to(x_TD.dtype)
        return out_TD
