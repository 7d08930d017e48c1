"""The profile of one generation: steps by phase, memory, what torch ran, and what recording cost.

The same generation runs several times on one engine: a short one to warm up, one unmeasured, one measured, and one
unmeasured again. The two unmeasured ones tell how far runs differ by themselves, which is what the cost of measuring is
to be held against. Every run starts with a cold cache, so that shared prefixes cannot make a later one faster.
"""

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from typing import Any, cast

import torch

from tokenmill.engine.core import Core
from tokenmill.engine.engine import Engine
from tokenmill.engine.loop import Observer
from tokenmill.engine.outputs import Completion
from tokenmill.engine.requests import Prompt
from tokenmill.errors import ConfigError
from tokenmill.measure.memory import resident_bytes
from tokenmill.measure.operations import Operation, Watch
from tokenmill.measure.recorder import StepRecord, record
from tokenmill.measure.trace import PHASES, MemoryReading, kind_of, merge, phase_times, trace_events
from tokenmill.schedule.sequence import Plan
from tokenmill.settings.sampling_params import SamplingParams

LEVELS = ("none", "light", "verbose")
NUM_OPERATIONS = 15
WARM_UP_TOKENS = 4


@dataclass(frozen=True)
class Profile:
    """The figures of a profile. plain_s: the unmeasured runs; measured_s: the measured one, None at level none.

    gathering_s: what starting, stopping and reading out torch's profiler took, beside the runs.
    """

    level: str
    completions: list[Completion]
    plain_s: tuple[float, ...]
    measured_s: float | None = None
    same_tokens: bool = True
    steps: list[StepRecord] = field(default_factory=list)
    memory: list[MemoryReading] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    gathering_s: float = 0.0
    trace: dict[str, Any] | None = None

    @property
    def cost_share(self) -> float | None:
        """How much longer the measured run took than the average unmeasured one, as a share."""
        return None if self.measured_s is None else self.measured_s * len(self.plain_s) / sum(self.plain_s) - 1

    @property
    def scatter_share(self) -> float:
        """How much the unmeasured runs differ, as a share: a cost below this says nothing."""
        return (max(self.plain_s) - min(self.plain_s)) * len(self.plain_s) / sum(self.plain_s)

    def document(self) -> dict[str, Any]:
        """Return all but the trace, as plain values."""
        first, new = self.completions[0], sum(len(done.tokens) for done in self.completions)
        return {
            "level": self.level,
            "num_prompt_tokens": sum(done.num_prompt_tokens for done in self.completions),
            "num_new_tokens": new,
            "hashes": [done.hash for done in self.completions],
            "ttft_s": first.timing.ttft_s,
            "tokens_per_s": first.timing.tokens_per_s if len(self.completions) == 1 else new / self.plain_s[0],
            "cost": {
                "plain_s": list(self.plain_s),
                "measured_s": self.measured_s,
                "cost_share": self.cost_share,
                "scatter_share": self.scatter_share,
                "gathering_s": self.gathering_s,
                "same_tokens": self.same_tokens,
            },
            "steps": breakdown(self.steps),
            "operations": [asdict(one) for one in self.operations],
            "memory": [asdict(one) for one in self.memory],
        }


def check_level(level: str, setting: str = "level") -> None:
    """Raise ConfigError for a level that does not exist."""
    if level not in LEVELS:
        raise ConfigError(setting, level, f"use one of {', '.join(LEVELS)}")


def profile(
    engine: Engine,
    prompts: Sequence[Prompt],
    params: SamplingParams,
    level: str = "light",
    *,
    clock: Callable[[], float] = time.perf_counter,
    stage: Callable[[str], None] = lambda text: None,
) -> Profile:
    """Generate as `engine.generate` would, and find where the time goes. The tokens are the same as unmeasured."""
    check_level(level)
    if params.seed is None:
        params = replace(params, seed=secrets.randbelow(2**32))  # every run is to draw the same tokens
    stage("warming up")
    short = min(params.max_new_tokens or WARM_UP_TOKENS, WARM_UP_TOKENS)
    _run(engine, prompts, replace(params, max_new_tokens=short, min_new_tokens=0), clock)
    stage("generating, unmeasured")
    done, first_s = _run(engine, prompts, params, clock)
    if level == "none":
        return Profile(level, done, (first_s,))
    stage(f"generating, measured ({level})")
    found = _measure(engine, prompts, params, level, clock)
    stage("generating, unmeasured again")
    again, second_s = _run(engine, prompts, params, clock)
    tokens = [[one.tokens for one in run] for run in (done, found.completions, again)]
    same = tokens[0] == tokens[1] == tokens[2]
    return replace(found, completions=done, plain_s=(first_s, second_s), same_tokens=same)


