"""Each step of a generation: what was fed, what would have been fed without a cache, what was chosen, how long it took.

The same steps are computed a second time in float32, by plain modules: how far the logits are from each other.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from tokenmill.engine.engine import Engine
from tokenmill.engine.loop import Observer
from tokenmill.engine.scoring import last_logits
from tokenmill.errors import WrongText
from tokenmill.quant.schemes import find_scheme
from tokenmill.schedule.sequence import Plan

MIN_CORRELATION = {"float32": 0.9999, "bfloat16": 0.998, "float16": 0.999}
"""The smallest correlation of logits from dense weights of a dtype. With weights or activations in 8 or 4 bits it
is CODES."""
CODES = 0.97


@dataclass(frozen=True)
class TraceRow:
    """One sequence in one step. without_cache: tokens it would have fed without a cache. chosen: the new tokens."""

    step: int
    sequence: int
    position: int
    fed: int
    without_cache: int
    chosen: tuple[int, ...]
    milliseconds: float


@contextmanager
def traced(engine: Engine) -> Iterator[list[TraceRow]]:
    """Give the rows of every step inside, in a list that grows."""
    tracer = _Tracer()
    with engine.core.observed_by(tracer):
        yield tracer.rows


class _Tracer(Observer):
    """Makes a TraceRow of each work item."""

    def __init__(self) -> None:
        self.rows: list[TraceRow] = []
        self._plan, self._begun_s, self._num_steps = Plan([]), 0.0, 0
        self._lengths: dict[int, int] = {}

    def phase(self, name: str, plan: Plan | None) -> None:
        if name == "begin":
            self._begun_s = time.perf_counter()
        if plan is not None:
            self._plan = plan
        if name == "plan" and plan is not None:
            self._num_steps += 1
            self._lengths = {work.sequence.id: len(work.sequence.tokens) for work in plan.work}
        if name == "deliver":
            taken_ms = 1000 * (time.perf_counter() - self._begun_s)
            for sequence, start, count, *_ in self._plan.work:
                chosen = tuple(sequence.tokens[self._lengths[sequence.id] :])
                row = TraceRow(self._num_steps, sequence.id, start, count, start + count, chosen, taken_ms)
                self.rows.append(row)


@dataclass
class Distance:
    """The smallest correlation and largest difference of all rows that were compared, and the number of rows."""

    min_correlation: float = 1.0
    max_difference: float = 0.0
    num_rows: int = 0
    num_other_choices: int = 0

    def add(self, ours_RV: Tensor, theirs_RV: Tensor) -> None:
        """Take in some rows."""
        pairs = zip(ours_RV.double(), theirs_RV.double(), strict=True)
        for ours_V, theirs_V in pairs:
            correlation = float(torch.corrcoef(torch.stack([ours_V, theirs_V]))[0, 1])
            self.min_correlation = min(self.min_correlation, correlation)
            self.max_difference = max(self.max_difference, float((ours_V - theirs_V).abs().max()))
            self.num_other_choices += int(ours_V.argmax() != theirs_V.argmax())
            self.num_rows += 1

    def __str__(self) -> str:
        return (
            f"{self.num_rows} rows against float32: correlation at least {self.min_correlation:.6f}, "
            f"largest difference {self.max_difference:.3g}, {self.num_other_choices} other likeliest tokens"
        )


@contextmanager
def checked(engine: Engine, reference: Engine) -> Iterator[Distance]:
    """Compute the wanted rows of every step inside by `reference` too. WrongText for a row past the bound."""
    scheme, dtype = find_scheme(engine.config.scheme), engine.config.dtype
    bound = CODES if scheme.is_integer else MIN_CORRELATION[dtype]
    comparer = _Comparer(reference, bound)
    with engine.core.observed_by(comparer):
        yield comparer.distance


class _Comparer(Observer):
    """Computes every wanted row a second time. The reference is fed from the host, so each step is read first."""

    in_order = True

    def __init__(self, reference: Engine, bound: float) -> None:
        self.distance = Distance()
        self._reference, self._bound = reference, bound

    def logits(self, plan: Plan, logits_RV: Tensor) -> None:
        first = 0
        for sequence, start, count, num_logits, drafts, _ in plan.work:
            if num_logits:
                fed = [*sequence.tokens, *drafts][: start + count]
                ours_RV = logits_RV[first : first + num_logits].float().cpu()
                self.distance.add(ours_RV, last_logits(self._reference.core, fed, num_logits))
                first += num_logits
            if not self.distance.min_correlation >= self._bound:
                expected = f"at least {self._bound} was expected"
                raise WrongText(f"position {start + count - 1} is wrong: {self.distance}; {expected}")
