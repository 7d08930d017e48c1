"""From the plan to the program: stage it as a Step, carry out its block copies, run the program.

This is the only place where the scheduler's ints and torch meet. Nothing here knows text, sampling or requests.
"""

import torch
from torch import Tensor

from tokenmill.cache.pool import Pool
from tokenmill.cache.step import Span, Step
from tokenmill.program import Program
from tokenmill.schedule.sequence import UNKNOWN, Plan, Sequence

__all__ = ["Runner"]


class Runner:
    """Runs plans on one program and one pool."""

    def __init__(self, program: Program, pool: Pool, device: torch.device) -> None:
        self.program, self.pool, self._device = program, pool, device
        self._block_size = pool.spec.block_size

    def run(self, plan: Plan, fed_R: Tensor | None = None) -> Tensor:
        """Logits of every wanted row, [R, V], in the order of the plan's work. fed_R: see Step.

        Drafts that nobody had guessed are known afterwards; the plan is without those that were not computed.
        """
        if plan.copies:
            self.pool.copy_blocks(plan.copies)
        step = self.stage(plan, fed_R)
        logits_RV = self.program.run(step)
        return _without_uncomputed(plan, step, logits_RV) if step.has_unknown else logits_RV

    def stage(self, plan: Plan, fed_R: Tensor | None = None) -> Step:
        """The plan in the terms of a program."""
        token_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        rows: list[int] = []
        spans: list[Span] = []
        has_unknown, stop_ids = False, set[int]()
        for sequence, start, count, num_logits in plan.work:
            end = start + count
            first = len(token_ids)
            token_ids += sequence.tokens[start:end]
            if end > len(sequence.tokens):
                token_ids += sequence.drafts[: end - len(sequence.tokens)]
                if sequence.drafts[0] == UNKNOWN:
                    has_unknown = True
                    stop_ids.update(sequence.stop_ids)
            positions += range(start, end)
            rows += range(first + count - num_logits, first + count)
            span = self._span(sequence, first, start, count, num_logits)
            spans.append(span)
            slots += (
                self._slots(sequence, start, end) if span.base is None else range(span.base + start, span.base + end)
            )
        every_row = len(rows) == len(token_ids)
        wanted = None if every_row else rows
        device, stops = self._device, list(stop_ids)
        return Step(token_ids, positions, slots, spans, wanted, len(rows), device, fed_R, has_unknown, stops)

    def _span(self, sequence: Sequence, first: int, start: int, count: int, num_logits: int) -> Span:
        blocks, size = sequence.blocks, self._block_size
        if start + count <= size:
            return Span(first, count, start, blocks[0] * size, None, num_logits, blocks)
        slots_L = self.pool.slots_of(blocks[: -(-(start + count) // size)], start + count)
        return Span(first, count, start, None, slots_L, num_logits, blocks)

    def _slots(self, sequence: Sequence, start: int, end: int) -> list[int]:
        size = self._block_size
        return [sequence.blocks[p // size] * size + p % size for p in range(start, end)]


def _without_uncomputed(plan: Plan, step: Step, logits_RV: Tensor) -> Tensor:
    """The logits of what was computed: where a text ends, the drafts behind that are none."""
    kept: list[int] = []
    first = 0
    for index, (work, span) in enumerate(zip(plan.work, step.spans, strict=True)):
        end = span.first + span.count
        found = list(step.token_ids[end - len(work.sequence.drafts) : end])
        known = found[: found.index(UNKNOWN)] if UNKNOWN in found else found
        missing = len(found) - len(known)
        work.sequence.drafts = known
        plan.work[index] = work._replace(count=work.count - missing, num_logits=work.num_logits - missing)
        kept += range(first, first + work.num_logits - missing)
        first += work.num_logits
    return logits_RV if len(kept) == first else logits_RV[kept]
