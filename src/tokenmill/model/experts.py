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


def within_margin(logits_TE: Tensor, margin: float) -> tuple[Tensor, Tensor]:
    """Choose two experts, the best and the best of the others, and weigh each by a softmax of its own (SparseMixer-2,
    arXiv 2409.12136): their weights and their numbers, [T, 2] each.

    In that softmax are the experts whose logit lies below the chosen one by at most 2 · margin of the larger of |logit|
    and the chosen logit; in the second one, the first choice is left out.
    """
    left_TE, weights, chosen = logits_TE, [], []
    for _ in range(2):
        best_T1, chosen_T1 = left_TE.max(dim=-1, keepdim=True)
        far_TE = (best_T1 - logits_TE) / torch.maximum(logits_TE.abs(), best_T1) > 2 * margin
        shares_TE = torch.softmax(left_TE.masked_fill(far_TE, -torch.inf), dim=-1)
        weights.append(shares_TE.gather(-1, chosen_T1))
        chosen.append(chosen_T1)
        left_TE = left_TE.scatter(-1, chosen_T1, -torch.inf)
    return torch.cat(weights, dim=-1), torch.cat(chosen, dim=-1)


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
        self.rows: Tensor | None = None  # the tokens that the present expert gets, of all tokens of the step

    def forward(self, x_TD: Tensor, routed_TD: Tensor | None = None) -> Tensor:
        """Compute the sums of the chosen experts. routed_TD: what the router reads, where that is not x."""
        logits_TE = self.router(x_TD if routed_TD is None else routed_TD).float()
        inner_TD = x_TD if self.latent_in is None else self.latent_in(x_TD)
        out_TD = (self._all if is_traced() else self._chosen)(inner_TD, *self.choose(logits_TE))
        if self.latent_out is not None:
            out_TD = self.latent_out(out_TD)
        if self.shared is None:
            return out_TD
        shared_TD: Tensor = self.shared(x_TD)
        if self.shared_gate is not None:
            shared_TD = sigmoid(self.shared_gate(x_TD)) * shared_TD
        return out_TD + shared_TD

    def choose(self, logits_TE: Tensor) -> tuple[Tensor, Tensor]:
        """Choose each token's experts: their weights and their numbers, [T, C] each."""
        block = self.block
        if block.margin is not None:
            return within_margin(logits_TE, block.margin)
        scores_TE = sigmoid(logits_TE) if block.scores == "sigmoid" else torch.softmax(logits_TE, dim=-1)
        wanted_TE = logits_TE if block.on_inputs else scores_TE
        wanted_TE = wanted_TE if self.correction is None else wanted_TE + self.correction.float()
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
            self.rows = rows
            part_RD = self._weighted(self.experts[expert], x_TD[rows], weights_TC[rows, places, None])
            out_TD.index_add_(0, rows, part_RD)
        return out_TD

    def _weighted(self, expert: nn.Module, x_RD: Tensor, weights_R1: Tensor) -> Tensor:
        """Compute an expert's share of its tokens' sums, in the dtype of x."""
        if self.block.on_inputs:
            return expert((x_RD * weights_R1).to(x_RD.dtype))  # type: ignore[no-any-return]
        return (expert(x_RD) * weights_R1).to(x_RD.dtype)  # type: ignore[no-any-return]

    def _all(self, x_TD: Tensor, weights_TC: Tensor, chosen_TC: Tensor) -> Tensor:
        """Compute every expert for every token, times 0 where it is not chosen: compilers need steps without data."""
        out_TD = torch.zeros_like(x_TD)
        for number, expert in enumerate(self.experts):
            weights_T1 = torch.where(chosen_TC == number, weights_TC, 0).sum(-1, keepdim=True)
            out_TD = out_TD + self._weighted(expert, x_TD, weights_T1)
        return out_TD
