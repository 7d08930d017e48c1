"""A cache without tensors: each slot remembers which prefix it was computed from.

Drives a Scheduler as the engine does, with a next token that is a pure function of the tokens before it, and checks in
every step that what a sequence would read is what its own tokens would have written.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial

from tokenmill.errors import SnapshotError
from tokenmill.schedule.blocks import BlockAllocator
from tokenmill.schedule.scheduler import Scheduler
from tokenmill.schedule.sequence import Plan, Rows, RowSource, Sequence, Work, unread_mark
from tokenmill.schedule.window import Window
from tokenmill.speculate.verify import verify

VOCABULARY = 5


def next_token(tokens: list[int]) -> int:
    """The token that the simulated model says after these tokens."""
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

    def find(self, digest: bytes) -> RowSource | None:
        return partial(self.read, digest) if digest in self.blocks else None

    def read(self, digest: bytes, first: int, last: int) -> dict[str, list[int]]:
        if digest in self.damaged:
            self.damaged.discard(digest)
            del self.blocks[digest]
        if digest not in self.blocks:  # two sequences of a plan may load the same one
            raise SnapshotError("the block is damaged")
        return {"rows": self.blocks[digest][first:last]}


class SimulatedCache:
    """Slots and the loop around a scheduler.

    store: a simulated disk for full blocks, if there is one. window: what a query sees, in every layer.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        max_sequences: int,
        budget: int,
        prefix_cache: bool,
        store: SimulatedStore | None = None,
        window: int | None = None,
    ) -> None:
        self.block_size = block_size
        self.window = Window(window, block_size)
        allocator, budget = BlockAllocator(num_blocks, block_size), max(budget, max_sequences)
        self.scheduler = Scheduler(allocator, max_sequences, budget, prefix_cache, window=self.window)
        self.max_used = 0  # blocks that were in use at once
        self.store = store
        if store is not None:
            self.scheduler.prefixes.find_stored = store.find
        self.slots: dict[int, int] = {}
        self.num_fed = 0

    def step(self, drafts: Mapping[int, list[int]] | None = None) -> Plan:
        """One step: plan, copy, load, write, check what would be read, sample, verify, commit, store.

        Returns the plan as the scheduler made it, with sequences whose rows could not be loaded.
        """
        made = self.scheduler.plan(drafts)
        assert made.work or self.scheduler.idle, "nothing was planned although something waits"
        self._end(*self._run(made))
        return made

    def overlapped(self, num_steps: int, leaves: int = 0) -> None:
        """So many steps, each begun before the tokens of the one before are read, as far as that is possible.

        leaves: bit n is set if, once step n is in flight, the first of its sequences is dropped.
        """
        current = self._run(self.scheduler.plan())
        for number in range(num_steps):
            plan, chosen = current
            if any(work.sequence.score_from is not None for work in plan.work):
                self._end(plan, chosen)
                current = self._run(self.scheduler.plan())
                continue
            self.scheduler.advance(plan, [[unread_mark(row)] * len(tokens) for row, tokens in enumerate(chosen)])
            following = self._run(self.scheduler.plan())
            self._end(plan, chosen, is_advanced=True)
            if leaves >> number & 1 and following[0].work:
                self.scheduler.drop(following[0].work[0].sequence)
            kept = [index for index, work in enumerate(following[0].work) if work.sequence.finish_reason is None]
            current = Plan([following[0].work[index] for index in kept]), [following[1][index] for index in kept]
        self._end(*current)

    def _run(self, plan: Plan) -> tuple[Plan, list[list[int]]]:
        """Copy, load, write, check what would be read, sample. The plan without sequences that could not be loaded."""
        assert sum(work.count for work in plan.work) <= self.scheduler.max_step_tokens
        self.max_used = max(self.max_used, self.scheduler.allocator.num_blocks - self.scheduler.allocator.num_free)
        self._copy(plan)
        if failed := self._load(plan):
            plan = self.scheduler.withdraw(plan, failed)
        self.num_fed += sum(work.count for work in plan.work)
        for work in plan.work:
            self._write(work)
        for work in plan.work:
            self._check_reads(work)
        chosen = []
        for work in plan.work:
            assert work.num_logits <= work.count
            known, end = self._known(work), work.start + work.count
            places = range(end - work.num_logits, end) if work.sequence.score_from is None else ()
            chosen.append([next_token(known[: p + 1]) for p in places])
        return plan, chosen

    def _end(self, plan: Plan, chosen: list[list[int]], is_advanced: bool = False) -> None:
        """Verify, commit, store."""
        self._store(self.scheduler.commit(plan, verify(plan, chosen), is_advanced))
        self.scheduler.check_integrity()

    def _known(self, work: Work) -> list[int]:
        """The tokens of a sequence, also one that it has not read yet, and its drafts."""
        tokens = list(work.sequence.tokens)
        if work.sequence.has_unread_token:
            tokens[-1] = next_token(tokens[:-1])
        return [*tokens, *work.drafts]

    def fork(self, parent: Sequence, new_id: int, keep: bool = False) -> Sequence:
        """A second sequence with the same past, queued or, with `keep`, parked as that of a session is."""
        child = replace(parent, id=new_id, tokens=[], rows=Rows(salt=parent.rows.salt), finish_reason=None, keep=keep)
        (self.scheduler.park if keep else self.scheduler.add)(child)
        self.scheduler.share(parent, child)
        return child

    def run(self) -> None:
        """Until nothing is left."""
        for _ in range(10_000):
            if self.scheduler.idle:
                return
            self.step()
        raise AssertionError("the scheduler makes no progress")

    def _slot(self, sequence: Sequence, position: int) -> int:
        block = sequence.rows.table(self.block_size)[position // self.block_size]
        return block * self.block_size + position % self.block_size

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
                rows = load.source(load.first, load.last)["rows"]
            except SnapshotError:
                failed.append(load.sequence)
                continue
            for index, row in enumerate(rows):
                block = load.blocks[index // self.block_size]
                self.slots[block * self.block_size + index % self.block_size] = row
        return failed

    def _store(self, stores: Iterable[tuple[bytes, int]]) -> None:
        for digest, block in stores:
            first = block * self.block_size
            if self.store is not None:
                self.store.blocks[digest] = [self.slots[slot] for slot in range(first, first + self.block_size)]

    def _write(self, work: Work) -> None:
        known = self._known(work)
        for position in range(work.start, work.start + work.count):
            self.slots[self._slot(work.sequence, position)] = hash(tuple(known[: position + 1]))

    def _check_reads(self, work: Work) -> None:
        sequence, known = work.sequence, self._known(work)
        for position in range(self.window.first_row(work.start), work.start + work.count):
            assert self.slots[self._slot(sequence, position)] == hash(tuple(known[: position + 1])), (
                f"sequence {sequence.id} would read somebody else's row at position {position}"
            )
