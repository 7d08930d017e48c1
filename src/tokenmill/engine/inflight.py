"""A step in flight: it has begun, and its tokens may still be on their way from the device.

With async scheduling the next step begins before the tokens of this one are read. The device hands them on to the next
step, while the scheduler holds a placeholder for each, the mark of the row that chose it. One step at most is in
flight.
"""

from collections.abc import Iterator

from torch import Tensor

from tokenmill.errors import RequestError
from tokenmill.sample.sampler import Sampled, choose, sample_singly, take
from tokenmill.sample.state import ChoiceKind, Row, SamplerState
from tokenmill.schedule.sequence import Plan, Sequence, Work, unread_mark

__all__ = ["InFlight", "collect"]


class InFlight:
    """rows_of: for each work item of the plan, which of the sampled rows are its own.

    is_overtaken: the next step was planned already, with marks in the places of this step's tokens.
    """

    def __init__(self, plan: Plan, logits_RV: Tensor) -> None:
        """logits_RV: of every wanted row of the plan. Choosing the tokens begins here."""
        self.plan, self.is_overtaken = plan, False
        self.rows_of: list[range] = []
        self._rows: list[Row] = []
        picked: list[int] = []
        first = 0
        for work in plan.work:
            num_sampled = work.num_logits if work.sequence.score_from is None else 0
            self.rows_of.append(range(len(self._rows), len(self._rows) + num_sampled))
            self._rows += _sampled_rows(work) if num_sampled else ()
            picked += range(first, first + num_sampled)
            first += work.num_logits
        self._logits_RV = take(logits_RV, picked) if 0 < len(picked) < first else logits_RV
        try:
            self._choice = choose(self._logits_RV, self._rows) if self._rows else None
        except RequestError:  # `read` samples row by row and finds the one that fails
            self._choice = None

    @property
    def unread(self) -> list[list[int]]:
        """For each work item, the mark of its unread token; empty if it samples none."""
        return [[unread_mark(rows.start)] if rows else [] for rows in self.rows_of]

    def leave_out_finished(self) -> bool:
        """Leave out sequences that have ended since, even if they are resumed later; False if none is left."""
        kept = [index for index, work in enumerate(self.plan.work) if work.sequence.finish_reason is None]
        self.plan = self.plan._replace(work=[self.plan.work[index] for index in kept])
        self.rows_of = [self.rows_of[index] for index in kept]
        return bool(kept)

    @property
    def ids_R(self) -> Tensor | None:
        """The tokens that the rows chose, on the device; None if no row was sampled."""
        return None if self._choice is None else self._choice.ids_R

    @property
    def can_be_overtaken(self) -> bool:
        """Whether a next step can be planned, run and sampled before the tokens of this one are read."""
        return all(map(_can_go_unread, self.plan.work)) and (self._choice is not None or not self._rows)

    def read(self) -> tuple[Sampled, dict[int, RequestError]]:
        """Wait for one token for each sampled row, and the errors of the rows that cannot be sampled."""
        if not self._rows:
            return Sampled([], []), {}
        if self._choice is not None:
            try:
                return self._choice.read(), {}
            except RequestError:
                pass
        return sample_singly(self._logits_RV, self._rows)


def collect(plan: Plan, logits_RV: Tensor) -> None:
    """Hand the logits of scored sequences to their `collect`."""
    first = 0
    for work in plan.work:
        sequence = work.sequence
        if sequence.collect is not None and work.num_logits:
            sequence.collect(work, logits_RV[first : first + work.num_logits])
            sequence.score_from = work.start + work.count  # no row is handed over twice, even if preempted
        first += work.num_logits


def _sampled_rows(work: Work) -> Iterator[Row]:
    """The choice after the sequence's own tokens, and after each of its drafts."""
    state = _state(work.sequence)
    yield state.row()
    for draft in work.drafts[: work.num_logits - 1]:
        state.accept(draft)
        yield state.row()


def _state(sequence: Sequence) -> SamplerState:
    masked = tuple(sequence.stop_ids) if sequence.params.min_new_tokens else ()
    start, counted = sequence.num_prompt_tokens, sequence.counted_from
    return SamplerState(sequence.params, sequence.seed, sequence.tokens, start, masked, counted)


def _can_go_unread(work: Work) -> bool:
    """Whether the next token can be chosen before this one is read: there are no drafts, penalties or logprobs."""
    kind = _state(work.sequence).row().kind
    return work.sequence.score_from is None and not work.drafts and kind is not ChoiceKind.HISTORY
