"""A step that has begun: what it feeds, and what it chose, which may still be on its way from the device.

The next step may begin before this one is read: it takes over what was chosen on the device, while the host still only
knows which row chose it. That is one step ahead and no more.
"""

from torch import Tensor

from tokenmill.config import SamplingParams
from tokenmill.errors import RequestError
from tokenmill.sample.sampler import Row, Sampled, choose, sample_singly, take
from tokenmill.schedule.sequence import Plan, Sequence, Work

__all__ = ["Flight"]


class Flight:
    """places: per work of the plan, which of the rows that are sampled are its own.

    is_overtaken: the scheduler has gone on with what stands for the tokens, `unread`.
    """

    def __init__(self, plan: Plan, logits_RV: Tensor) -> None:
        """logits_RV: of every wanted row of the plan. The choice is begun."""
        self.plan, self.is_overtaken = plan, False
        self.places: list[range] = []
        self._rows: list[Row] = []
        picked: list[int] = []
        first = 0
        for work in plan.work:
            samples = work.num_logits if work.sequence.score_from is None else 0
            self.places.append(range(len(self._rows), len(self._rows) + samples))
            self._rows += [_row(work.sequence, index) for index in range(samples)]
            picked += range(first, first + samples)
            first += work.num_logits
        self._logits_RV = take(logits_RV, picked) if 0 < len(picked) < first else logits_RV
        try:
            self._choice = choose(self._logits_RV, self._rows) if self._rows else None
        except RequestError:  # `read` will find out whose
            self._choice = None

    @property
    def unread(self) -> list[list[int]]:
        """Per work what stands for the token that was chosen there, or nothing."""
        return [[-1 - place.start] if place else [] for place in self.places]

    def leave_out_finished(self) -> bool:
        """Sequences that have ended since have no part in it any more, even if they go on later; False if all have."""
        kept = [index for index, work in enumerate(self.plan.work) if work.sequence.finish_reason is None]
        self.plan = Plan([self.plan.work[index] for index in kept], self.plan.copies)
        self.places = [self.places[index] for index in kept]
        return bool(kept)

    @property
    def ids_R(self) -> Tensor | None:
        """What the rows chose, on the device; None where nothing was."""
        return None if self._choice is None else self._choice.ids_R

    @property
    def can_be_overtaken(self) -> bool:
        """Whether a next step can be planned, run and sampled without knowing what this one chose."""
        return all(_is_foreseen(work) for work in self.plan.work) and (self._choice is not None or not self._rows)

    def read(self) -> tuple[Sampled, dict[int, RequestError]]:
        """Wait for one token per row that samples, and which of those rows cannot be sampled."""
        if not self._rows:
            return Sampled([], []), {}
        if self._choice is not None:
            try:
                return self._choice.read(), {}
            except RequestError:
                pass
        return sample_singly(self._logits_RV, self._rows)


def _row(sequence: Sequence, index: int) -> Row:
    """The choice that follows the sequence's tokens and its first `index` drafts."""
    tokens = sequence.tokens + sequence.drafts[:index] if index else sequence.tokens
    position = len(sequence.tokens) + index
    masked = tuple(sequence.stop_ids) if sequence.params.min_new_tokens else ()
    start, counted = sequence.num_prompt_tokens, sequence.counted_from
    return Row(sequence.params, sequence.seed, position, tokens, start, masked, counted)


def _is_foreseen(work: Work) -> bool:
    """Whether it brings at most one token, that the next choice does not depend on but through the model."""
    sequence, params = work.sequence, work.sequence.params
    return sequence.score_from is None and not sequence.drafts and not _looks_back(params)


def _looks_back(params: SamplingParams) -> bool:
    penalties = (params.repetition_penalty - 1, params.presence_penalty, params.frequency_penalty)
    return params.logprobs is not None or any(penalties)
