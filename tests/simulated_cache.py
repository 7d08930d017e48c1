"""A cache without tensors: each slot remembers which prefix it was computed from.

Drives a Scheduler as the engine does, with a next token that is a pure function of the tokens before it, and checks in
every step that what a sequence would read is what its own tokens would have written.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial

from tests.integrity import check_scheduler
from tokenmill.errors import SnapshotError
from tokenmill.schedule.blocks import BlockAllocator
from tokenmill.schedule.keeps import Keeps, Kept, RowSource
from tokenmill.schedule.memory import Memory
from tokenmill.schedule.row_blocks import RowBlocks, Window
from tokenmill.schedule.scheduler import Scheduler
from tokenmill.schedule.sequence import Copy, Plan, Sequence, Store, Work, unread_mark
from tokenmill.schedule.snapshots import SnapshotSlots
from tokenmill.schedule.state_slots import StateSlots
from tokenmill.speculate.speculation import verify

VOCABULARY = 5
ROWS, STATES = 0, 1


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

    def find(self, digest: bytes, kind: int) -> RowSource | None:
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

    store: a simulated disk for full blocks, if there is one. window: what a query sees, in every layer. num_states: the
    slots of layers that keep a state, if there are any.
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
        num_states: int = 0,
        tokens_per_state: int = 1,
    ) -> None:
        self.block_size = block_size
        self.window = Window(window, block_size)
        kinds: list[Keeps] = [RowBlocks(BlockAllocator(num_blocks, block_size), self.window)]
        if num_states:
            has_rows = kinds[ROWS].allocator.is_findable if store is None else None
            slots = SnapshotSlots(num_states, block_size, tokens_per_state, has_rows, num_spare=num_states // 4)
            kinds.append(StateSlots(slots, prefix_cache))
        self.scheduler = Scheduler(Memory(kinds, prefix_cache), max_sequences, max(budget, max_sequences))
        self.max_used = 0  # blocks that were in use at once
        self.store = store
        if store is not None:
            self.scheduler.memory.store = store
        self.slots: dict[int, int] = {}
        self.states: dict[int, int] = {}
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
        if failed := self._move(plan):
            plan = self.scheduler.withdraw(plan, failed)
        self._store(self.scheduler.end_found(plan))
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
        check_scheduler(self.scheduler)
        for sequence in (*self.scheduler.running, *self.scheduler.parked):
            kept = sequence.kept
            assert kept.first_row + len(kept.blocks) * self.block_size >= kept.num_computed
            assert kept.num_computed == 0 or self.scheduler.memory.kinds[1:] == () or kept.state is not None

    def _known(self, work: Work) -> list[int]:
        """The tokens of a sequence, also one that it has not read yet, and its drafts."""
        tokens = list(work.sequence.tokens)
        if work.sequence.has_unread_token:
            tokens[-1] = next_token(tokens[:-1])
        return [*tokens, *work.drafts]

    def fork(self, parent: Sequence, new_id: int, keep: bool = False) -> Sequence:
        """A second sequence with the same past, queued or, with `keep`, parked as that of a session is."""
        child = replace(parent, id=new_id, tokens=[], kept=Kept(salt=parent.kept.salt), finish_reason=None, keep=keep)
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
        block = sequence.kept.row_blocks(self.block_size)[position // self.block_size]
        return block * self.block_size + position % self.block_size

    def _move(self, plan: Plan) -> list[Sequence]:
        """Copy and load blocks; the sequences whose blocks were refused."""
        failed = []
        for move in plan.moves:
            if isinstance(move, Copy):
                self._copy(*move)
                continue
            try:
                entries = move.source(move.first, move.last)["rows"]
            except SnapshotError:
                failed.append(move.sequence)
                continue
            for index, entry in enumerate(entries):
                if move.kind == STATES:
                    self.states[move.blocks[0]] = entry
                else:
                    block = move.blocks[index // self.block_size]
                    self.slots[block * self.block_size + index % self.block_size] = entry
        return failed

    def _copy(self, kind: int, source: int, target: int) -> None:
        entries, size = (self.states, 1) if kind == STATES else (self.slots, self.block_size)
        for offset in range(size):
            if (value := entries.get(source * size + offset)) is not None:
                entries[target * size + offset] = value

    def _store(self, stores: Iterable[Store]) -> None:
        for kind, name, block in stores if self.store is not None else ():
            slots = range(block * self.block_size, (block + 1) * self.block_size)
            entries = [self.states[block]] if kind == STATES else [self.slots[slot] for slot in slots]
            self.store.blocks[name] = entries

    def _write(self, work: Work) -> None:
        known = self._known(work)
        for position in range(work.start, work.start + work.count):
            self.slots[self._slot(work.sequence, position)] = hash(tuple(known[: position + 1]))
        if len(work.sequence.kept.tables) <= STATES:
            return
        slot, filled = work.sequence.kept.states(work.start)
        assert slot is None or self.states[slot] == hash(tuple(known[: work.start])), (
            f"sequence {work.sequence.id} would go on with somebody else's state at position {work.start}"
        )
        assert filled[-1][0] == work.count and bool(slot is None) == (not work.start)
        for count, slot in filled:
            self.states[slot] = hash(tuple(known[: work.start + count]))

    def _check_reads(self, work: Work) -> None:
        sequence, known = work.sequence, self._known(work)
        for position in range(self.window.first_row(work.start), work.start + work.count):
            assert self.slots[self._slot(sequence, position)] == hash(tuple(known[: position + 1])), (
                f"sequence {sequence.id} would read somebody else's row at position {position}"
            )
