"""The sampler: one token per row of logits.

The order is fixed: repetition, presence and frequency penalty, logit bias, the masks of allowed tokens and constraints,
minimum lengths and bad words; then, at temperature 0, the largest (lowest id among equals); otherwise temperature,
top_k, top_p, min_p and a draw with the one number of (seed, position). A row's token depends on that row alone, bit for
bit, so batches and drafts cannot change it. A filter runs on the rows that use it; when every row is plain greedy, only
one `max` runs. On a CPU the native library, where there is one, does all from the masks of constraints on (native.py).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from tokenmill.errors import RequestError
from tokenmill.memory.transfer import Reading, Vector, bits, to_device
from tokenmill.sample import filters, native
from tokenmill.sample.largest import largest
from tokenmill.sample.logprobs import TokenLogprobs, logprobs_of
from tokenmill.sample.noise import uniform
from tokenmill.sample.probabilities import draw
from tokenmill.sample.state import ChoiceKind, Row


@dataclass(frozen=True, slots=True)
class Sampled:
    """The token of each row, and its log-probabilities if the row wants them."""

    tokens: list[int]
    logprobs: list[TokenLogprobs | None]


class Choice:
    """One token per row that may still be on its way from the device."""

    def __init__(self, logits_RV: Tensor, rows: Sequence[Row], ids_R: Vector, *largest_R: Vector) -> None:
        """largest_R: what must be finite before the choice means anything."""
        self._logits_RV, self._rows, self._ids_R = logits_RV, rows, ids_R
        self._reading = Reading(ids_R, *largest_R)

    @property
    def ids_R(self) -> Tensor:
        """[R] int64, on the device."""
        return torch.as_tensor(self._ids_R)

    def read(self) -> Sampled:
        """Wait for the tokens. RequestError, by position, if a row has NaN or +inf or all its tokens are masked."""
        ids, *checked = self._reading.lists()
        for values in checked:
            _check(values, self._rows)
        tokens = [int(token) for token in ids]
        if all(row.choosing.params.logprobs is None for row in self._rows):
            return Sampled(tokens, [None] * len(tokens))
        return Sampled(tokens, logprobs_of(self._logits_RV, self._rows, tokens))


_Uses = Callable[[Row], bool]
_Stage = Callable[[Tensor, Sequence[Row]], Tensor]
_Stages = tuple[tuple[_Uses, _Stage], ...]


def choose(logits_RV: Tensor, rows: Sequence[Row]) -> Choice:
    """Choose one token per row, waiting for the device for top_p only. logits_RV: any float dtype; not changed.

    RequestError for ids outside the vocabulary. It concerns one row, but no row of the call is chosen for.
    """
    assert len(rows) == logits_RV.shape[0]
    if all(row.kind is ChoiceKind.LARGEST for row in rows):
        return Choice(logits_RV, rows, *largest(logits_RV))
    if native.chooses(logits_RV):
        return _choose_natively(logits_RV, rows)
    logits_RV = logits_RV.float()
    processed_RV = _run(_PENALTIES, logits_RV, rows)
    largest_R, ids_R = processed_RV.max(dim=-1)
    ids_R = _change(ids_R, lambda row: row.params.temperature > 0, _draw, processed_RV, rows)
    # A mask could hide what is wrong with the model's logits, and a penalty could bring it about: check both.
    return Choice(logits_RV, rows, ids_R, logits_RV.amax(dim=-1), largest_R)


def _choose_natively(logits_RV: Tensor, rows: Sequence[Row]) -> Choice:
    """As `choose`; the library applies the masks of constraints, filters and draws, whatever else the rows want."""
    float_RV = logits_RV.float()
    processed_RV = _run(_BEFORE_NATIVE, float_RV, rows)
    ids, values, admitted = native.choose_tokens(processed_RV, rows)
    raw = values if processed_RV is float_RV else largest(logits_RV)[1]
    return Choice(float_RV, rows, ids, raw, admitted)


def sample_singly(logits_RV: Tensor, rows: Sequence[Row]) -> tuple[Sampled, dict[int, RequestError]]:
    """Row by row, after a refusal: the tokens of the rows that can be sampled, the errors of the others."""
    sampled, errors = Sampled([], []), dict[int, RequestError]()
    for index, row in enumerate(rows):
        try:
            one = choose(logits_RV[index : index + 1], [row]).read()
        except RequestError as error:
            one, errors[index] = Sampled([0], [None]), error
        sampled.tokens.extend(one.tokens)
        sampled.logprobs.extend(one.logprobs)
    return sampled, errors


def _check(values: list[float], rows: Sequence[Row]) -> None:
    """RequestError for the first row whose largest logit, NaN if any is, cannot be sampled from."""
    if all(map(math.isfinite, values)):
        return
    for value, row in zip(values, rows, strict=True):
        if not math.isfinite(value):
            if value == -math.inf:
                masks = "logit_bias, allowed_token_ids, bad_words, min_new_tokens or the constraint"
                raise RequestError(f"every token is masked at position {row.position}; relax {masks}")
            raise RequestError(
                f"logits are not finite at position {row.position}: {value}; try dtype float32 if it is another"
            )


def _draw(logits_RV: Tensor, rows: Sequence[Row]) -> Tensor:
    # From here on only differences between logits matter; with the largest at 0 no temperature can overflow.
    logits_RV = logits_RV - logits_RV.amax(dim=-1, keepdim=True)
    noise_R = to_device([uniform(row.choosing.seed, row.position) for row in rows], logits_RV.device, torch.float64)
    ids_R = draw(_run(_WARPERS, logits_RV, rows), noise_R)
    return ids_R.clamp(0, logits_RV.shape[-1] - 1)  # a row of NaN, which `read` refuses, may draw any id


def _run(stages: _Stages, logits_RV: Tensor, rows: Sequence[Row]) -> Tensor:
    for uses, stage in stages:
        logits_RV = _change(logits_RV, uses, stage, logits_RV, rows)
    return logits_RV


def _change(values_R: Tensor, uses: _Uses, stage: _Stage, logits_RV: Tensor, rows: Sequence[Row]) -> Tensor:
    """The values with those of the rows that use the stage replaced by what it makes of their logits."""
    picked = [index for index, row in enumerate(rows) if uses(row)]
    if len(picked) == len(rows):
        return stage(logits_RV, rows)
    if not picked:
        return values_R
    changed_P = stage(take(logits_RV, picked), [rows[index] for index in picked])
    return values_R.index_copy(0, to_device(picked, logits_RV.device), changed_P)


def _repetition(logits_RV: Tensor, rows: Sequence[Row]) -> Tensor:
    seen_RV = _counts(logits_RV, [row.tokens for row in rows]) > 0
    return filters.repetition_penalty(logits_RV, _setting(logits_RV, rows, "repetition_penalty"), seen_RV)


def _presence_and_frequency(logits_RV: Tensor, rows: Sequence[Row]) -> Tensor:
    counts_RV = _counts(logits_RV, [row.output for row in rows])
    presence_R, frequency_R = (_setting(logits_RV, rows, f"{name}_penalty") for name in ("presence", "frequency"))
    return filters.presence_and_frequency_penalty(logits_RV, presence_R, frequency_R, counts_RV)


def _bias(logits_RV: Tensor, rows: Sequence[Row]) -> Tensor:
    rows_N, ids_N = _places(logits_RV, [tuple(row.params.logit_bias) for row in rows], "logit_bias")
    amounts = [amount for row in rows for amount in row.params.logit_bias.values()]
    return filters.logit_bias(logits_RV, rows_N, ids_N, to_device(amounts, logits_RV.device, torch.float32))


def _allow(logits_RV: Tensor, rows: Sequence[Row]) -> Tensor:
    masks = [_mask(row.params.allowed_token_ids or (), logits_RV.shape[-1], logits_RV.device) for row in rows]
    return filters.allowed_tokens(logits_RV, torch.stack(masks))


@lru_cache(maxsize=64)  # because a long list takes longer to check than a row to sample
def _mask(ids: tuple[int, ...], size: int, device: torch.device) -> Tensor:
    """A mask [V] that is true for these ids."""
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
    return filters.allowed_tokens(logits_RV, bits(words_RW, size, logits_RV.device))


def _forbid(logits_RV: Tensor, rows: Sequence[Row]) -> Tensor:
    rows_N, ids_N = _places(logits_RV, [row.forbidden_ids for row in rows], "stop_token_ids")
    return filters.logit_bias(logits_RV, rows_N, ids_N, logits_RV.new_full((), -math.inf))


def _temperature(logits_RV: Tensor, rows: Sequence[Row]) -> Tensor:
    # A temperature below float32's smallest normal number would become 0.
    smallest = torch.finfo(torch.float32).tiny
    return filters.temperature(logits_RV, _setting(logits_RV, rows, "temperature").clamp(min=smallest))


def _top_k(logits_RV: Tensor, rows: Sequence[Row]) -> Tensor:
    counts = [min(row.params.top_k, logits_RV.shape[-1]) for row in rows]
    return filters.top_k(logits_RV, to_device(counts, logits_RV.device), max(counts))


def _top_p(logits_RV: Tensor, rows: Sequence[Row]) -> Tensor:
    # Only the tokens that top_k has kept, ties at the k-th place aside, have to be sorted.
    max_count = max(row.params.top_k if row.params.top_k > 0 else filters.NUM_CANDIDATES for row in rows)
    p_R = _setting(logits_RV, rows, "top_p", torch.float64)
    return filters.top_p(logits_RV, p_R, min(max_count, filters.NUM_CANDIDATES))


def _min_p(logits_RV: Tensor, rows: Sequence[Row]) -> Tensor:
    return filters.min_p(logits_RV, _setting(logits_RV, rows, "min_p", torch.float64))


def _setting(logits_RV: Tensor, rows: Sequence[Row], name: str, dtype: torch.dtype = torch.float32) -> Tensor:
    """One sampling setting of each row, on the device of the logits."""
    return to_device([getattr(row.params, name) for row in rows], logits_RV.device, dtype)


_PENALTIES: _Stages = (
    (lambda row: row.params.repetition_penalty != 1, _repetition),
    (lambda row: row.params.presence_penalty != 0 or row.params.frequency_penalty != 0, _presence_and_frequency),
    (lambda row: bool(row.params.logit_bias), _bias),
    (lambda row: row.params.allowed_token_ids is not None, _allow),
    (lambda row: row.mask is not None, _constrain),
    (lambda row: bool(row.forbidden_ids), _forbid),
)
_BEFORE_NATIVE = tuple(each for each in _PENALTIES if each[1] is not _constrain)  # the library masks by itself
_WARPERS: _Stages = (
    (lambda row: row.params.temperature != 1, _temperature),
    (lambda row: row.params.top_k > 0, _top_k),
    (lambda row: row.params.top_p < 1, _top_p),
    (lambda row: row.params.min_p > 0, _min_p),
)


def take(logits_RV: Tensor, picked: Sequence[int]) -> Tensor:
    """Some rows, in order. Indexing with a list would wait for the device."""
    if len(picked) == len(logits_RV):
        return logits_RV
    return logits_RV.index_select(0, to_device(picked, logits_RV.device))


def _places(logits_RV: Tensor, ids: Sequence[Sequence[int]], setting: str) -> tuple[Tensor, Tensor]:
    """Row and token indices of every id, row after row."""
    size = logits_RV.shape[-1]
    rows_N = [row for row, row_ids in enumerate(ids) for _ in row_ids]
    ids_N = [token for row_ids in ids for token in row_ids]
    for token in ids_N:
        if not 0 <= token < size:
            known = f"the vocabulary has ids 0 to {size - 1} ({size} tokens)"
            raise RequestError(f"{setting} names token id {token}; {known}")
    return to_device(rows_N, logits_RV.device), to_device(ids_N, logits_RV.device)


def _counts(logits_RV: Tensor, tokens: Sequence[Sequence[int]]) -> Tensor:
    """The number of times that each token of the vocabulary occurs in each row's tokens, float32 [R, V]."""
    ones_N = torch.ones((), device=logits_RV.device)
    return torch.zeros_like(logits_RV).index_put_(_places(logits_RV, tokens, "prompt"), ones_N, accumulate=True)
