"""Log-probabilities of tokens, and of the likeliest ones in their place, from integer probabilities: a row has the same
bits in any batch. On a CPU the native library, where there is one, sums them up, compares and ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tokenmill.memory.transfer import to_device
from tokenmill.sample import native
from tokenmill.sample.filters import take
from tokenmill.sample.probabilities import integer_probabilities, weight_of_largest
from tokenmill.sample.state import Row


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probability of the chosen token, and the likeliest (id, log-probability) pairs, lowest id first among equals.

    They are of the model's raw logits, before any penalty, filter or temperature, as vLLM reports them. rank: the place
    of the chosen token among all, from 1.
    """

    logprob: float
    top: tuple[tuple[int, float], ...]
    rank: int


def logprobs_of(logits_RV: Tensor, rows: Sequence[Row], tokens: Sequence[int]) -> list[TokenLogprobs | None]:
    """Compute the log-probabilities of the token that each row chose, for rows that ask for them; some row must."""
    found: list[TokenLogprobs | None] = [None] * len(rows)
    wanted = {index: row.params.logprobs for index, row in enumerate(rows) if row.params.logprobs is not None}
    picked = list(wanted)
    ids_P = to_device([tokens[index] for index in picked], logits_RV.device)
    entries = token_logprobs(take(logits_RV, picked), ids_P, max(wanted.values()))
    for entry, (index, count) in zip(entries, wanted.items(), strict=True):
        found[index] = replace(entry, top=entry.top[:count])
    return found


def token_logprobs(logits_RV: Tensor, ids_R: Tensor, num_top: int) -> list[TokenLogprobs]:
    """Compute the log-probability of a token per row, with the `num_top` likeliest. logits_RV: any float dtype."""
    logits_RV, num_top = logits_RV.float(), min(num_top, logits_RV.shape[-1])
    if native.scores(logits_RV):
        totals_R1, ranks, top_RK = native.score(logits_RV, ids_R, num_top)
    else:
        keys_RV, size = _keys(logits_RV), logits_RV.shape[-1]
        top_RK = size - 1 - (keys_RV.topk(num_top, dim=-1).values & 0xFFFFFFFF)
        ranks = (keys_RV >= keys_RV.gather(-1, ids_R[:, None])).sum(dim=-1).tolist()
        totals_R1 = log_totals(logits_RV)
    shown_RK = torch.cat([ids_R[:, None], top_RK], dim=-1)
    values = (logits_RV.gather(-1, shown_RK).double() - totals_R1).float().tolist()
    rows = zip(values, top_RK.tolist(), ranks, strict=True)
    return [TokenLogprobs(own, tuple(zip(top, others, strict=True)), rank) for (own, *others), top, rank in rows]


def log_probability_of(logits_RV: Tensor, rows_N: Tensor, ids_N: Tensor) -> Tensor:
    """Compute entries (row, id) of log_softmax in float32, [N]. logits_RV: float32."""
    return (logits_RV[rows_N, ids_N].double() - log_totals(logits_RV)[rows_N, 0]).float()


def log_totals(logits_RV: Tensor) -> Tensor:
    """Compute the logarithm of the sum of a row's exponentials, float64 [R, 1]. logits_RV: float32."""
    if native.scores(logits_RV):
        return native.score(logits_RV)[0]
    totals_R1 = integer_probabilities(logits_RV).sum(dim=-1, keepdim=True).double()
    largest_R1 = logits_RV.amax(dim=-1, keepdim=True).double()
    return largest_R1 + (totals_R1 / weight_of_largest(logits_RV)).log()


def _keys(logits_RV: Tensor) -> Tensor:
    """Make integers in the order of the logits, the lowest id first among equals, which `topk` leaves to chance."""
    size = logits_RV.shape[-1]
    bits_RV = (logits_RV + 0.0).view(torch.int32).to(torch.int64)  # + 0.0 makes -0.0 equal to 0.0
    # IEEE floats read as integers are in order once the lower bits of the negative ones are flipped.
    order_RV = bits_RV ^ ((bits_RV >> 63) & 0x7FFFFFFF)
    return (order_RV << 32) | torch.arange(size - 1, -1, -1, device=logits_RV.device)
