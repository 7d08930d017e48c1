"""From the plan to the program: carry out its copies and loads, stage it as a Step, run the program, store full blocks.

This is the only place where the scheduler's ints and torch meet. Nothing here knows text, sampling or requests.
"""

import logging
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from tokenmill.cache.pool import Pool
from tokenmill.cache.prefix_store import PrefixStore
from tokenmill.cache.step import Span, Step
from tokenmill.errors import SnapshotError
from tokenmill.program import Program
from tokenmill.schedule.sequence import UNKNOWN, Plan, Sequence, Store

__all__ = ["Ran", "Runner"]

log = logging.getLogger(__name__)


class Ran(NamedTuple):
    """What was computed: the plan with the drafts that the program found, and logits of the wanted rows, [R, V]."""

    plan: Plan
    logits_RV: Tensor


class Runner:
    """Runs plans on one program and one pool. prefix_store: where full blocks outlive the process."""

    def __init__(self, program: Program, pool: Pool, device: torch.device) -> None:
        self.program, self.pool, self._device = program, pool, device
        self.prefix_store: PrefixStore | None = None
        self._block_size = pool.spec.block_size

    def prepare(self, plan: Plan) -> list[Sequence]:
        """Copy and load the plan's blocks, in this order; the sequences whose rows could not be loaded."""
        if plan.copies:
            self.pool.copy_blocks(plan.copies)
        failed = []
        for load in plan.loads:
            count = load.last - load.first
            try:
                rows = load.source.rows(load.source_first, load.source_first + count)
                self.pool.write(self.pool.slots_of(load.blocks, count), rows)
            except SnapshotError as error:
                log.warning("%s; the rows are computed again", error)
                failed.append(load.sequence)
        return failed

    def run(self, plan: Plan, fed_R: Tensor | None = None) -> Ran:
        """Run a prepared plan. fed_R: see Step. Drafts whose token the program was to find are known afterwards."""
        step = self.stage(plan, fed_R)
        logits_RV, token_ids = self.program.run(step)
        return _known(plan, step, logits_RV, token_ids) if step.has_unknown else Ran(plan, logits_RV)

    def store(self, stores: Iterable[Store]) -> None:
        """Write full blocks to disk, where there is a store."""
        if self.prefix_store is not None:
            for digest, block in stores:
                self.prefix_store.save(digest, block)

    def stage(self, plan: Plan, fed_R: Tensor | None = None) -> Step:
        """The plan in the terms of a program."""
        token_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        rows: list[int] = []
        spans: list[Span] = []
        has_unknown, stop_ids = False, set[int]()
        for sequence, start, count, num_logits, drafts in plan.work:
            end = start + count
            first = len(token_ids)
            token_ids += sequence.tokens[start:end]
            if drafts:
                token_ids += drafts
                if drafts[0] == UNKNOWN:
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


def _known(plan: Plan, step: Step, logits_RV: Tensor, token_ids: Iterable[int]) -> Ran:
    """The plan with the tokens that the program found, up to where a text ends, and the logits of what it computed."""
    found, work, kept = list(token_ids), [], list[int]()
    first = 0
    for each, span in zip(plan.work, step.spans, strict=True):
        end = span.first + span.count
        drafts = found[end - len(each.drafts) : end]
        known = drafts[: drafts.index(UNKNOWN)] if UNKNOWN in drafts else drafts
        missing = len(drafts) - len(known)
        num_logits = each.num_logits - missing
        work.append(each._replace(count=each.count - missing, num_logits=num_logits, drafts=tuple(known)))
        kept += range(first, first + num_logits)
        first += each.num_logits
    return Ran(plan._replace(work=work), logits_RV if len(kept) == first else logits_RV[kept])
