"""Log-probabilities of chosen tokens, and of the likeliest ones in their place."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tokenmill.memory.transfer import to_device
from tokenmill.sample.probabilities import log_probability
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
    entries = token_logprobs(logits_RV[picked], ids_P, max(wanted.values()))
    for entry, (index, count) in zip(entries, wanted.items(), strict=True):
        found[index] = replace(entry, top=entry.top[:count])
    return found


def token_logprobs(logits_RV: Tensor, ids_R: Tensor, num_top: int) -> list[TokenLogprobs]:
    """Compute the log-probability of a token per row, with the `num_top` likeliest; the same bits in any batch."""
    logprobs_RV = log_probability(logits_RV)
    values = logprobs_RV.gather(-1, ids_R[:, None]).squeeze(-1).tolist()
    keys_RV, size = _keys(logits_RV), logits_RV.shape[-1]
    ranked_RK = size - 1 - (keys_RV.topk(min(num_top, size), dim=-1).values & 0xFFFFFFFF)
    tops = zip(ranked_RK.tolist(), logprobs_RV.gather(-1, ranked_RK).tolist(), strict=True)
    ranks = (keys_RV >= keys_RV.gather(-1, ids_R[:, None])).sum(dim=-1).tolist()
    rows = zip(values, tops, ranks, strict=True)
    return [TokenLogprobs(value, tuple(zip(*top, strict=True)), rank) for value, top, rank in rows]


def _keys(logits_RV: Tensor) -> Tensor:
    """Make integers in the order of the logits, the lowest id first among equals, which `topk` leaves to chance."""
    size = logits_RV.shape[-1]
    bits_RV = (logits_RV + 0.0).view(torch.int32).to(torch.int64)  # + 0.0 makes -0.0 equal to 0.0
    # IEEE floats read as integers are in order once the lower bits of the negative ones are flipped.
    order_RV = bits_RV ^ ((bits_RV >> 63) & 0x7FFFFFFF)
    return (order_RV << 32) | torch.arange(size - 1, -1, -1, device=logits_RV.device)
