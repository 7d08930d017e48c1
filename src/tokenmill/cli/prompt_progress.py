"""Progress of prompts: how many tokens were known before, and the bar of a prompt that takes more than a second."""

import time
from contextlib import ExitStack
from threading import Lock

from tokenmill.cli.process.display import progress_on_stderr
from tokenmill.engine.loop import Observer
from tokenmill.hub.progress import Progress
from tokenmill.schedule.sequence import Plan

AFTER_S = 1.0


class Known(Observer):
    """An observer. num_tokens: how many tokens of the first sequence that runs were in the KV cache before it ran."""

    num_tokens: int | None = None

    def phase(self, name: str, plan: Plan | None) -> None:
        if name == "plan" and plan is not None and plan.work and self.num_tokens is None:
            self.num_tokens = plan.work[0].start


class PromptProgress(Observer):
    """A bar from the first step that begins later than AFTER_S to the step that computes the last prompt token."""

    def __init__(self) -> None:
        self._begun_s = time.perf_counter()
        self._lengths: dict[int, int] = {}  # of each prompt, by the id of its sequence
        self._done: dict[int, int] = {}
        self._is_last = self._is_over = False
        self._shown = ExitStack()
        self._bar: Progress | None = None
        self._lock = Lock()  # a step may be in its midst when whoever waits for it is interrupted and closes this

    def phase(self, name: str, plan: Plan | None) -> None:
        with self._lock:
            if not self._is_over:
                self._follow(name, plan)

    def _follow(self, name: str, plan: Plan | None) -> None:
        if name == "plan" and plan is not None:
            for sequence, start, count, *_ in plan.work:
                length = self._lengths.setdefault(sequence.id, len(sequence.tokens))
                self._done[sequence.id] = min(start + count, length)
            done, total = sum(self._done.values()), sum(self._lengths.values())
            self._is_last = done == total
            if not self._is_last and time.perf_counter() - self._begun_s >= AFTER_S:
                self._show(sum(min(start, self._lengths[sequence.id]) for sequence, start, *_ in plan.work), total)
        if name == "deliver" and self._is_last:
            self._remove()

    def close(self) -> None:
        """Remove the bar for good."""
        with self._lock:
            self._is_over = True
            self._remove()

    def _remove(self) -> None:
        self._bar = None
        self._shown.close()

    def _show(self, done: int, total: int) -> None:
        if self._bar is None:
            self._bar = self._shown.enter_context(progress_on_stderr())
        self._bar.stage(f"computing the prompt: {done:,} of {total:,} tokens")
        self._bar.advance(done, total)
