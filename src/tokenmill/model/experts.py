"""The module of a mixture of experts, and how a token's experts are chosen."""

from collections.abc import Collection

import torch
from torch import Tensor, nn

from tokenmill.model.layers import MLP, make_linear, sigmoid
from tokenmill.model.mixture import ExpertsBlock
from tokenmill.quant.matrix import is_traced
from tokenmill.quant.schemes import Scheme


def within_groups(scores_TE: Tensor, number: int, chosen: int, best: int) -> Tensor:
    """Replace the scores of experts outside the best groups by -inf. A group's score is the sum of its best few."""
    groups_TGE = scores_TE.view(len(scores_TE), number, -1)
    best_TG = groups_TGE.topk(min(best, groups_TGE.shape[-1]), dim=-1).values.sum(-1)
    kept_TG = torch.zeros_like(best_TG, dtype=torch.bool).scatter(-1, best_TG.topk(chosen, dim=-1).indices, True)
    return groups_TGE.masked_fill(~kept_TG[..., None], -torch.inf).view(scores_TE.shape)


class MoE(nn.Module):
    """Mixture of experts: each token goes through the few MLPs that a router picks for it (Shazeer et al. 2017).

    A token's sum over its experts runs in the order of the experts' numbers.
    """

    def __init__(self, block: ExpertsBlock, scheme: Scheme, fused: Collection[str]) -> None:
        super().__init__()
        self.router = make_linear(block.router, scheme, fused)
        self.experts = nn.ModuleList(MLP(block.expert, scheme, fused) for _ in range(block.num))
        around = (None, None) if block.latent is None else block.latent
        self.latent_in, self.latent_out = (
            None if each is None else make_linear(each, scheme, fused) for each in around
        )
        self.shared = None if block.shared is None else MLP(block.shared, scheme, fused)
        self.shared_gate = None if block.shared_gate is None else make_linear(block.shared_gate, scheme, fused)
        self.correction, self.expert_scale = (
            nn.Parameter(torch.empty(block.num)) if there else None for there in (block.correction, block.expert_scale)
        )
        self.block = block

    def forward(self, x_TD: Tensor, routed_TD: Tensor | None = None) -> Tensor:
        """Compute the sums of the chosen experts. routed_TD: what the router reads, where that is not x."""
        logits_TE = self.router(x_TD if routed_TD is None else routed_TD).float()
        inner_TD = x_TD if self.latent_in is None else self.latent_in(x_TD)
        out_TD = (self._all if is_traced() else self._chosen)(inner_TD, *self._route(logits_TE))
        if self.latent_out is not None:
            out_TD = self.latent_out(out_TD)
        if self.shared is None:
            return out_TD
        shared_TD: Tensor = self.shared(x_TD)
        if self.shared_gate is not None:
            shared_TD = sigmoid(self.shared_gate(x_TD)) * shared_TD
        return out_TD + shared_TD

    def _route(self, logits_TE: Tensor) -> tuple[Tensor, Tensor]:
        """Choose each token's experts: their weights and their numbers, [T, C] each."""
        block = self.block
        scores_TE = sigmoid(logits_TE) if block.scores == "sigmoid" else torch.softmax(logits_TE, dim=-1)
        wanted_TE = scores_TE if self.correction is None else scores_TE + self.correction.float()
        if block.groups is not None:
            wanted_TE = within_groups(wanted_TE, *block.groups)
        chosen_TC = torch.topk(wanted_TE, block.chosen, dim=-1).indices
        weights_TC = scores_TE.gather(-1, chosen_TC)
        if block.normalise:
            weights_TC = weights_TC / (weights_TC.sum(dim=-1, keepdim=True) + block.eps)
        if self.expert_scale is not None:
            weights_TC = weights_TC * self.expert_scale.float()[chosen_TC]
        return weights_TC * block.scale if block.scale != 1.0 else weights_TC, chosen_TC

    def _chosen(self, x_TD: Tensor, weights_TC: Tensor, chosen_TC: Tensor) -> Tensor:
        out_TD = torch.zeros_like(x_TD)
        for expert in torch.unique(chosen_TC).tolist():
            rows, places = torch.where(chosen_TC == expert)
            part_RD = self.experts[expert](x_TD[rows]) * weights_TC[rows, places, None]
            out_TD.index_add_(0, rows, part_RD.to(x_TD.dtype))
        return out_TD

    def _all(self, x_TD: Tensor, weights_TC: Tensor, chosen_TC: Tensor) -> Tensor:
        """Compute every expert for every token, times 0 where it is not chosen: compilers need steps without data."""
        out_TD = torch.zeros_like(x_TD)
        for number, expert in enumerate(self.experts):
            weights_T1 = torch.where(chosen_TC == number, weights_TC, 0).sum(-1, keepdim=True)
            out_TD = out_TD + (expert(x_TD) * weights_T1).to(x_TD.dtype)
        return out_TD
