"""Filters, from logits to logits: penalties, bias, masks; temperature, top-k, top-p, min-p and others. The stages at
the end say which settings use a filter, and in which order the filters run: a new setting is a field and a stage here.

Logits are float32 [R, V], parameters are tensors [R] on the same device; a forbidden token is -inf. A row whose
parameter is "off" comes back bit for bit. What a filter does to a row depends on that row alone: comparisons,
elementwise arithmetic and integer sums only. Only top_p waits for the device, once per attempt.

Each equals the processor of the same name in transformers (generation/logits_process.py), except that min_p and top_p
compare exactly where transformers compares rounded float32 sums, and that top_p has a rule for ties. The presence and
frequency penalties are as in OpenAI's API.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tokenmill.errors import RequestError
from tokenmill.memory.transfer import bits, to_device
from tokenmill.sample.dry import dry_penalties
from tokenmill.sample.probabilities import integer_probabilities
from tokenmill.sample.state import Row

NUM_CANDIDATES = 1024  # topk of so many out of 49152 takes a tenth of a sort


def repetition_penalty(logits_RV: Tensor, rows_N: Tensor, ids_N: Tensor, penalty_N: Tensor) -> Tensor:
    """Divide the logit of each token that occurred by the penalty where it is positive, multiply it where negative.

    rows_N, ids_N: the token ids_N[i] occurred in row rows_N[i]; no pair may occur twice, here and below. Off: 1.
    """
    logits_N = logits_RV[rows_N, ids_N]
    return logits_RV.index_put((rows_N, ids_N), torch.where(logits_N < 0, logits_N * penalty_N, logits_N / penalty_N))


def presence_and_frequency_penalty(
    logits_RV: Tensor, rows_N: Tensor, ids_N: Tensor, presence_N: Tensor, frequency_N: Tensor, counts_N: Tensor
) -> Tensor:
    """Subtract from each generated token the first penalty once, the second as often as it occurs. Off: 0."""
    return logits_RV.index_put((rows_N, ids_N), logits_RV[rows_N, ids_N] - presence_N - frequency_N * counts_N)


def logit_bias(logits_RV: Tensor, rows_N: Tensor, ids_N: Tensor, bias_N: Tensor) -> Tensor:
    """Add bias_N[i] to the logit of token ids_N[i] in row rows_N[i]; -inf forbids it."""
    return logits_RV.index_put((rows_N, ids_N), logits_RV[rows_N, ids_N] + bias_N)


def allowed_tokens(logits_RV: Tensor, allowed_RV: Tensor) -> Tensor:
    """Keep only the tokens whose place in the mask is true. Off: all true."""
    return torch.where(allowed_RV, logits_RV, -torch.inf)


def temperature(logits_RV: Tensor, temperature_R: Tensor) -> Tensor:
    """Divide logits by the temperature, which is above 0. Off: 1."""
    return logits_RV / temperature_R[:, None]


def top_k(logits_RV: Tensor, k_R: Tensor, max_k: int) -> Tensor:
    """Keep the k largest logits and all that equal the k-th. Off: 0, -1, or k of at least V. max_k: the largest k."""
    k_R1 = k_R[:, None].clamp(max=logits_RV.shape[-1])
    largest_RK = logits_RV.topk(max(min(max_k, logits_RV.shape[-1]), 1), dim=-1).values
    kth_R1 = largest_RK.gather(-1, (k_R1 - 1).clamp(min=0))
    return torch.where(logits_RV < kth_R1.where(k_R1 > 0, -torch.inf), -torch.inf, logits_RV)


def top_p(logits_RV: Tensor, p_R: Tensor, num_candidates: int = NUM_CANDIDATES) -> Tensor:
    """Keep the smallest set of likeliest tokens whose probabilities sum to p; among equals the lowest ids. Off: 1.

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
    """Keep only tokens at least p times as likely as the likeliest. Off: 0.

    p_R: float64. Needs no softmax: probabilities have the ratio p where logits differ by log p.
    """
    below_RV = logits_RV - logits_RV.amax(dim=-1, keepdim=True)
    return torch.where(below_RV < p_R.log().float()[:, None], -torch.inf, logits_RV)


