"""A step in flight: it has begun, and its tokens may still be on their way from the device.

With async scheduling the next step begins before the tokens of this one are read. The device hands them on to the next
step, while the scheduler holds a placeholder for each, the mark of the row that chose it. One step at most is in
flight.
"""

from collections.abc import Mapping
from collections.abc import Sequence as List

from torch import Tensor

from tokenmill.errors import RequestError
from tokenmill.sample.filters import take
from tokenmill.sample.sampler import Sampled, choose, sample_singly
from tokenmill.sample.state import ChoiceKind, Mask, Row, choice_kind, rows_of
from tokenmill.schedule.sequence import Plan, Work, unread_mark


class InFlight:
    """A step whose choice of tokens has begun. Scored sequences get their logits, [R, V], at once and sample nothing.

    rows_of: for each work item of the plan, its range of the sampled rows. next_is_planned: a next step was planned,
    with marks in the places of this step's tokens. masks: of the rows of constrained sequences, by sequence id.
    """

    def __init__(self, plan: Plan, logits_RV: Tensor, masks: Mapping[int, List[Mask]]) -> None:
        self.plan, self.masks, self.next_is_planned = plan, masks, False
        self.rows_of: list[range] = []
        self._rows: list[Row] = []
        picked: list[int] = []
        first = 0
        for work in plan.work:
            wanted, num_before = range(first, first + work.num_logits), len(self._rows)
            first = wanted.stop
            if work.sequence.score_from is not None:
                _collect(work, logits_RV[wanted.start : wanted.stop])
            elif wanted:
                self._rows += rows_of(work, masks.get(work.sequence.id, ()))
                picked += wanted
            self.rows_of.append(range(num_before, len(self._rows)))
        self._logits_RV = take(logits_RV, picked) if 0 < len(picked) < first else logits_RV
        try:
            self._choice = choose(self._logits_RV, self._rows) if self._rows else None
        except RequestError:  # `read` samples row by row and finds the one that fails
            self._choice = None

    @property
    def unread(self) -> list[list[int]]:
        """List, for each work item, the mark of its unread token; empty if the item samples nothing."""
        return [[unread_mark(rows.start)] if rows else [] for rows in self.rows_of]

    def leave_out_finished(self) -> bool:
        """Leave out sequences that have ended since, even if they are resumed later; False if no work is left."""
        kept = [index for index, work in enumerate(self.plan.work) if work.sequence.finish_reason is None]
        self.plan = Plan([self.plan.work[index] for index in kept])
        self.rows_of = [self.rows_of[index] for index in kept]
        return bool(kept)

    @property
    def ids_R(self) -> Tensor | None:
        """Return the tokens that the rows chose, on the device; None if no row was sampled."""
        return None if self._choice is None else self._choice.ids_R

    @property
    def next_can_be_planned(self) -> bool:
        """Say whether a next step can be planned, run and sampled before the tokens of this one are read."""
        return all(map(_can_go_unread, self.plan.work)) and (self._choice is not None or not self._rows)

    def read(self) -> tuple[Sampled, dict[int, RequestError]]:
        """Wait for the token of each sampled row; also return the errors of rows that cannot be sampled."""
        if self._choice is not None:
            try:
                return self._choice.read(), {}
            except RequestError:
                pass
        return sample_singly(self._logits_RV, self._rows)


def _collect(work: Work, logits_RV: Tensor) -> None:
    sequence = work.sequence
    if sequence.on_logits is not None and work.num_logits:
        sequence.on_logits(work, logits_RV)
        sequence.score_from = work.start + work.count  # after a preemption too, no row is handed over twice


def _can_go_unread(work: Work) -> bool:
    """Say whether the next token can be chosen before this one is read: nothing looks back, and there are no drafts."""
    sequence = work.sequence
    kind = choice_kind(sequence.choosing, len(sequence.tokens) - sequence.num_prompt_tokens)
    return sequence.score_from is None and not work.drafts and kind is not ChoiceKind.HISTORY
