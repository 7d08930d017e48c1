"""A cache without tensors: each slot remembers which prefix it was computed from.

Drives a Scheduler as the engine does, with a next token that is a pure function of the tokens before it, and checks in
every step that what a sequence would read is what its own tokens would have written.
"""

from collections.abc import Mapping

from tokenmill.schedule.blocks import BlockAllocator
from tokenmill.schedule.scheduler import Scheduler
from tokenmill.schedule.sequence import Plan, Sequence
from tokenmill.speculate.verify import verify

VOCABULARY = 5


def next_token(tokens: list[int]) -> int:
    """What the simulated model says after these tokens."""
    return hash(tuple(tokens)) % VOCABULARY


def solo(prompt: list[int], max_tokens: int, stop_ids: Mapping[int, str]) -> list[int]:
    """The whole text, without scheduler or cache."""
    tokens = list(prompt)
    while len(tokens) < max_tokens:
        tokens.append(next_token(tokens))
        if tokens[-1] in stop_ids:
            break
    return tokens


class SimulatedCache:
    """Slots and the loop around a scheduler."""

    def __init__(self, num_blocks: int, block_size: int, max_sequences: int, budget: int, prefix_cache: bool) -> None:
        self.block_size = block_size
        self.scheduler = Scheduler(
            BlockAllocator(num_blocks, block_size), max_sequences, max(budget, max_sequences), prefix_cache
        )
        self.slots: dict[int, int] = {}
        self.num_fed = 0

    def step(self, drafts: Mapping[int, list[int]] | None = None) -> Plan:
        """One step: plan, copy, write, check what would be read, sample, verify, commit."""
        plan = self.scheduler.plan(drafts)
        assert plan.work or self.scheduler.idle, "nothing was planned although something waits"
        total = sum(work.count for work in plan.work)
        assert total <= self.scheduler.max_step_tokens
        self.num_fed += total
        self._copy(plan)
        for work in plan.work:
            self._write(work.sequence, work.start, work.start + work.count)
        for work in plan.work:
            self._check_reads(work.sequence, work.start + work.count)
        chosen = []
        for sequence, start, count, num_logits, _ in plan.work:
            assert num_logits <= count
            known, end = sequence.tokens + sequence.drafts, start + count
            places = range(end - num_logits, end) if sequence.score_from is None else ()
            chosen.append([next_token(known[: p + 1]) for p in places])
        self.scheduler.commit(plan, verify(plan, chosen))
        self.scheduler.check_integrity()
        return plan

    def run(self) -> None:
        """Until nothing is left."""
        for _ in range(10_000):
            if self.scheduler.idle:
                return
            self.step()
        raise AssertionError("the scheduler makes no progress")

    def _slot(self, sequence: Sequence, position: int) -> int:
        return sequence.blocks[position // self.block_size] * self.block_size + position % self.block_size

    def _copy(self, plan: Plan) -> None:
        for source, target in plan.copies:
            for offset in range(self.block_size):
                value = self.slots.get(source * self.block_size + offset)
                if value is not None:
                    self.slots[target * self.block_size + offset] = value

    def _write(self, sequence: Sequence, start: int, end: int) -> None:
        known = sequence.tokens + sequence.drafts
        for position in range(start, end):
            self.slots[self._slot(sequence, position)] = hash(tuple(known[: position + 1]))

    def _check_reads(self, sequence: Sequence, end: int) -> None:
        known = sequence.tokens + sequence.drafts
        for position in range(end):
            assert self.slots[self._slot(sequence, position)] == hash(tuple(known[: position + 1])), (
                f"sequence {sequence.id} would read somebody else's row at position {position}"
            )