def top_n_sigma(logits_RV: Tensor, n_R: Tensor) -> Tensor:
    """Keep the logits that lie at most n standard deviations below the largest. n_R: float64, above 0.

    The deviation is of all finite logits, which are counted in units of 2**-14 so that their sums are exact, at most
    256 below the largest. A temperature changes logits and deviation alike.
    """
    largest_R1, is_there_RV = logits_RV.amax(dim=-1, keepdim=True), logits_RV.isfinite()
    below_RV = torch.where(is_there_RV, largest_R1 - logits_RV, 0).double().clamp(max=256)
    units_RV = (below_RV * 2**14).round().to(torch.int64)
    count_R1 = is_there_RV.sum(dim=-1, keepdim=True)
    sums = (each.sum(dim=-1, keepdim=True).double() for each in (units_RV, units_RV * units_RV))
    mean_R1, square_R1 = (sum_R1 / count_R1 for sum_R1 in sums)
    sigma_R1 = (square_R1 - mean_R1.square()).clamp(min=0).sqrt() / 2**14
    return torch.where(below_RV > n_R[:, None] * sigma_R1, -torch.inf, logits_RV)


def xtc(logits_RV: Tensor, threshold_R: Tensor, strikes_R: Tensor) -> Tensor:
    """Drop the tokens with a probability of `threshold` or more, except the least likely of them and its equals.

    threshold_R: float64. strikes_R: in which rows it is done; chance decides.
    """
    weights_RV = integer_probabilities(logits_RV)
    wanted_R1 = (threshold_R[:, None] * weights_RV.sum(dim=-1, keepdim=True)).ceil()
    likely_RV = weights_RV >= wanted_R1.clamp(min=1)
    least_R1 = torch.where(likely_RV, weights_RV, torch.iinfo(torch.int64).max).amin(dim=-1, keepdim=True)
    return torch.where(likely_RV & (weights_RV > least_R1) & strikes_R[:, None], -torch.inf, logits_RV)


def _largest(values_RV: Tensor, smallest_R1: Tensor, num_kept_R1: Tensor) -> Tensor:
    """Mask the num_kept largest values of a row, the last being `smallest`; among its equals, the first."""
    above_RV, tied_RV = values_RV > smallest_R1, values_RV == smallest_R1
    num_tied_kept_R1 = num_kept_R1 - above_RV.sum(dim=-1, keepdim=True)
    return above_RV | (tied_RV & (tied_RV.cumsum(dim=-1) <= num_tied_kept_R1))


Uses = Callable[[Row], bool]
Change = Callable[[Tensor, Sequence[Row]], Tensor]


class Stage(NamedTuple):
    """A stage. uses: says whether the settings of a row ask for it. change: transforms the logits of such rows."""

    uses: Uses
    change: Change


def run(stages: Sequence[Stage], logits_RV: Tensor, rows: Sequence[Row]) -> Tensor:
    """Run each stage, in this order, on the rows that use it."""
    for uses, change in stages:
        logits_RV = changed(logits_RV, uses, change, logits_RV, rows)
    return logits_RV


def changed(values_R: Tensor, uses: Uses, change: Change, logits_RV: Tensor, rows: Sequence[Row]) -> Tensor:
    """Replace the values of the rows that use a change by the result of the change on their logits."""
    picked = [index for index, row in enumerate(rows) if uses(row)]
    if len(picked) == len(rows):
        return change(logits_RV, rows)
    if not picked:
        return values_R
    changed_P = change(take(logits_RV, picked), [rows[index] for index in picked])
    return values_R.index_copy(0, to_device(picked, logits_RV.device), changed_P)


def take(logits_RV: Tensor, picked: Sequence[int]) -> Tensor:
    """Pick some rows, in order. Indexing with a list would wait for the device."""
    if len(picked) == len(logits_RV):
        return logits_RV
    return logits_RV.index_select(0, to_device(picked, logits_RV.device))


