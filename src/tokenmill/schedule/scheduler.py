"""The plan of each step: who feeds which of its tokens, under a token budget and a number of blocks.

Continuous batching, chunked prefill, verification of drafts and recovery from preemption are not modes: every sequence
has some pending tokens, and the plan feeds a number of them. Sequences that decode, with one pending token, go first,
so that a long prompt never stalls them, and each running sequence gets at least one token a step. When blocks run out,
the sequence of lowest priority that arrived last gives up all of its blocks and is recomputed later: the same text.
"""

from bisect import insort
from collections import deque
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as List
from dataclasses import replace
from operator import attrgetter

from tokenmill.errors import CapacityError
from tokenmill.schedule.blocks import BlockAllocator
from tokenmill.schedule.prefixes import Prefixes
from tokenmill.schedule.sequence import Plan, PlanBuilder, Sequence, Store, Work

__all__ = ["Scheduler"]

_ORDER = attrgetter("order")


class Scheduler:
    """Owns the sequences that wait and run, and their block tables."""

    def __init__(
        self,
        allocator: BlockAllocator,
        max_sequences: int,
        max_step_tokens: int,
        prefix_cache: bool = True,
        cache: bool = True,
    ) -> None:
        self.allocator = allocator
        self.max_sequences = max_sequences
        self.max_step_tokens = max_step_tokens
        self.prefixes = Prefixes(allocator, prefix_cache and cache)
        self.cache = cache  # False: after each token, no row counts as computed
        self.waiting: deque[Sequence] = deque()  # this and the next by priority, then arrival
        self.running: list[Sequence] = []
        self.parked: list[Sequence] = []  # kept after their end, with their blocks, until released
        self.num_preemptions = 0
        self._num_arrivals = 0

    # ---- queueing and ending. A sequence enters its new list before it leaves the old one, so that `recover` finds it.

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. Raises as `check` does."""
        self.check(sequence)
        self._num_arrivals += 1
        sequence.arrival = self._num_arrivals
        insort(self.waiting, sequence, key=_ORDER)

    def check(self, sequence: Sequence) -> None:
        """CapacityError when the sequence could not finish even with the whole pool to itself."""
        self.check_length(sequence.max_tokens)

    def check_length(self, num_tokens: int) -> None:
        """CapacityError for a sequence that is longer than the whole pool."""
        needed, available, size = self.allocator.count(num_tokens), self.allocator.num_blocks, self.allocator.block_size
        if needed > available:
            remedy = "cache_tokens (more), or max_new_tokens or the prompt (fewer)"
            what = f"cache blocks of {size} tokens for a sequence of {num_tokens}"
            raise CapacityError(what, needed, available, remedy)

    def finish(self, sequence: Sequence, reason: str) -> None:
        """End a waiting or running sequence; its blocks are released unless it is to be kept."""
        sequence.finish_reason = reason
        if not sequence.keep:
            self.allocator.cut(sequence.blocks, 0)  # while it is in a list: `recover` counts only those tables
        elif sequence not in self.parked:
            self.parked.append(sequence)
        if sequence in self.running:
            self.running.remove(sequence)
        if sequence in self.waiting:
            self.waiting.remove(sequence)

    def park(self, sequence: Sequence) -> None:
        """Keep a waiting, running or new sequence; it does not run until it is resumed."""
        if sequence not in self.parked:
            self.finish(sequence, sequence.finish_reason or "abort")

    def resume(self, sequence: Sequence) -> None:
        """Queue a kept sequence again; its tokens may have changed meanwhile."""
        sequence.finish_reason = None
        self.add(sequence)
        self.parked.remove(sequence)

    def drop(self, sequence: Sequence) -> None:
        """End a sequence for good, whether it waits, runs or is parked."""
        sequence.keep = False
        self.finish(sequence, sequence.finish_reason or "abort")
        if sequence in self.parked:
            self.parked.remove(sequence)

    def fork(self, sequence: Sequence, new_id: int, keep: bool = False) -> Sequence:
        """A second sequence with the same past, queued or, with `keep`, parked. See `share`."""
        assert sequence.score_from is None, "a scored sequence has nothing to go on with"
        child = replace(sequence, id=new_id, tokens=[], drafts=[], blocks=[], digests=[], finish_reason=None, keep=keep)
        if keep:
            self.parked.append(child)
        else:
            self.add(child)
        self.share(sequence, child)
        return child

    def share(self, sequence: Sequence, child: Sequence) -> None:
        """Give an empty sequence the past of another; blocks are shared until one of the two writes."""
        for block in sequence.blocks:
            self.allocator.share(block)
            child.blocks.append(block)
        child.digests, child.num_published = list(sequence.digests), sequence.num_published
        child.saved, child.num_saved = sequence.saved, sequence.num_saved
        child.salt, child.shares, child.priority = sequence.salt, sequence.shares, sequence.priority
        child.counted_from, child.tokens = sequence.counted_from, list(sequence.tokens)
        child.num_computed_tokens = sequence.num_computed_tokens

    def rewind(self, sequence: Sequence, num_tokens: int) -> None:
        """Forget all tokens from `num_tokens` on; the last that is left will be fed again."""
        assert 0 <= num_tokens <= len(sequence.tokens)
        sequence.num_computed_tokens = min(sequence.num_computed_tokens, max(num_tokens - 1, 0))
        sequence.num_saved = min(sequence.num_saved, num_tokens)
        sequence.num_prompt_tokens = min(sequence.num_prompt_tokens, num_tokens)
        del sequence.tokens[num_tokens:]
        sequence.drafts = []
        self._trim_digests(sequence)
        self.allocator.cut(sequence.blocks, self.allocator.count(sequence.num_computed_tokens))
        if not sequence.num_computed_tokens and not sequence.num_saved:
            sequence.saved, sequence.shares = None, True  # no rows computed under other conditions are left

    def recover(self) -> None:
        """Restore the invariants after an operation that was interrupted at any point (Ctrl-C, no memory).

        The rows of every running sequence are computed again, a sequence whose text has ended is finished, and
        references are counted from the block tables.
        """
        self.parked = [sequence for sequence in self.parked if sequence not in self.running]
        for sequence in [each for each in self.waiting if each in self.running or each in self.parked]:
            self.waiting.remove(sequence)  # it was being preempted or queued
            if sequence in self.parked:
                sequence.finish_reason = "abort"
        for sequence in self.running:
            sequence.blocks = []
        self.allocator.recount(sequence.blocks for sequence in (*self.waiting, *self.parked))
        for sequence in (*self.running, *self.waiting):
            self._drop_unread(sequence)
            if sequence in self.running:
                self._reset(sequence)
            if reason := sequence.finish_reason or sequence.end_reason:
                self.finish(sequence, reason)

    @property
    def idle(self) -> bool:
        """Whether no sequence runs or waits."""
        return not self.running and not self.waiting

    # ---- one step

    def plan(self, drafts: Mapping[int, List[int]] | None = None) -> Plan:
        """Choose the work of the next step. `drafts` maps sequence id → guessed tokens that follow its own."""
        for sequence in self.running:
            decoding = sequence.score_from is None and sequence.num_pending_tokens - len(sequence.drafts) == 1
            guesses = drafts.get(sequence.id, ()) if drafts and decoding else ()
            sequence.drafts = list(guesses[: max(sequence.max_tokens - len(sequence.tokens) - 1, 0)])
        builder = PlanBuilder(self.max_step_tokens)
        # Decoding first: a stable sort keeps the order of arrival within each group.
        unfinished = [s for s in self.running if not (s.has_unread_token and len(s.tokens) >= s.max_tokens)]
        order = sorted(unfinished, key=lambda sequence: sequence.num_pending_tokens > 1 + len(sequence.drafts))
        before = self.num_preemptions
        for place, sequence in enumerate(order):
            if self.num_preemptions == before or sequence in self.running:  # else preempted for an earlier one
                promised = len(order) - place - 1
                self._feed(sequence, max(builder.budget - promised, 1), builder)
        self._admit(builder)
        return builder.plan()

    def withdraw(self, plan: Plan, sequences: Iterable[Sequence]) -> Plan:
        """The plan without these sequences, whose rows could not be loaded: they wait again, and compute them."""
        left_out = list(sequences)
        for sequence in left_out:
            sequence.saved, sequence.num_saved = None, 0
            if sequence in self.running:
                self._preempt(sequence)
        return Plan([work for work in plan.work if work.sequence not in left_out], [], [], [])

    def commit(self, plan: Plan, accepted: List[List[int]]) -> list[Store]:
        """Append accepted tokens: for each work item, the tokens chosen there (none inside a prompt).

        Sequences that have ended are finished. Full blocks are published; returns those to write to disk.
        """
        stores: list[Store] = []
        for (sequence, start, count, *_), tokens in zip(plan.work, accepted, strict=True):
            if sequence.finish_reason is not None:
                continue  # it was cancelled or has failed since the plan
            sequence.drafts = []
            reason = self._append(sequence, tokens)
            if tokens:
                computed = min(start + count, len(sequence.tokens) - 1)
                sequence.num_computed_tokens = computed if self.cache else 0
            else:
                sequence.num_computed_tokens = start + count
            stores += self._end_step(sequence, reason)
        return stores

    def advance(self, plan: Plan, unread: List[List[int]]) -> None:
        """Go on before the chosen tokens are read: `unread` holds, for each work item, the mark of its token, if any.

        No sequence ends here. The next plan may be made; `settle` has to follow.
        """
        for (sequence, start, count, *_), tokens in zip(plan.work, unread, strict=True):
            sequence.tokens += tokens
            sequence.num_computed_tokens = start + count if self.cache or not tokens else 0

    def settle(self, plan: Plan, accepted: List[List[int]]) -> list[Store]:
        """Replace the marks of `advance` by the accepted tokens, and finish sequences that end; returns as `commit`."""
        stores: list[Store] = []
        for (sequence, *_), tokens in zip(plan.work, accepted, strict=True):
            if sequence.finish_reason is not None:
                self._drop_unread(sequence)
                continue
            reason = None
            if sequence.has_unread_token:  # otherwise the work was a chunk of a prompt
                sequence.tokens.pop()
                reason = self._append(sequence, tokens)
            stores += self._end_step(sequence, reason)  # published only now: the rows may not have been finite
        return stores

    def check_integrity(self) -> None:
        """Assert the invariants of the blocks and of every sequence; for tests."""
        sequences = [*self.running, *self.waiting, *self.parked]
        self.allocator.check_integrity(sequence.blocks for sequence in sequences)
        for sequence in sequences:
            computed, length = sequence.num_computed_tokens, len(sequence.tokens)
            assert 0 <= computed < length or sequence.score_from is not None or computed == length == 0
            assert len(sequence.blocks) >= self.allocator.count(computed)

    # ---- inside a step

    def _feed(self, sequence: Sequence, budget: int, builder: PlanBuilder) -> None:
        """Plan as many pending tokens as the budget allows, unless the sequence is itself preempted for blocks."""
        count = min(sequence.num_pending_tokens, budget)
        if not self._take_blocks(sequence, count, builder):
            return
        end = sequence.num_computed_tokens + count
        if sequence.num_tokens > end:  # the budget cut off some drafts
            del sequence.drafts[max(end - len(sequence.tokens), 0) :]
        num_logits = min(count, max(end - sequence.first_logits, 0))
        work = Work(sequence, sequence.num_computed_tokens, count, num_logits, tuple(sequence.drafts))
        builder.work[sequence.id] = work
        builder.budget -= count

    def _admit(self, builder: PlanBuilder) -> None:
        while self.waiting and len(self.running) < self.max_sequences and builder.budget > 0:
            sequence = self.waiting[0]
            loads = self.prefixes.take_over(sequence, self.allocator.count(len(sequence.tokens)))
            if loads is None:
                if self.running or not self._reclaim():
                    return
                continue
            insort(self.running, sequence, key=_ORDER)
            self.waiting.popleft()
            builder.loads += loads
            self._feed(sequence, builder.budget, builder)

    def _reclaim(self) -> bool:
        """Take the blocks of parked and waiting sequences; their rows are recomputed when they run."""
        holders = [sequence for sequence in (*self.parked, *self.waiting) if sequence.blocks]
        for sequence in holders:
            self._reset(sequence)
        return bool(holders)

    def _take_blocks(self, sequence: Sequence, count: int, builder: PlanBuilder) -> bool:
        """Give the sequence blocks of its own for its next `count` tokens; False if it was itself preempted."""
        start, size = sequence.num_computed_tokens, self.allocator.block_size
        while len(sequence.blocks) < self.allocator.count(start + count):
            block = self._take_block(sequence, builder)
            if block is None:
                return False
            sequence.blocks.append(block)
        for index in range(start // size, self.allocator.count(start + count)):
            old = sequence.blocks[index]
            if self.allocator.references[old] == 1:
                self.allocator.unpublish(old)  # it is about to change
                continue
            new = self._take_block(sequence, builder)
            if new is None:
                return False
            if index * size < start:
                builder.copies.append((sequence, old, new))
            self.allocator.release(old)
            sequence.blocks[index] = new
        return True

    def _take_block(self, sequence: Sequence, builder: PlanBuilder) -> int | None:
        """A free block, taken from idle sequences and then from the last running ones; None if that is this one."""
        while (block := self.allocator.allocate()) is None:
            if self._reclaim():
                continue
            victim = self.running[-1]
            self._preempt(victim)
            builder.drop(victim)
            if victim is sequence:
                return None
        return block

    def _preempt(self, sequence: Sequence) -> None:
        insort(self.waiting, sequence, key=_ORDER)
        self.running.remove(sequence)
        self._reset(sequence)
        self.num_preemptions += 1

    def _reset(self, sequence: Sequence) -> None:
        sequence.drafts, sequence.num_computed_tokens = [], 0
        self._trim_digests(sequence)
        self.allocator.cut(sequence.blocks, 0)

    def _trim_digests(self, sequence: Sequence) -> None:
        num_full = sequence.num_computed_tokens // self.allocator.block_size
        del sequence.digests[num_full:]
        sequence.num_published = min(sequence.num_published, num_full)

    def _drop_unread(self, sequence: Sequence) -> None:
        """Remove the unread token of a sequence; it will be chosen again, with the same result."""
        if sequence.has_unread_token:
            sequence.tokens.pop()
            sequence.num_computed_tokens = min(sequence.num_computed_tokens, len(sequence.tokens) - 1)

    @staticmethod
    def _append(sequence: Sequence, tokens: List[int]) -> str | None:
        """Append tokens up to the first that ends the text; the finish reason if one does."""
        for token in tokens:
            sequence.tokens.append(token)
            if reason := sequence.end_reason:
                return reason
        return None

    def _end_step(self, sequence: Sequence, reason: str | None) -> list[Store]:
        """Publish full blocks; finish the sequence if there is a reason, or if all of it is scored."""
        stores = self.prefixes.publish(sequence)
        if sequence.score_from is not None and not sequence.num_pending_tokens:
            reason = "scored"
        if reason:
            self.finish(sequence, reason)
        return stores
