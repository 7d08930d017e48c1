"""Several steps in one call of the program, which chooses the drafts itself while it computes.

Between two steps of a small model a tenth of the time is Python's. This serves greedy texts only: there the token that
the program finds is the one that the sampler will choose, so the drafts are never wrong.
"""

import time
from collections.abc import Callable
from collections.abc import Sequence as List

from tokenmill.sample.state import ChoiceKind, choice_kind
from tokenmill.schedule.sequence import UNKNOWN, Sequence

__all__ = ["MultiStep"]

MAX_CALL_S = 0.025  # tokens of one call arrive together, and a new request waits for its end
MAX_ROWS = 32  # of logits, which are kept until the end of the call


class MultiStep:
    """Estimates the time of a step from the time between two calls."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._called_s, self._num_steps = clock, 0.0, 0

    def propose(self, sequences: List[Sequence], limit: int) -> dict[int, list[int]]:
        """The same number of unknown tokens for every sequence; none unless all of them are greedy."""
        now_s = self._clock()
        step_s = (now_s - self._called_s) / self._num_steps if self._num_steps else MAX_CALL_S
        self._called_s = now_s
        if not sequences or not all(map(_takes_largest, sequences)):
            self._num_steps = 0
            return {}
        num_steps = min(limit + 1, int(MAX_CALL_S / max(step_s, 1e-6)), MAX_ROWS // len(sequences))
        count = max(num_steps - 1, 0)
        self._num_steps = 1 + count
        return {sequence.id: [UNKNOWN] * count for sequence in sequences} if count else {}


def _takes_largest(sequence: Sequence) -> bool:
    """Whether it decodes, and every token from here on is the largest of the model's logits."""
    num_generated = len(sequence.tokens) - sequence.num_prompt_tokens
    return (
        sequence.num_pending_tokens == 1
        and sequence.score_from is None
        and choice_kind(sequence.params, num_generated) is ChoiceKind.LARGEST
    )
