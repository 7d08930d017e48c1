"""The plan of each step: who feeds which of its tokens, under a token budget and a number of blocks.

Continuous batching, chunked prefill, verification of drafts and recovery from preemption are no modes here: every
sequence is some tokens behind and is given a count. Those that are nearly caught up (decoding) go first, so a long
prompt never stalls them; each runner is promised at least one token a step. When blocks run out, the youngest
sequence gives up all of its blocks and is recomputed later: the same text, only later.
"""

from collections import deque
from collections.abc import Mapping
from collections.abc import Sequence as List

from tokenmill.errors import CapacityError
from tokenmill.schedule.blocks import BlockAllocator
from tokenmill.schedule.prefixes import Prefixes
from tokenmill.schedule.sequence import Plan, Sequence, Work

__all__ = ["Scheduler"]


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
        self.cache = cache  # False: after each token, nothing counts as computed
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # in order of arrival
        self.parked: list[Sequence] = []  # kept after their end, blocks and all, until released
        self.num_preemptions = 0

    # ---- coming and going

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence; see `check`."""
        self.check(sequence)
        self.waiting.append(sequence)

    def check(self, sequence: Sequence) -> None:
        """CapacityError when the sequence could not finish even with the whole pool to itself."""
        needed = self._num_blocks(sequence.max_tokens)
        if needed > self.allocator.num_blocks:
            raise CapacityError(
                f"cache blocks of {self.allocator.block_size} tokens for a sequence of {sequence.max_tokens}",
                needed,
                self.allocator.num_blocks,
                "cache_tokens (more), or max_new_tokens or the prompt (fewer)",
            )

    def finish(self, sequence: Sequence, reason: str) -> None:
        """End a sequence wherever it is; its blocks are given back unless it is to be kept."""
        sequence.finish_reason = reason
        for place in (self.running, self.waiting):
            if sequence in place:
                place.remove(sequence)
        if sequence.keep:
            if sequence not in self.parked:
                self.parked.append(sequence)
        else:
            self._release(sequence, 0)

    def park(self, sequence: Sequence) -> None:
        """Keep a sequence wherever it is, new ones too; it does not run until it is resumed."""
        if sequence not in self.parked:
            self.finish(sequence, sequence.finish_reason or "abort")

    def adopt(self, sequence: Sequence, num_rows: int) -> bool:
        """Give a parked sequence blocks for rows that come from elsewhere; False where there is no room."""
        self._reset(sequence)
        while len(sequence.blocks) < self._num_blocks(num_rows):
            block = self.allocator.allocate()
            if block is not None:
                sequence.blocks.append(block)
            elif not self._reclaim_but(sequence):
                self._reset(sequence)
                return False
        sequence.num_computed_tokens = num_rows
        self.prefixes.publish(sequence)
        return True

    def resume(self, sequence: Sequence) -> None:
        """Queue a kept sequence again, with whatever tokens it has by now."""
        self.parked.remove(sequence)
        sequence.finish_reason = None
        self.add(sequence)

    def drop(self, sequence: Sequence) -> None:
        """Let go of a sequence for good, wherever it is."""
        sequence.keep = False
        if sequence in self.parked:
            self.parked.remove(sequence)
        self.finish(sequence, sequence.finish_reason or "abort")

    def fork(self, sequence: Sequence, new_id: int, keep: bool = False) -> Sequence:
        """A second sequence with the same past; blocks are shared until one of the two writes. With `keep`, parked."""
        assert sequence.score_from is None, "a scored sequence has nothing to go on with"
        child = Sequence(
            new_id,
            list(sequence.tokens),
            sequence.num_prompt_tokens,
            sequence.max_tokens,
            sequence.params,
            sequence.seed,
            sequence.stop_ids,
            num_computed_tokens=sequence.num_computed_tokens,
            blocks=list(sequence.blocks),
            digests=list(sequence.digests),
            keep=keep,
            counted_from=sequence.counted_from,
        )
        for block in child.blocks:
            self.allocator.share(block)
        (self.parked if keep else self.waiting).append(child)
        return child

    def rewind(self, sequence: Sequence, num_tokens: int) -> None:
        """Forget all tokens from `num_tokens` on; the last that is left will be fed again."""
        assert 0 <= num_tokens <= len(sequence.tokens)
        del sequence.tokens[num_tokens:]
        sequence.drafts = []
        sequence.num_computed_tokens = min(sequence.num_computed_tokens, max(num_tokens - 1, 0))
        del sequence.digests[sequence.num_computed_tokens // self.allocator.block_size :]
        self._release(sequence, self._num_blocks(sequence.num_computed_tokens))

    def restart(self) -> None:
        """Compute every running sequence anew: a step broke off between its plan and its commit."""
        for sequence in (*self.running, *self.waiting):
            self._forget_unread(sequence)
        for sequence in self.running:
            self._reset(sequence)

    @property
    def idle(self) -> bool:
        """True when there is nothing left to do."""
        return not self.running and not self.waiting

    # ---- one step

    def plan(self, drafts: Mapping[int, List[int]] | None = None) -> Plan:
        """Choose the work of the next step. `drafts` maps sequence id → guessed tokens that follow its own."""
        for sequence in self.running:
            decoding = sequence.score_from is None and sequence.num_pending_tokens - len(sequence.drafts) == 1
            guesses = drafts.get(sequence.id, ()) if drafts and decoding else ()
            sequence.drafts = list(guesses[: max(sequence.max_tokens - len(sequence.tokens) - 1, 0)])
        work: dict[int, Work] = {}
        copies: list[tuple[int, int]] = []
        budget = self.max_step_tokens
        # Decoding first: a stable sort keeps the order of arrival within each group.
        unfinished = [each for each in self.running if not (each.is_ahead and len(each.tokens) >= each.max_tokens)]
        order = sorted(unfinished, key=lambda sequence: sequence.num_pending_tokens > 1 + len(sequence.drafts))
        before = self.num_preemptions
        for place, sequence in enumerate(order):
            if self.num_preemptions > before and sequence not in self.running:
                continue  # preempted a moment ago
            promised = len(order) - place - 1
            count = min(sequence.num_pending_tokens, max(budget - promised, 1))
            if self._make_room(sequence, count, work, copies):
                work[sequence.id] = self._work(sequence, count)
                budget -= count
        self._admit(budget, work, copies)
        # What was planned for a sequence that was preempted later in the same step has no blocks any more.
        return Plan(list(work.values()), [pair for pair in copies if self.allocator.references[pair[1]]])

    def commit(self, plan: Plan, accepted: List[List[int]]) -> list[Sequence]:
        """Move the integers: `accepted` holds, per work, the tokens chosen there (none inside a prompt).

        Returns the sequences that finished. Full blocks of accepted tokens are published for sharing.
        """
        finished = []
        for (sequence, start, count, _), tokens in zip(plan.work, accepted, strict=True):
            if sequence.finish_reason is not None:
                continue  # ended from outside between plan and commit
            sequence.drafts = []
            if tokens:
                reason = self._append(sequence, tokens)
                computed = min(start + count, len(sequence.tokens) - 1)
                sequence.num_computed_tokens = computed if self.cache else 0
            else:
                sequence.num_computed_tokens = start + count
                reason = "scored" if sequence.score_from is not None and not sequence.num_pending_tokens else None
            self.prefixes.publish(sequence)
            if reason:
                self.finish(sequence, reason)
                finished.append(sequence)
        return finished

    def advance(self, plan: Plan, unread: List[List[int]]) -> None:
        """Go on before anybody knows what was chosen: `unread` holds, per work, what stands for it, or nothing.

        None of them has ended, and nothing ends here. The next plan may be made; then `settle` has to follow.
        """
        for (sequence, start, count, _), tokens in zip(plan.work, unread, strict=True):
            sequence.tokens += tokens
            sequence.num_computed_tokens = start + count if self.cache or not tokens else 0

    def settle(self, plan: Plan, accepted: List[List[int]]) -> None:
        """Put in the tokens that `advance` went ahead of, and end what they end."""
        for (sequence, *_), tokens in zip(plan.work, accepted, strict=True):
            if sequence.finish_reason is not None:
                self._forget_unread(sequence)
                continue
            reason = None
            if sequence.is_ahead:  # and no chunk of a prompt
                sequence.tokens.pop()
                reason = self._append(sequence, tokens)
            self.prefixes.publish(sequence)  # not before: the rows may have been no numbers
            if reason:
                self.finish(sequence, reason)

    def check_integrity(self) -> None:
        """Assert the invariants of the blocks and of every sequence; for tests."""
        everyone = [*self.running, *self.waiting, *self.parked]
        self.allocator.check_integrity(sequence.blocks for sequence in everyone)
        for sequence in everyone:
            empty = not sequence.tokens and not sequence.num_computed_tokens
            assert 0 <= sequence.num_computed_tokens < len(sequence.tokens) or sequence.score_from is not None or empty
            assert len(sequence.blocks) >= self._num_blocks(sequence.num_computed_tokens)

    # ---- inside a step

    def _work(self, sequence: Sequence, count: int) -> Work:
        end = sequence.num_computed_tokens + count
        if sequence.num_tokens > end:  # the budget cut off some drafts
            del sequence.drafts[max(end - len(sequence.tokens), 0) :]
        num_logits = min(count, max(end - sequence.first_logits, 0))
        return Work(sequence, sequence.num_computed_tokens, count, num_logits)

    def _admit(self, budget: int, work: dict[int, Work], copies: list[tuple[int, int]]) -> None:
        while self.waiting and len(self.running) < self.max_sequences and budget > 0:
            sequence = self.waiting[0]
            shared = self.prefixes.take_over(sequence)
            if self._num_blocks(len(sequence.tokens)) - len(sequence.blocks) > self.allocator.num_free:
                if shared:  # hold nothing while waiting
                    self._reset(sequence)
                if self.running or not self._reclaim():
                    return
                continue
            self.running.append(sequence)
            self.waiting.popleft()
            self.running.sort(key=lambda other: other.id)
            count = min(sequence.num_pending_tokens, budget)
            if self._make_room(sequence, count, work, copies):
                work[sequence.id] = self._work(sequence, count)
                budget -= count

    def _reclaim(self) -> bool:
        """Take the blocks of sequences that hold some without running; they are recomputed when their turn comes."""
        return self._reclaim_but(None)

    def _reclaim_but(self, spared: Sequence | None) -> bool:
        idle = (*self.parked, *self.waiting)
        holders = [sequence for sequence in idle if sequence.blocks and sequence is not spared]
        for sequence in holders:
            self._reset(sequence)
        return bool(holders)

    def _make_room(self, sequence: Sequence, count: int, work: dict[int, Work], copies: list[tuple[int, int]]) -> bool:
        """Give the sequence blocks of its own for its next `count` tokens; False when it was itself preempted."""
        start, size = sequence.num_computed_tokens, self.allocator.block_size
        while len(sequence.blocks) < self._num_blocks(start + count):
            block = self._take(sequence, work)
            if block is None:
                return False
            sequence.blocks.append(block)
        for index in range(start // size, self._num_blocks(start + count)):
            old = sequence.blocks[index]
            if self.allocator.references[old] == 1:
                self.allocator.unpublish(old)  # it is about to change
                continue
            new = self._take(sequence, work)
            if new is None:
                return False
            if index * size < start:
                copies.append((old, new))
            self.allocator.release(old)
            sequence.blocks[index] = new
        return True

    def _take(self, sequence: Sequence, work: dict[int, Work]) -> int | None:
        """A free block, at the price of idle and then of the youngest sequences; None when that is this one."""
        while (block := self.allocator.allocate()) is None:
            if self._reclaim():
                continue
            victim = self.running[-1]
            self._preempt(victim)
            work.pop(victim.id, None)
            if victim is sequence:
                return None
        return block

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._reset(sequence)
        self.waiting.appendleft(sequence)
        self.num_preemptions += 1

    def _reset(self, sequence: Sequence) -> None:
        sequence.drafts, sequence.digests, sequence.num_computed_tokens = [], [], 0
        self._release(sequence, 0)

    def _forget_unread(self, sequence: Sequence) -> None:
        """It will be chosen again, the same."""
        if sequence.is_ahead:
            sequence.tokens.pop()
            sequence.num_computed_tokens = min(sequence.num_computed_tokens, len(sequence.tokens) - 1)

    def _append(self, sequence: Sequence, tokens: List[int]) -> str | None:
        for token in tokens:
            sequence.tokens.append(token)
            if token in sequence.stop_ids:
                return sequence.stop_ids[token]
            if len(sequence.tokens) >= sequence.max_tokens:
                return "length"
        return None

    def _release(self, sequence: Sequence, keep: int) -> None:
        # From the end, so that the head of a prefix stays findable longest.
        while len(sequence.blocks) > keep:
            self.allocator.release(sequence.blocks.pop())

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.allocator.block_size)
