"""Proposer multi_step: several greedy steps in one call of the program, which chooses the drafts itself.

Between two steps of a small model a tenth of the time is Python's. This serves greedy texts only: there the token that
the program finds is the one that the sampler will choose, so the drafts are never wrong.
"""

import time
from collections.abc import Callable
from collections.abc import Sequence as List

from tokenmill.sample.state import ChoiceKind, choice_kind
from tokenmill.schedule.sequence import UNKNOWN, Sequence
from tokenmill.speculate.proposer import Forced, Proposer, ProposerContext

MAX_CALL_S = 0.025  # tokens of one call arrive together, and a new request waits for the call's end
MAX_ROWS = 32  # rows of logits, which are kept until the end of the call


class MultiStep(Proposer):
    """The proposer of several steps in one call. It estimates the time of a step from the time between two calls."""

    def __init__(self, _: ProposerContext | None = None, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._called_s, self._num_steps = clock, 0.0, 0

    def propose(self, sequences: List[Sequence], limit: int, forced: Forced) -> dict[int, list[int]]:
        """Draft the same number of unknown tokens for every sequence, if all of them are greedy."""
        now_s = self._clock()
        step_s = (now_s - self._called_s) / self._num_steps if self._num_steps else MAX_CALL_S
        self._called_s = now_s
        if not take_largest(sequences):
            self._num_steps = 0
            return {}
        drafts = several_steps(sequences, limit, step_s)
        self._num_steps = 1 + max(map(len, drafts.values()), default=0)
        return drafts


def several_steps(sequences: List[Sequence], limit: int, step_s: float) -> dict[int, list[int]]:
    """Draft as many unknown tokens for each of these sequences as fit into a call; `take_largest` must be true."""
    num_steps = min(limit + 1, int(MAX_CALL_S / max(step_s, 1e-6)), MAX_ROWS // len(sequences))
    return {sequence.id: [UNKNOWN] * (num_steps - 1) for sequence in sequences} if num_steps > 1 else {}


def take_largest(sequences: List[Sequence]) -> bool:
    """Say whether there are sequences, all decode, and every further token is the largest logit of the model."""
    return bool(sequences) and all(
        sequence.num_pending_tokens == 1
        and sequence.score_from is None
        and choice_kind(sequence.choosing, len(sequence.tokens) - sequence.num_prompt_tokens) is ChoiceKind.LARGEST
        for sequence in sequences
    )
