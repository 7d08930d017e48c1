"""Mixture of experts: each token goes through the few MLPs that a router picks for it (Shazeer et al. 2017)."""

from collections.abc import Collection

import torch
from torch import Tensor, nn

from tokenmill.model.blocks import ExpertsBlock
from tokenmill.model.fusion import make_linear
from tokenmill.model.layers import MLP
from tokenmill.quant.dense import is_traced
from tokenmill.quant.schemes import Scheme

__all__ = ["MoE"]


class MoE(nn.Module):
    """A router and its experts. A token's sum over its experts runs in the order of the experts' numbers."""

    def __init__(self, block: ExpertsBlock, scheme: Scheme, fused: Collection[str]) -> None:
        super().__init__()
        self.router = scheme.router(block.router.inputs, block.router.outputs)
        self.experts = nn.ModuleList(MLP(block.expert, scheme, fused) for _ in range(block.num))
        self.shared = None if block.shared is None else MLP(block.shared, scheme, fused)
        self.shared_gate = None if block.shared_gate is None else make_linear(block.shared_gate, scheme, fused)
        self.num_chosen, self.normalise, self.scores = block.chosen, block.normalise, block.scores

    def forward(self, x_TD: Tensor) -> Tensor:
        """[T, D] → [T, D]"""
        logits_TE = self.router(x_TD)
        if self.scores == "sigmoid":
            scores_TE = logits_TE.float().sigmoid()
        else:
            scores_TE = torch.softmax(logits_TE, dim=-1, dtype=torch.float32)
        weights_TC, chosen_TC = torch.topk(scores_TE, self.num_chosen, dim=-1)
        if self.normalise:
            weights_TC = weights_TC / weights_TC.sum(dim=-1, keepdim=True)
        out_TD = (self._all if is_traced() else self._chosen)(x_TD, weights_TC, chosen_TC)
        if self.shared is None:
            return out_TD
        shared_TD: Tensor = self.shared(x_TD)
        if self.shared_gate is not None:
            shared_TD = self.shared_gate(x_TD).sigmoid() * shared_TD
        return out_TD + shared_TD

    def _chosen(self, x_TD: Tensor, weights_TC: Tensor, chosen_TC: Tensor) -> Tensor:
        """Each expert for the tokens that chose it."""
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
