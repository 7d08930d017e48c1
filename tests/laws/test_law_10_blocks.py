"""Law 10: whatever is added, ended, forked, rewound or preempted, every row read is one's own and no block is lost."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.integrity import check_scheduler
from tests.simulated_cache import VOCABULARY, SimulatedCache, SimulatedStore, next_token, solo
from tokenmill.schedule.choosing import Choosing
from tokenmill.schedule.row_blocks import Window
from tokenmill.schedule.sequence import Sequence

MAX_TOKENS = 24
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=12)  # two tokens only: prompts often share a prefix


class Operations(RuleBasedStateMachine):
    """Random operations on a scheduler with a small cache, so that preemption and eviction happen all the time."""

    @initialize(
        block_size=st.sampled_from([1, 2, 3, 8, MAX_TOKENS]),
        spare=st.integers(0, 20),
        max_sequences=st.integers(1, 5),
        budget=st.integers(1, 16),
        prefix_cache=st.booleans(),
        has_store=st.booleans(),
        window=st.sampled_from([None, None, 1, 2, 5, 9]),
        spare_states=st.sampled_from([None, None, 0, 1, 5, 20]),
    )
    def build(
        self,
        block_size: int,
        spare: int,
        max_sequences: int,
        budget: int,
        prefix_cache: bool,
        has_store: bool,
        window: int | None,
        spare_states: int | None,
    ) -> None:
        num_blocks = Window(window, block_size).max_blocks(MAX_TOKENS) + spare
        self.store = SimulatedStore()
        store = self.store if has_store else None
        num_states = 0 if spare_states is None else 2 + spare_states
        self.cache = SimulatedCache(
            num_blocks, block_size, max_sequences, budget, prefix_cache, store, window, num_states
        )
        self.scheduler = self.cache.scheduler
        self.sequences: dict[int, tuple[Sequence, list[int]]] = {}
        self.next_id = 0

    def _enter(self, sequence: Sequence) -> None:
        self.sequences[sequence.id] = (sequence, solo(sequence.tokens, sequence.max_tokens, sequence.choosing.stop_ids))
        self.next_id += 1

    @rule(prompt=TOKENS, more=st.integers(1, 12), stops=st.booleans(), keep=st.booleans())
    def add(self, prompt: list[int], more: int, stops: bool, keep: bool) -> None:
        stop_ids = {VOCABULARY - 1: "eos"} if stops else {}
        sequence = Sequence(
            self.next_id, list(prompt), len(prompt), len(prompt) + more, Choosing(stop_ids=stop_ids), keep=keep
        )
        self._enter(sequence)
        self.scheduler.add(sequence)

    @rule(prompt=TOKENS, keep=st.booleans())
    def add_scored(self, prompt: list[int], keep: bool) -> None:
        sequence = Sequence(self.next_id, list(prompt), len(prompt), len(prompt), score_from=0, keep=keep)
        self._enter(sequence)
        self.scheduler.add(sequence)

    @rule(agree=st.integers(0, 4), wrong=st.integers(0, 2))
    def step(self, agree: int, wrong: int) -> None:
        drafts = {}
        for sequence in self.scheduler.running:
            known = list(sequence.tokens)
            for _ in range(agree):
                known.append(next_token(known))
            drafts[sequence.id] = known[len(sequence.tokens) :] + [VOCABULARY - 2] * wrong
        self.cache.step(drafts)

    @rule(num_steps=st.integers(1, 6), leaves=st.integers(0, 63))
    def overlap(self, num_steps: int, leaves: int) -> None:
        """Async scheduling, with sequences that are dropped while a step is in flight."""
        self.cache.overlapped(num_steps, leaves)
        unfinished = [*self.scheduler.running, *self.scheduler.waiting, *self.scheduler.parked]
        for sequence, _ in list(self.sequences.values()):
            if sequence.finish_reason == "abort" and sequence not in unfinished:
                del self.sequences[sequence.id]

    @precondition(lambda self: any(s.score_from is None for s in self.scheduler.running))
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        parent = data.draw(st.sampled_from([s for s in self.scheduler.running if s.score_from is None]))
        self._enter(self.cache.fork(parent, self.next_id))

    @precondition(lambda self: self.scheduler.running or self.scheduler.waiting)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from([*self.scheduler.running, *self.scheduler.waiting]))
        self.scheduler.drop(sequence)
        del self.sequences[sequence.id]

    @rule()
    def break_off(self) -> None:
        """A step that ends between its plan and its commit: what ran or waited has failed."""
        self.scheduler.plan()
        for sequence in [*self.scheduler.running, *self.scheduler.waiting]:
            self.sequences.pop(sequence.id, None)
        self.scheduler.reset()

    @precondition(lambda self: self.store.blocks)
    @rule()
    def restart(self) -> None:
        """Blocks are found on disk alone, as in a new process."""
        self.scheduler.memory.forget_names()

    @precondition(lambda self: self.store.blocks)
    @rule(data=st.data())
    def damage(self, data: st.DataObject) -> None:
        """A block on disk that is found, and cannot be loaded."""
        self.store.damaged.add(data.draw(st.sampled_from(sorted(self.store.blocks))))

    @precondition(lambda self: any(s.score_from is None for s in self.scheduler.parked))
    @rule(data=st.data(), token=st.integers(0, 1))
    def rewind_and_resume(self, data: st.DataObject, token: int) -> None:
        sequence = data.draw(st.sampled_from([s for s in self.scheduler.parked if s.score_from is None]))
        self.scheduler.rewind(sequence, data.draw(st.integers(1, len(sequence.tokens))))
        if len(sequence.tokens) < sequence.max_tokens - 1:
            sequence.tokens.append(token)
        if len(sequence.tokens) < sequence.max_tokens:
            expected = solo(sequence.tokens, sequence.max_tokens, sequence.choosing.stop_ids)
            self.sequences[sequence.id] = (sequence, expected)
            sequence.num_prompt_tokens = len(sequence.tokens)  # as with the next call of a session
            self.scheduler.resume(sequence)

    @precondition(lambda self: self.scheduler.parked)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        self.scheduler.drop(data.draw(st.sampled_from(self.scheduler.parked)))

    @invariant()
    def intact(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        check_scheduler(self.scheduler)
        for sequence, expected in self.sequences.values():
            if sequence in self.scheduler.parked:
                continue  # it may have been rewound since
            length = len(sequence.tokens)
            assert sequence.tokens == expected[:length]
            assert not sequence.finish_reason or length == len(expected)

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        self.cache.run()
        for sequence in list(self.scheduler.parked):
            self.scheduler.drop(sequence)
        check_scheduler(self.scheduler)
        for kind in self.scheduler.memory.kinds:
            assert kind.allocator.num_free == kind.allocator.num_blocks, "a block was leaked"


Operations.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestOperations = Operations.TestCase