def _repetition(logits_RV: Tensor, rows: Sequence[Row]) -> Tensor:
    rows_N, ids_N, _ = _occurring(logits_RV, rows, [0] * len(rows))
    return repetition_penalty(logits_RV, rows_N, ids_N, _setting(logits_RV, rows, "repetition_penalty")[rows_N])


def _presence_and_frequency(logits_RV: Tensor, rows: Sequence[Row]) -> Tensor:
    rows_N, ids_N, counts_N = _occurring(logits_RV, rows, [row.output_start for row in rows])
    presence_N, frequency_N = (
        _setting(logits_RV, rows, f"{name}_penalty")[rows_N] for name in ("presence", "frequency")
    )
    return presence_and_frequency_penalty(logits_RV, rows_N, ids_N, presence_N, frequency_N, counts_N)


def _dry(logits_RV: Tensor, rows: Sequence[Row]) -> Tensor:
    found = []
    for row in rows:
        how = row.params
        settings = (how.dry_multiplier, how.dry_base, how.dry_allowed_length, how.dry_penalty_last_n)
        found.append(dry_penalties(row.tokens, *settings, row.choosing.dry_breakers))
    rows_N, ids_N = _places(logits_RV, [tuple(each) for each in found], "prompt")
    amounts = [-penalty for each in found for penalty in each.values()]
    return logit_bias(logits_RV, rows_N, ids_N, to_device(amounts, logits_RV.device, torch.float32))


def _bias(logits_RV: Tensor, rows: Sequence[Row]) -> Tensor:
    rows_N, ids_N = _places(logits_RV, [tuple(row.params.logit_bias) for row in rows], "logit_bias")
    amounts = [amount for row in rows for amount in row.params.logit_bias.values()]
    return logit_bias(logits_RV, rows_N, ids_N, to_device(amounts, logits_RV.device, torch.float32))


def _allow(logits_RV: Tensor, rows: Sequence[Row]) -> Tensor:
    masks = [_mask(row.params.allowed_token_ids or (), logits_RV.shape[-1], logits_RV.device) for row in rows]
    return allowed_tokens(logits_RV, torch.stack(masks))


@lru_cache(maxsize=64)  # because a long list takes longer to check than a row to sample
def _mask(ids: tuple[int, ...], size: int, device: torch.device) -> Tensor:
    """Make a mask [V] that is true for these ids."""
    allowed_RV = torch.zeros(1, size, dtype=torch.bool, device=device)
    allowed_RV[_places(allowed_RV, [ids], "allowed_token_ids")] = True
    return allowed_RV[0]


