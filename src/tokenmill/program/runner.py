"""The Runner carries out a plan: copies and loads, the step as tensors, the program, stores of full blocks.

This is the only place where the scheduler's ints and torch meet. Nothing here knows text, sampling or requests.
"""

import logging
from collections.abc import Iterable

import torch
from torch import Tensor

from tokenmill.cache.pool import ROWS, STATES, Pool
from tokenmill.cache.step import Span, Step
from tokenmill.errors import SnapshotError
from tokenmill.program.forward import Program
from tokenmill.schedule.memory import BlockStore
from tokenmill.schedule.sequence import UNKNOWN, Copy, Load, Plan, Sequence, Store

log = logging.getLogger(__name__)


class Runner:
    """The runner of plans on one program and one pool. prefix_store: keeps full blocks after the process ends."""

    def __init__(self, program: Program, pool: Pool, device: torch.device) -> None:
        self.program, self.pool, self._device = program, pool, device
        self.prefix_store: BlockStore | None = None
        self._block_size = pool.spec.block_size

    def prepare(self, plan: Plan) -> list[Sequence]:
        """Copy and load the plan's blocks; return the sequences whose blocks could not be loaded."""
        failed = []
        for move in plan.moves:
            if isinstance(move, Copy):
                self.pool.copy_block(*move)
                continue
            try:
                self._load(move)
            except SnapshotError as error:
                log.warning("%s; the rows are computed again", error)
                failed.append(move.sequence)
        return failed

    def _load(self, load: Load) -> None:
        entries = load.source(load.first, load.last)
        self.pool.write(self.pool.slots_of(load.blocks, load.last - load.first, load.kind), entries, load.kind)

    def run(self, plan: Plan, fed_R: Tensor | None = None) -> tuple[Plan, Tensor]:
        """Run a prepared plan; return the plan with the drafts that the program found, and the logits of its wanted
        rows, [R, V].

        fed_R: see Step.
        """
        step = self.stage(plan, fed_R)
        logits_RV, token_ids = self.program.run(step)
        return known(plan, step, logits_RV, token_ids) if step.has_unknown else (plan, logits_RV)

    def store(self, stores: Iterable[Store]) -> None:
        """Write full blocks to disk, where there is a store."""
        if self.prefix_store is not None:
            for store in stores:
                self.prefix_store.save(store)

    def stage(self, plan: Plan, fed_R: Tensor | None = None) -> Step:
        token_ids, positions, slots, rows = list[int](), list[int](), list[int](), list[int]()
        spans: list[Span] = []
        size, has_unknown, stop_ids = self._block_size, False, set[int]()
        for sequence, start, count, num_logits, drafts, _ in plan.work:
            end, first, kept = start + count, len(token_ids), sequence.kept
            blocks = kept.row_blocks(size) if kept.tables[ROWS].first_row else kept.tables[ROWS].blocks
            state, saves = kept.states(start) if len(kept.tables) > STATES else (None, ())
            token_ids += sequence.tokens[start:end]
            if drafts:
                token_ids += drafts
                if drafts[0] == UNKNOWN:
                    has_unknown = True
                    stop_ids.update(sequence.choosing.stop_ids)
            positions += range(start, end)
            rows += range(first + count - num_logits, first + count)
            base, slots_L = blocks[0] * size if end <= size else None, None
            if base is not None:
                slots += range(base + start, base + end)
            else:
                slots += [blocks[p // size] * size + p % size for p in range(start, end)]
                slots_L = self.pool.slots_of(blocks[: -(-end // size)], end) if self.program.reads_slots else None
            spans.append(Span(first, count, start, base, slots_L, num_logits, blocks, state, saves, kept.adapter))
        wanted, device, stops = None if len(rows) == len(token_ids) else rows, self._device, list(stop_ids)
        return Step(token_ids, positions, slots, spans, wanted, len(rows), device, fed_R, has_unknown, stops)


def known(plan: Plan, step: Step, logits_RV: Tensor, token_ids: Iterable[int]) -> tuple[Plan, Tensor]:
    """Enter the tokens that the program found, up to a text's end; keep the logits of the computed positions."""
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
    return Plan(work), logits_RV if len(kept) == first else logits_RV[kept]
