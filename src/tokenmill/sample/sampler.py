"""The sampler: one token per row of logits.

The order is fixed: repetition, presence and frequency penalty, logit bias, the masks of allowed tokens and constraints,
minimum lengths and bad words; then, at temperature 0, the largest (lowest id among equals); otherwise top_n_sigma,
temperature, top_k, top_p, min_p, XTC and a draw with the one number of (seed, position); filters.py has all but the
draw. A row's token depends on that row alone, bit for bit, so batches and drafts cannot change it. A filter runs on the
rows that use it; when every row is plain greedy, only one `max` runs. On a CPU the native library, where there is one,
does all from the masks of constraints on (native.py), as far as it knows the settings.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tokenmill.errors import RequestError
from tokenmill.memory.transfer import HostCopy, Vector, to_device
from tokenmill.sample import native
from tokenmill.sample.filters import BEFORE_MASK, DRAW, MASK, changed, run
from tokenmill.sample.logprobs import TokenLogprobs, logprobs_of
from tokenmill.sample.native import largest
from tokenmill.sample.probabilities import draw
from tokenmill.sample.state import ChoiceKind, Row


@dataclass(frozen=True, slots=True)
class Sampled:
    """The token of each row, and its log-probabilities if the row wants them; None where no row does."""

    tokens: list[int]
    logprobs: list[TokenLogprobs | None] | None = None


class ChosenTokens:
    """One token per row that may still be on its way from the device."""

    def __init__(self, logits_RV: Tensor, rows: Sequence[Row], ids_R: Vector, *largest_R: Vector) -> None:
        """Begin to read. largest_R: logits that must be finite for a valid choice."""
        self._logits_RV, self._rows, self._ids_R = logits_RV, rows, ids_R
        self._reading = HostCopy(ids_R, *largest_R)

    @property
    def ids_R(self) -> Tensor:
        """Return the tokens, [R] int64, on the device."""
        return torch.as_tensor(self._ids_R)

    def read(self) -> Sampled:
        """Wait for the tokens. RequestError, by position, if a row has NaN or +inf or all its tokens are masked."""
        ids, *checked = self._reading.lists()
        for values in checked:
            if not all(map(math.isfinite, values)):
                raise _refusal(values, self._rows)
        tokens = [int(token) for token in ids]
        if all(row.choosing.params.logprobs is None for row in self._rows):
            return Sampled(tokens)
        return Sampled(tokens, logprobs_of(self._logits_RV, self._rows, tokens))


def choose(logits_RV: Tensor, rows: Sequence[Row]) -> ChosenTokens:
    """Choose one token per row, waiting for the device for top_p only. logits_RV: any float dtype; not changed.

    RequestError for ids outside the vocabulary. It concerns one row, but no row of the call gets a token.
    """
    assert len(rows) == logits_RV.shape[0]
    if all(row.kind is ChoiceKind.LARGEST for row in rows):
        return ChosenTokens(logits_RV, rows, *largest(logits_RV))
    if native.chooses(logits_RV):
        return _choose_natively(logits_RV, rows)
    logits_RV = logits_RV.float()
    processed_RV = run((*BEFORE_MASK, MASK), logits_RV, rows)
    largest_R, ids_R = processed_RV.max(dim=-1)
    ids_R = changed(ids_R, lambda row: row.params.temperature > 0, _draw, processed_RV, rows)
    # A mask could hide infinite or missing logits of the model, and a penalty could make some: check both.
    return ChosenTokens(logits_RV, rows, ids_R, logits_RV.amax(dim=-1), largest_R)


def _choose_natively(logits_RV: Tensor, rows: Sequence[Row]) -> ChosenTokens:
    """Choose as `choose` does; the library applies the masks of constraints, filters and draws. Rows that are drawn by
    a setting that it does not know are drawn by torch.
    """
    float_RV = logits_RV.float()
    processed_RV = run(BEFORE_MASK, float_RV, rows)
    ids: Vector
    ids, values, admitted = native.choose_tokens(processed_RV, rows)
    if any(map(native.refuses, rows)):
        masked_RV = run([MASK], processed_RV, rows)
        ids = changed(torch.tensor(ids), native.refuses, _draw, masked_RV, rows)
    raw = values if processed_RV is float_RV else largest(logits_RV)[1]
    return ChosenTokens(float_RV, rows, ids, raw, admitted)


def sample_singly(logits_RV: Tensor, rows: Sequence[Row]) -> tuple[Sampled, dict[int, RequestError]]:
    """Sample row by row, after a refusal: the tokens of the rows that can be sampled, the errors of the others."""
    tokens, logprobs, errors = list[int](), list[TokenLogprobs | None](), dict[int, RequestError]()
    for index, row in enumerate(rows):
        try:
            one = choose(logits_RV[index : index + 1], [row]).read()
        except RequestError as error:
            one, errors[index] = Sampled([0]), error
        tokens += one.tokens
        logprobs += one.logprobs or [None]
    return Sampled(tokens, logprobs), errors


def _refusal(values: list[float], rows: Sequence[Row]) -> RequestError:
    """Make the error for the first row whose largest logit, NaN if any is, cannot be sampled from."""
    value, row = next(each for each in zip(values, rows, strict=True) if not math.isfinite(each[0]))
    if value == -math.inf:
        masks = "logit_bias, allowed_token_ids, bad_words, min_new_tokens or the constraint"
        return RequestError(f"every token is masked at position {row.position}; relax {masks}")
    what = f"logits are not finite at position {row.position}: {value}"
    return RequestError(f"{what}; try dtype float32 if it is another")


def _draw(logits_RV: Tensor, rows: Sequence[Row]) -> Tensor:
    # From here on only differences between logits matter; with the largest at 0 no temperature can overflow.
    logits_RV = logits_RV - logits_RV.amax(dim=-1, keepdim=True)
    noise_R = to_device([row.noise for row in rows], logits_RV.device, torch.float64)
    ids_R = draw(run([*DRAW.values()], logits_RV, rows), noise_R)
    return ids_R.clamp(0, logits_RV.shape[-1] - 1)  # a row of NaN, which `read` refuses, may draw any id
