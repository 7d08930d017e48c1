"""Step by step: what was fed, what would have been fed without a cache, what was chosen, and how long it took.

And the same steps computed a second time, by float32 modules as they stand: how far the logits are from each other.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from tokenmill.engine.engine import Engine
from tokenmill.engine.scoring import last_logits
from tokenmill.errors import WrongText
from tokenmill.quant.schemes import find_scheme
from tokenmill.schedule.sequence import Plan

__all__ = ["Distance", "TraceRow", "traced", "verified"]

LEAST_CORRELATION = {"float32": 0.9999, "bfloat16": 0.998, "float16": 0.999}
"""Of logits in dense weights of a dtype. Where weights or activations are in 8 or 4 bits, CODES."""
CODES = 0.97


@dataclass(frozen=True)
class TraceRow:
    """One sequence in one step. without_cache: tokens to feed if nothing were kept. chosen: the new tokens."""

    step: int
    sequence: int
    position: int
    fed: int
    without_cache: int
    chosen: tuple[int, ...]
    milliseconds: float


@contextmanager
def traced(engine: Engine) -> Iterator[list[TraceRow]]:
    """The rows of every step inside, in a list that grows."""
    rows: list[TraceRow] = []
    before, plans, begun = engine.mark, [Plan([], [])], [0.0]
    lengths: dict[int, int] = {}
    steps = 0

    def mark(phase: str, plan: Plan | None) -> None:
        nonlocal steps
        before(phase, plan)
        if phase == "begin":
            begun[0] = time.perf_counter()
        elif phase == "plan" and plan is not None:
            plans[0], steps = plan, steps + 1
            lengths.update({work.sequence.id: len(work.sequence.tokens) for work in plan.work})
        elif phase == "deliver":
            taken = 1000 * (time.perf_counter() - begun[0])
            for sequence, start, count, _ in plans[0].work:
                chosen = tuple(sequence.tokens[lengths[sequence.id] :])
                rows.append(TraceRow(steps, sequence.id, start, count, start + count, chosen, taken))

    engine.mark = mark
    try:
        yield rows
    finally:
        engine.mark = before


@dataclass
class Distance:
    """Of all rows that were compared: the smallest correlation, the largest difference, and how many they were."""

    least_correlation: float = 1.0
    largest_difference: float = 0.0
    num_rows: int = 0
    num_other_choices: int = 0

    def add(self, ours_RV: Tensor, theirs_RV: Tensor) -> None:
        """Take in some rows."""
        pairs = zip(ours_RV.double(), theirs_RV.double(), strict=True)
        for ours_V, theirs_V in pairs:
            correlation = float(torch.corrcoef(torch.stack([ours_V, theirs_V]))[0, 1])
            self.least_correlation = min(self.least_correlation, correlation)
            self.largest_difference = max(self.largest_difference, float((ours_V - theirs_V).abs().max()))
            self.num_other_choices += int(ours_V.argmax() != theirs_V.argmax())
            self.num_rows += 1

    def __str__(self) -> str:
        return (
            f"{self.num_rows} rows against float32: correlation at least {self.least_correlation:.6f}, "
            f"largest difference {self.largest_difference:.3g}, {self.num_other_choices} other likeliest tokens"
        )


@contextmanager
def verified(engine: Engine, reference: Engine) -> Iterator[Distance]:
    """Computes the wanted rows of every step inside by `reference` too. WrongText for a row past the bound."""
    distance, run = Distance(), engine.runner.run
    scheme, dtype = find_scheme(engine.config.scheme), engine.config.dtype
    bound = CODES if scheme.is_integer else LEAST_CORRELATION[dtype]

    def run_both(plan: Plan, fed_R: Tensor | None = None) -> Tensor:
        logits_RV = run(plan, fed_R)
        first = 0
        for sequence, start, count, num_logits in plan.work:
            if num_logits:
                fed = (sequence.tokens + sequence.drafts)[: start + count]
                ours_RV = logits_RV[first : first + num_logits].float().cpu()
                distance.add(ours_RV, last_logits(reference, fed, num_logits))
                first += num_logits
            if not distance.least_correlation >= bound:
                raise WrongText(f"position {start + count - 1} is wrong: {distance}; at least {bound} was expected")
        return logits_RV

    engine.runner.run, ahead = run_both, engine.ahead  # type: ignore[method-assign]
    engine.ahead = False  # the reference is fed from the host
    try:
        yield distance
    finally:
        engine.ahead = ahead
        del engine.runner.run  # the class's own is back
