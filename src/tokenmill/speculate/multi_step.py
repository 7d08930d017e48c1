"""Several steps in one call: the drafts are the program's own choices, found while it computes, and never wrong.

Between two steps of a small model a tenth of the time is Python's. Only for texts that take the likeliest token, where
what the program finds is what the sampler will choose, and only as many as nobody minds receiving together.
"""

import time
from collections.abc import Callable
from collections.abc import Sequence as List

from tokenmill.sample.state import ChoiceKind, choice_kind
from tokenmill.schedule.sequence import UNKNOWN, Sequence

__all__ = ["MultiStep"]

TOGETHER_S = 0.025  # what comes in one piece, and what a newcomer may have to wait
MOST_ROWS = 32  # of logits, which are kept until the end of the call


class MultiStep:
    """Knows how long a step takes from the time between two calls."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._asked_s, self._num_steps = clock, 0.0, 0

    def propose(self, sequences: List[Sequence], limit: int) -> dict[int, list[int]]:
        """As many unknown tokens for everybody, or none for anybody."""
        now_s = self._clock()
        step_s = (now_s - self._asked_s) / self._num_steps if self._num_steps else TOGETHER_S
        self._asked_s = now_s
        if not sequences or not all(map(_takes_largest, sequences)):
            self._num_steps = 0
            return {}
        num_steps = min(limit + 1, int(TOGETHER_S / max(step_s, 1e-6)), MOST_ROWS // len(sequences))
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
