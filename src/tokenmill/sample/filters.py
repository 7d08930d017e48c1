"""Filters, pure functions from logits to logits with one parameter per row: temperature, top-k, top-p, min-p,
penalties, bias.

Logits are float32 [R, V], parameters are tensors [R] on the same device; a forbidden token is -inf. A row whose
parameter is "off" comes back bit for bit. What a filter does to a row depends on that row alone: comparisons,
elementwise arithmetic and integer sums only. Only top_p waits for the device, once per attempt.

Each equals the processor of the same name in transformers (generation/logits_process.py), except that min_p and top_p
compare exactly where transformers compares rounded float32 sums, and that top_p has a rule for ties. The presence and
frequency penalties are as in OpenAI's API.
"""

import torch
from torch import Tensor

from tokenmill.sample.probabilities import integer_probabilities

NUM_CANDIDATES = 1024  # topk of so many out of 49152 takes a tenth of a sort


def repetition_penalty(logits_RV: Tensor, penalty_R: Tensor, seen_RV: Tensor) -> Tensor:
    """Seen tokens' logits divided by the penalty where positive, multiplied where negative. Off: 1."""
    penalty_R1 = penalty_R[:, None]
    penalised_RV = torch.where(logits_RV < 0, logits_RV * penalty_R1, logits_RV / penalty_R1)
    return torch.where(seen_RV, penalised_RV, logits_RV)


def presence_and_frequency_penalty(
    logits_RV: Tensor, presence_R: Tensor, frequency_R: Tensor, counts_RV: Tensor
) -> Tensor:
    """Subtracts, from every token that was generated, the first once and the second as often as it was. Off: 0."""
    penalised_RV = logits_RV - presence_R[:, None] - frequency_R[:, None] * counts_RV
    return torch.where(counts_RV > 0, penalised_RV, logits_RV)


def logit_bias(logits_RV: Tensor, rows_N: Tensor, ids_N: Tensor, bias_N: Tensor) -> Tensor:
    """bias_N[i] added to the logit of token ids_N[i] in row rows_N[i]; -inf forbids it. No pair may occur twice."""
    return logits_RV.index_put((rows_N, ids_N), logits_RV[rows_N, ids_N] + bias_N)


def allowed_tokens(logits_RV: Tensor, allowed_RV: Tensor) -> Tensor:
    """Only the tokens whose place in the mask is true. Off: all true."""
    return torch.where(allowed_RV, logits_RV, -torch.inf)


def temperature(logits_RV: Tensor, temperature_R: Tensor) -> Tensor:
    """Logits divided by the temperature, which is above 0. Off: 1."""
    return logits_RV / temperature_R[:, None]


def top_k(logits_RV: Tensor, k_R: Tensor, max_k: int) -> Tensor:
    """Only the k largest logits and all that equal the k-th. Off: 0, -1, or k of at least V. max_k: the largest k."""
    k_R1 = k_R[:, None].clamp(max=logits_RV.shape[-1])
    largest_RK = logits_RV.topk(max(min(max_k, logits_RV.shape[-1]), 1), dim=-1).values
    kth_R1 = largest_RK.gather(-1, (k_R1 - 1).clamp(min=0))
    return torch.where(logits_RV < kth_R1.where(k_R1 > 0, -torch.inf), -torch.inf, logits_RV)


def top_p(logits_RV: Tensor, p_R: Tensor, num_candidates: int = NUM_CANDIDATES) -> Tensor:
    """The smallest set of likeliest tokens whose probabilities sum to p; of equally likely ones the lowest ids. Off: 1.

    p_R: float64. The likeliest token, the greedy one, always stays. A token stays if the tokens before it sum to less
    than p of the total. Only the `num_candidates` likeliest tokens are sorted; rows where these sum to less than p are
    tried again with eight times as many, at last the whole vocabulary. The outcome does not depend on the number.
    """
    weights_RV, p_R1 = integer_probabilities(logits_RV), p_R[:, None]
    wanted_R1 = p_R1 * weights_RV.sum(dim=-1, keepdim=True)
    candidates_RK = weights_RV.topk(min(num_candidates, weights_RV.shape[-1]), dim=-1).values
    before_RK = candidates_RK.cumsum(dim=-1) - candidates_RK
    num_kept_R1 = (before_RK < wanted_R1).sum(dim=-1, keepdim=True).clamp(min=1)
    smallest_R1 = candidates_RK.gather(-1, num_kept_R1 - 1)
    kept_RV = _largest(weights_RV, smallest_R1.where(p_R1 < 1, -1), num_kept_R1)
    narrowed_RV = torch.where(kept_RV, logits_RV, -torch.inf)
    if num_candidates < weights_RV.shape[-1]:
        is_enough_R1 = (candidates_RK.sum(dim=-1, keepdim=True) >= wanted_R1) | (p_R1 >= 1)
        again = (~is_enough_R1[:, 0]).nonzero()[:, 0]
        if len(again):
            narrowed_RV[again] = top_p(logits_RV[again], p_R[again], 8 * num_candidates)
    return narrowed_RV


def min_p(logits_RV: Tensor, p_R: Tensor) -> Tensor:
    """Only tokens at least p times as likely as the likeliest. Off: 0.

    p_R: float64. Needs no softmax: probabilities have the ratio p where logits differ by log p.
    """
    below_RV = logits_RV - logits_RV.amax(dim=-1, keepdim=True)
    return torch.where(below_RV < p_R.log().float()[:, None], -torch.inf, logits_RV)


def _largest(values_RV: Tensor, smallest_R1: Tensor, num_kept_R1: Tensor) -> Tensor:
    """Mask of the num_kept largest values of a row, the last of which is `smallest`; of those equal to it the first."""
    above_RV, tied_RV = values_RV > smallest_R1, values_RV == smallest_R1
    num_tied_kept_R1 = num_kept_R1 - above_RV.sum(dim=-1, keepdim=True)
    return above_RV | (tied_RV & (tied_RV.cumsum(dim=-1) <= num_tied_kept_R1))
