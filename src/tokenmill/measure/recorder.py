"""The Recorder of an engine's steps, phase by phase: the raw material of every benchmark and profile.

A step has four phases: plan (proposer and scheduler), run (the forward), sample (logits to tokens; on a GPU it waits
there for the forward), deliver (commit and text). With async scheduling a step's run is the planning and launch of the
next one. Recording costs five clock readings a step, under a microsecond.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tokenmill.engine.engine import Engine
from tokenmill.engine.loop import Observer
from tokenmill.schedule.sequence import UNKNOWN, Plan


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step: clock readings in seconds, and what was in it.

    num_tokens were fed, num_new came out. is_decode: every sequence in it had its first token already. num_passes over
    the weights: more than one where the program found drafts by itself.
    """

    begun_s: float
    planned_s: float
    ran_s: float
    sampled_s: float
    ended_s: float
    num_tokens: int
    num_new: int
    num_sequences: int
    is_decode: bool
    num_passes: int = 1

    @property
    def total_s(self) -> float:
        """Begin to end."""
        return self.ended_s - self.begun_s


@dataclass
class Recorder(Observer):
    """An observer that keeps a StepRecord of every step that an engine has ended."""

    clock: Callable[[], float]
    steps: list[StepRecord] = field(default_factory=list)
    _times_s: list[float] = field(default_factory=list)
    _lengths: dict[int, int] = field(default_factory=dict)  # of each sequence before the step, by its id
    _plan: Plan = field(default_factory=lambda: Plan([]))
    _finds_drafts: bool = False

    def phase(self, name: str, plan: Plan | None) -> None:
        now_s = self.clock()
        if name == "begin":
            self._times_s = []
        self._times_s.append(now_s)
        if plan is not None:
            self._plan = plan  # of the phase "sample", without drafts that were not computed
        if name == "plan" and plan is not None:
            self._lengths = {work.sequence.id: len(work.sequence.tokens) for work in plan.work}
            self._finds_drafts = any(UNKNOWN in work.drafts for work in plan.work)
        if name == "deliver":
            self.steps.append(self._record())

    def _record(self) -> StepRecord:
        pairs = [(work.sequence, self._lengths[work.sequence.id]) for work in self._plan.work]
        new = [len(sequence.tokens) - length for sequence, length in pairs]
        is_decode = all(length > sequence.num_prompt_tokens for sequence, length in pairs)
        begun_s, planned_s, ran_s, sampled_s, ended_s = self._times_s
        num_tokens = sum(work.count for work in self._plan.work)
        num_passes = max(1, *new) if self._finds_drafts else 1
        phases = (begun_s, planned_s, ran_s, sampled_s, ended_s)
        return StepRecord(*phases, num_tokens, sum(new), len(pairs), is_decode, num_passes)


@contextmanager
def record(engine: Engine, clock: Callable[[], float] = time.perf_counter) -> Iterator[Recorder]:
    """Record the steps that the engine does inside."""
    recorder = Recorder(clock)
    with engine.core.observed_by(recorder):
        yield recorder