def breakdown(steps: Sequence[StepRecord]) -> dict[str, Any]:
    """Count for prefill and decode apart: number of steps, tokens fed and new, and of each phase ms per pass and share.

    A step has several passes over the weights where the program found drafts by itself, else one.
    """
    found: dict[str, Any] = {}
    for kind in ("prefill", "decode"):
        own = [step for step in steps if kind_of(step) == kind]
        if not own:
            continue
        total_s, num_passes = sum(step.total_s for step in own), sum(step.num_passes for step in own)
        sums = dict.fromkeys(PHASES, 0.0)
        for step in own:
            for name, begin_s, end_s in phase_times(step):
                sums[name] += end_s - begin_s
        found[kind] = {
            "num_steps": len(own),
            "num_passes": num_passes,
            "num_tokens": sum(step.num_tokens for step in own),
            "num_new": sum(step.num_new for step in own),
            "ms": 1e3 * total_s / num_passes,
            "phases": {
                name: {"ms": 1e3 * spent_s / num_passes, "share": spent_s / total_s if total_s else 0.0}
                for name, spent_s in sums.items()
            },
        }
    return found


def _run(
    engine: Engine, prompts: Sequence[Prompt], params: SamplingParams, clock: Callable[[], float]
) -> tuple[list[Completion], float]:
    """Generate once from a cold cache, and measure the seconds that it took."""
    engine.core.clear_prefix_cache()
    settings = {one.name: getattr(params, one.name) for one in fields(params)}
    started_s = clock()
    # One list may hold texts and ids, which the overloads do not say.
    done = engine.generate(cast("list[str]", list(prompts)), **settings)
    return done, clock() - started_s


def _measure(
    engine: Engine, prompts: Sequence[Prompt], params: SamplingParams, level: str, clock: Callable[[], float]
) -> Profile:
    watch = Watch(torch.device(engine.config.device)) if level == "verbose" else None
    reader = _MemoryReader(engine.core, clock, watch)
    begun_s = clock()
    # The reader comes second, so that what it does is in no phase of the recorder.
    with _watched(engine.core, watch), record(engine, clock) as recorder, engine.core.observed_by(reader):
        start_s = clock()
        done, measured_s = _run(engine, prompts, params, clock)
    memory = reader.readings
    if watch is None:
        operations: list[Operation] = []
        trace = {"traceEvents": trace_events(recorder.steps, memory, start_s), "displayTimeUnit": "ms"}
    else:
        operations = watch.operations(NUM_OPERATIONS)
        trace = merge(watch.trace(), recorder.steps, memory, start_s)
    told: dict[str, Any] = {"operations": operations, "gathering_s": clock() - begun_s - measured_s, "trace": trace}
    return Profile(level, done, (), measured_s, steps=recorder.steps, memory=memory, **told)


@contextmanager
def _watched(core: Core, watch: Watch | None) -> Iterator[None]:
    """Begin and end torch's profiler in the engine's thread: it sees what the thread does that began it."""
    if watch is None:
        yield
        return
    core.call(watch.__enter__)
    try:
        yield
    finally:
        core.call(partial(watch.__exit__, None, None, None))


class _MemoryReader(Observer):
    """Reads memory after each step, and tells the watch when the forward runs."""

    def __init__(self, core: Core, clock: Callable[[], float], watch: Watch | None) -> None:
        self.readings: list[MemoryReading] = []
        self._core, self._clock, self._watch, self._num_blocks = core, clock, watch, 0
        self._device = torch.device(core.loaded.config.device)

    def phase(self, name: str, plan: Plan | None) -> None:
        if name == "plan":
            # Counted here: a sequence that ends in this step has given its blocks back when the step is over.
            self._num_blocks = self._core.num_used_blocks
            if self._watch is not None:
                self._watch.enter_forward()
        elif name == "run" and self._watch is not None:
            self._watch.leave_forward()
        elif name == "deliver":
            # Read between steps, so that the reading is in no phase.
            on_device = torch.cuda.memory_allocated(self._device) if self._device.type == "cuda" else None
            self.readings.append(MemoryReading(self._clock(), resident_bytes(), self._num_blocks, on_device))
