"""The length of chunks of prompts, so that nobody whose text is being written waits longer than a bound.

A step in which prompts are computed takes about as long as its tokens of prompts do. What one of them takes is measured
at each such step, since it grows with the length of the text, and the next step takes as many as fit the bound.
"""

import time

from tokenmill.engine.observers import Observer
from tokenmill.schedule.scheduler import Scheduler
from tokenmill.schedule.sequence import Plan

FIRST_TOKENS, LEAST_TOKENS = 64, 16  # before anything is measured; and always, since a prompt must get on
MARGIN = 0.75  # of the bound is planned for, because steps vary


class Pace(Observer):
    """Sets `max_prompt_tokens` of a scheduler after each step. bound_s: the longest wait of those that decode."""

    def __init__(self, scheduler: Scheduler, bound_s: float) -> None:
        self._scheduler, self._bound_s = scheduler, bound_s
        self._begun_s, self._cost_s = 0.0, 0.0  # of this step; of a token
        self._num_tokens = 0  # of prompts in this step
        scheduler.max_prompt_tokens = min(FIRST_TOKENS, scheduler.max_step_tokens)

    def phase(self, name: str, plan: Plan | None) -> None:
        """See Observer."""
        if name == "begin":
            self._begun_s = time.perf_counter()
        elif name == "plan" and plan is not None:
            fed = [(work.count - len(work.drafts), work.num_logits) for work in plan.work]
            # A single token without logits is a chunk too: with many prompts at once most of them get no more.
            self._num_tokens = sum(count for count, num_logits in fed if count > 1 or not num_logits)
        elif name == "deliver" and self._num_tokens:
            self._measured(time.perf_counter() - self._begun_s)

    def _measured(self, seconds: float) -> None:
        """A short chunk says little of what a token costs, unless it took too long. A slow step counts at once."""
        limit = self._scheduler.max_prompt_tokens
        if self._num_tokens < limit / 2 and seconds < self._bound_s:
            return
        cost_s = seconds / self._num_tokens
        self._cost_s = max(cost_s, (cost_s + self._cost_s) / 2)
        wanted = int(MARGIN * self._bound_s / self._cost_s)
        self._scheduler.max_prompt_tokens = min(max(wanted, LEAST_TOKENS), self._scheduler.max_step_tokens)