def _constrain(logits_RV: Tensor, rows: Sequence[Row]) -> Tensor:
    size = logits_RV.shape[-1]
    words_RW = np.zeros((len(rows), -(-size // 32)), dtype=np.int32)
    for words_W, row in zip(words_RW, rows, strict=True):
        given = row.words
        assert given is not None, "the stage is of rows that use it"
        words_W[: len(given)] = given[: len(words_W)]
    return allowed_tokens(logits_RV, bits(words_RW, size, logits_RV.device))


def _forbid(logits_RV: Tensor, rows: Sequence[Row]) -> Tensor:
    rows_N, ids_N = _places(logits_RV, [row.forbidden_ids for row in rows], "stop_token_ids")
    return logit_bias(logits_RV, rows_N, ids_N, logits_RV.new_full((), -math.inf))


def _temperature(logits_RV: Tensor, rows: Sequence[Row]) -> Tensor:
    # A temperature below float32's smallest normal number would become 0.
    smallest = torch.finfo(torch.float32).tiny
    return temperature(logits_RV, _setting(logits_RV, rows, "temperature").clamp(min=smallest))


def _top_k(logits_RV: Tensor, rows: Sequence[Row]) -> Tensor:
    counts = [min(row.params.top_k, logits_RV.shape[-1]) for row in rows]
    return top_k(logits_RV, to_device(counts, logits_RV.device), max(counts))


def _top_p(logits_RV: Tensor, rows: Sequence[Row]) -> Tensor:
    # Only the tokens that top_k has kept, ties at the k-th place aside, have to be sorted.
    max_count = max(row.params.top_k if row.params.top_k > 0 else NUM_CANDIDATES for row in rows)
    p_R = _setting(logits_RV, rows, "top_p", torch.float64)
    return top_p(logits_RV, p_R, min(max_count, NUM_CANDIDATES))


def _min_p(logits_RV: Tensor, rows: Sequence[Row]) -> Tensor:
    return min_p(logits_RV, _setting(logits_RV, rows, "min_p", torch.float64))


def _top_n_sigma(logits_RV: Tensor, rows: Sequence[Row]) -> Tensor:
    return top_n_sigma(logits_RV, _setting(logits_RV, rows, "top_n_sigma", torch.float64))


def _xtc(logits_RV: Tensor, rows: Sequence[Row]) -> Tensor:
    strikes = [row.chance < row.params.xtc_probability for row in rows]
    threshold_R = _setting(logits_RV, rows, "xtc_threshold", torch.float64)
    return xtc(logits_RV, threshold_R, to_device(strikes, logits_RV.device, torch.bool))


def _setting(logits_RV: Tensor, rows: Sequence[Row], name: str, dtype: torch.dtype = torch.float32) -> Tensor:
    return to_device([getattr(row.params, name) for row in rows], logits_RV.device, dtype)


def _places(logits_RV: Tensor, ids: Sequence[Sequence[int]], setting: str) -> tuple[Tensor, Tensor]:
    """Make the row and token indices of every id, row after row."""
    rows_N = [row for row, row_ids in enumerate(ids) for _ in row_ids]
    ids_N = [token for row_ids in ids for token in row_ids]
    for token in ids_N:
        _check_id(token, logits_RV.shape[-1], setting)
    return to_device(rows_N, logits_RV.device), to_device(ids_N, logits_RV.device)


def _occurring(logits_RV: Tensor, rows: Sequence[Row], starts: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Find the tokens that occur in each row from some place on: row and token indices, and how often, float32 [N]."""
    found = [row.occurring(start) for row, start in zip(rows, starts, strict=True)]
    ids_N, counts_N = (np.concatenate(parts) for parts in zip(*found, strict=True))
    rows_N = np.repeat(np.arange(len(rows)), [len(ids) for ids, _ in found])
    for token in (ids_N.min(initial=0), ids_N.max(initial=0)):
        _check_id(int(token), logits_RV.shape[-1], "prompt")
    rows_N, ids_N, counts_N = (each_N[counts_N > 0] for each_N in (rows_N, ids_N, counts_N))
    device = logits_RV.device
    return to_device(rows_N, device), to_device(ids_N, device), to_device(counts_N, device, torch.float32)


def _check_id(token: int, size: int, setting: str) -> None:
    if not 0 <= token < size:
        known = f"the vocabulary has ids 0 to {size - 1} ({size} tokens)"
        raise RequestError(f"{setting} names token id {token}; {known}")


MASK = Stage(lambda row: row.mask is not None, _constrain)
BEFORE_MASK = (
    Stage(lambda row: row.params.repetition_penalty != 1, _repetition),
    Stage(lambda row: row.params.presence_penalty != 0 or row.params.frequency_penalty != 0, _presence_and_frequency),
    Stage(lambda row: row.params.uses_dry, _dry),
    Stage(lambda row: bool(row.params.logit_bias), _bias),
    Stage(lambda row: row.params.allowed_token_ids is not None, _allow),
    Stage(lambda row: bool(row.forbidden_ids), _forbid),
)
"""Stages that change the choice at temperature 0, too. A mask commutes with the last two."""
DRAW = {
    "top_n_sigma": Stage(lambda row: row.params.top_n_sigma > 0, _top_n_sigma),
    "temperature": Stage(lambda row: row.params.temperature != 1, _temperature),
    "top_k": Stage(lambda row: row.params.top_k > 0, _top_k),
    "top_p": Stage(lambda row: row.params.top_p < 1, _top_p),
    "min_p": Stage(lambda row: row.params.min_p > 0, _min_p),
    "xtc_probability": Stage(lambda row: row.params.xtc_probability > 0, _xtc),
}
"""Setting → its stage before the draw."""
