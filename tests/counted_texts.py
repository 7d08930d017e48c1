"""Texts that run in a scheduler without model or cache: the tokens that steps feed are counted, in plain integers."""

from collections.abc import Sequence as List
from itertools import count

from tokenmill.schedule.blocks import BlockAllocator
from tokenmill.schedule.keeps import Keeps
from tokenmill.schedule.memory import Memory
from tokenmill.schedule.row_blocks import RowBlocks
from tokenmill.schedule.scheduler import Scheduler
from tokenmill.schedule.sequence import Sequence
from tokenmill.schedule.snapshots import SnapshotSlots
from tokenmill.schedule.state_slots import StateSlots

BLOCK, STEP = 32, 512  # the defaults of a server


class CountedTexts:
    """A scheduler whose texts get answers that are told. num_states: 0 for a model whose layers all keep rows.

    found, recomputed: tokens of prompts that the cache had, and tokens after them whose rows it had without a state.
    """

    def __init__(self, num_tokens: int, num_states: int, tokens_per_state: int = 1, max_sequences: int = 1) -> None:
        rows = BlockAllocator(num_tokens // BLOCK, BLOCK)
        kinds: list[Keeps] = [RowBlocks(rows)]
        if num_states:
            self.slots = SnapshotSlots(num_states, BLOCK, tokens_per_state, rows.is_findable)
            kinds.append(StateSlots(self.slots))
        self.scheduler = Scheduler(Memory(kinds), max_sequences, STEP)
        self.num_stored, self.found, self.recomputed = [0] * len(kinds), 0, 0
        self._ids = count()

    def run(self, prompt: List[int], answer: List[int]) -> int:
        """Let one text run to its end; return how many tokens of its prompt were fed."""
        text = Sequence(next(self._ids), list(prompt), len(prompt), len(prompt) + len(answer))
        self.scheduler.add(text)
        fed = 0
        while not self.scheduler.idle:
            plan = self.scheduler.plan()
            fed += sum(work.count for work in plan.work)
            chosen = [[answer[len(text.tokens) - len(prompt)]] * bool(work.num_logits) for work in plan.work]
            for store in self.scheduler.commit(plan, chosen):
                self.num_stored[store.kind] += 1
        self.found += text.num_cached_tokens or 0
        self.recomputed += text.num_recomputed_tokens
        return fed - (len(answer) - 1)
