"""A cache without tensors: each slot remembers which prefix it was computed from.

Drives a Scheduler as the engine does, with a next token that is a pure function of the tokens before it, and checks in
every step that what a sequence would read is what its own tokens would have written.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tokenmill.errors import SnapshotError
from tokenmill.schedule.blocks import BlockAllocator
from tokenmill.schedule.scheduler import Scheduler
from tokenmill.schedule.sequence import Plan, Sequence, Store
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


class SimulatedStore:
    """Full blocks on a simulated disk. A block in `damaged` is still found, and refused once when it is read."""

    def __init__(self) -> None:
        self.blocks: dict[bytes, list[int]] = {}
        self.damaged: set[bytes] = set()

    def find(self, digest: bytes) -> "SimulatedRows | None":
        return SimulatedRows(self, digest) if digest in self.blocks else None


@dataclass(frozen=True)
class SimulatedRows:
    """The rows of one block on the simulated disk."""

    store: SimulatedStore
    digest: bytes

    def rows(self, first: int, last: int) -> dict[str, list[int]]:
        if self.digest in self.store.damaged:
            self.store.damaged.discard(self.digest)
            del self.store.blocks[self.digest]
            raise SnapshotError("the block is damaged")
        return {"rows": self.store.blocks[self.digest][first:last]}


class SimulatedCache:
    """Slots and the loop around a scheduler. store: a simulated disk for full blocks, if there is one."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        max_sequences: int,
        budget: int,
        prefix_cache: bool,
        store: SimulatedStore | None = None,
    ) -> None:
        self.block_size = block_size
        self.scheduler = Scheduler(
            BlockAllocator(num_blocks, block_size), max_sequences, max(budget, max_sequences), prefix_cache
        )
        self.scheduler.prefixes.store = self.store = store
        self.slots: dict[int, int] = {}
        self.num_fed = 0

    def step(self, drafts: Mapping[int, list[int]] | None = None) -> Plan:
        """One step: plan, copy, load, write, check what would be read, sample, verify, commit, store.

        Returns the plan as the scheduler made it, with sequences whose rows could not be loaded.
        """
        made = plan = self.scheduler.plan(drafts)
        assert plan.work or self.scheduler.idle, "nothing was planned although something waits"
        total = sum(work.count for work in plan.work)
        assert total <= self.scheduler.max_step_tokens
        self._copy(plan)
        if failed := self._load(plan):
            plan = self.scheduler.withdraw(plan, failed)
        self.num_fed += sum(work.count for work in plan.work)
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
        self._store(self.scheduler.commit(plan, verify(plan, chosen)))
        self.scheduler.check_integrity()
        return made

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

    def _load(self, plan: Plan) -> list[Sequence]:
        """Fill the blocks that are loaded; the sequences whose rows were refused."""
        failed = []
        for load in plan.loads:
            try:
                rows = load.source.rows(load.source_first, load.source_first + load.last - load.first)["rows"]
            except SnapshotError:
                failed.append(load.sequence)
                continue
            for index, row in enumerate(rows):
                block = load.blocks[index // self.block_size]
                self.slots[block * self.block_size + index % self.block_size] = row
        return failed

    def _store(self, stores: Iterable[Store]) -> None:
        for digest, block in stores:
            assert self.store is not None
            first = block * self.block_size
            self.store.blocks[digest] = [self.slots[slot] for slot in range(first, first + self.block_size)]

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
