"""The Scheduler makes the plan of each step, under a token budget and a number of blocks: admission, preemption, forks.

Continuous batching, chunked prefill, verification of drafts and recovery from preemption are not modes: every sequence
has some pending tokens, and the plan feeds a number of them. Sequences that decode, with one pending token, go first,
so that a long prompt never stalls them, and each running sequence gets at least one token a step; fairness.py has
prompts and clients share the rest. When blocks run out, the sequence of lowest priority that arrived last gives up all
of its blocks and is recomputed later: the same text.
"""

from bisect import insort
from collections import deque
from collections.abc import Mapping
from collections.abc import Sequence as List
from functools import partial
from itertools import chain
from operator import attrgetter

from tokenmill.errors import CapacityError
from tokenmill.schedule.blocks import BlockAllocator
from tokenmill.schedule.fairness import Clients, shares
from tokenmill.schedule.keeps import Keeps, Undo
from tokenmill.schedule.memory import Memory
from tokenmill.schedule.sequence import UNKNOWN, Plan, Sequence, Store, Work

_ORDER = attrgetter("priority", "arrival")  # the order of waiting and running sequences, lowest first


class Scheduler:
    """The owner of the sequences that wait and run. memory: keeps their rows and states.

    max_prompt_tokens: the tokens of prompts in a step in which others decode; it may be changed between steps. whole: a
    step has all tokens of a text or none, more than max_step_tokens if it has no other text.
    """

    def __init__(
        self, memory: Memory, max_sequences: int, max_step_tokens: int, cache: bool = True, whole: bool = False
    ) -> None:
        self.memory = memory
        self.max_sequences = max_sequences
        self.max_step_tokens = max_step_tokens
        self.cache = cache  # False: after each token, no row counts as computed
        self.whole = whole
        self.waiting: deque[Sequence] = deque()  # this and the next sorted by _ORDER
        self.running: list[Sequence] = []
        self.parked: list[Sequence] = []  # kept after their end, with their blocks, until released
        self.num_preemptions = 0
        self.num_recomputed = 0  # tokens whose rows were found, fed again because no state was kept at their end
        self.max_prompt_tokens = max_step_tokens
        self._clients = Clients()
        self._num_arrivals = 0

    # ---- queueing and ending

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. CapacityError when it could not finish even with the whole pool to itself."""
        self.check_length(sequence.max_tokens)
        self._num_arrivals += 1
        sequence.arrival = self._num_arrivals
        self._clients.arrive(sequence.client, chain(self.running, self.waiting))
        insort(self.waiting, sequence, key=_ORDER)

    def check_length(self, num_tokens: int) -> None:
        """Raise CapacityError for a sequence that needs more than the whole pool."""
        if (missing := self.memory.check_length(num_tokens)) is not None:
            remedy = "cache_tokens (more), or max_new_tokens or the prompt (fewer)"
            what = f"cache blocks of {self.memory.block_size} tokens for a sequence of {num_tokens}"
            raise CapacityError(what, *missing, remedy)

    def finish(self, sequence: Sequence, reason: str) -> None:
        """End a waiting or running sequence; its blocks are released unless it is to be kept."""
        sequence.finish_reason = reason
        if not sequence.keep:
            self.memory.release(sequence.kept)
        elif sequence not in self.parked:
            self.memory.keep(sequence, sequence.kept.num_computed)  # a step in flight may have gone further
            self.parked.append(sequence)
        for place in (self.running, self.waiting):
            if sequence in place:
                place.remove(sequence)

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

    def share(self, sequence: Sequence, child: Sequence) -> None:
        """Give an empty sequence the past of another; blocks are shared until one of the two writes."""
        child.choosing, child.priority, child.tokens = sequence.choosing, sequence.priority, list(sequence.tokens)
        child.kept = self.memory.share(sequence.kept)

    def rewind(self, sequence: Sequence, num_tokens: int, new: List[int] = ()) -> None:
        """Replace all tokens from `num_tokens` on by `new` ones. Without new ones, the last that stays is fed again."""
        assert 0 <= num_tokens <= len(sequence.tokens)
        self.memory.keep(sequence, max(num_tokens - (not new), 0))
        self.memory.rewound(sequence, num_tokens)
        sequence.num_prompt_tokens = min(sequence.num_prompt_tokens, num_tokens)
        sequence.tokens = [*sequence.tokens[:num_tokens], *new]

    def reset(self) -> None:
        """Begin anew, after a step that broke off: all running and waiting sequences have ended; no row is kept."""
        self.parked += [each for each in (*self.running, *self.waiting) if each.keep and each not in self.parked]
        for sequence in (*self.running, *self.waiting):
            sequence.finish_reason = "error"
            self._drop_unread(sequence)
        self.running.clear()
        self.waiting.clear()
        self.memory.clear()
        for sequence in self.parked:
            self.memory.forget(sequence)

    @property
    def allocator(self) -> BlockAllocator:
        """Return the allocator of the blocks of rows."""
        return self.memory.kinds[0].allocator

    @property
    def idle(self) -> bool:
        return not self.running and not self.waiting

    # ---- one step

    def plan(self, drafts: Mapping[int, List[int]] | None = None) -> Plan:
        """Choose the work of the next step. `drafts` maps sequence id → guessed tokens that follow its own."""
        plan, budget = Plan(), self.max_step_tokens
        if self.waiting and self.running:
            self._make_way()
        before = self.num_preemptions
        unfinished = [s for s in self.running if not (s.has_unread_token and len(s.tokens) >= s.max_tokens)]
        decoding = [sequence for sequence in unfinished if sequence.num_pending_tokens <= 1]
        prompts = [sequence for sequence in unfinished if sequence.num_pending_tokens > 1]
        for place, sequence in enumerate(decoding):
            if (
                self.num_preemptions == before or sequence in self.running
            ):  # otherwise it was preempted for an earlier one
                promised = len(unfinished) - place - 1
                guesses = drafts.get(sequence.id, ()) if drafts else ()
                budget -= self._feed(sequence, max(budget - promised, 1), plan, guesses)
        budget = min(budget, self.max_prompt_tokens) if decoding else budget
        if prompts:
            pending = [sequence.num_pending_tokens for sequence in prompts]
            taken = shares([*pending, *self._newcomer(unfinished)], budget)
            for sequence, most in zip(prompts, taken, strict=False):
                if self.num_preemptions == before or sequence in self.running:
                    budget -= self._feed(sequence, budget if self.whole else most, plan)
        if self.waiting:
            self._admit(plan, budget)
        return plan

    def withdraw(self, plan: Plan, sequences: List[Sequence]) -> Plan:
        """Make the plan without these sequences, whose rows could not be loaded: they wait again, and compute them."""
        for sequence in sequences:
            self.memory.drop_saved(sequence)
            if sequence in self.running:
                self._preempt(sequence)
        found = [sequence for sequence in plan.found if sequence not in sequences]
        return Plan([work for work in plan.work if work.sequence not in sequences], found=found)

    def end_found(self, plan: Plan) -> list[Store]:
        """End the sequences of a prepared plan that found everything computed; return the stores, as `commit` does."""
        stores = [store for sequence in plan.found for store in self.memory.publish(sequence)]
        for sequence in plan.found:
            self.finish(sequence, "scored")
        return stores

    def advance(self, plan: Plan, unread: List[List[int]]) -> None:
        """Go on before the chosen tokens are read: `unread` holds, for each work item, the mark of its token, if it has
        one.

        No sequence ends here. The next plan may be made; `commit` of this one, with `is_advanced`, has to follow.
        """
        for (sequence, start, count, *_), tokens in zip(plan.work, unread, strict=True):
            sequence.tokens += tokens
            self.memory.computed(sequence, start + count)
            if tokens and not self.cache:
                self.memory.settle(sequence, 0)

    def commit(self, plan: Plan, accepted: List[List[int]], is_advanced: bool = False) -> list[Store]:
        """Append accepted tokens: for each work item, the tokens chosen there (an empty list inside a prompt); return
        the stores.

        Sequences that have ended are finished. Full blocks are published only now, because their rows may not have been
        finite. is_advanced: tokens take the places of the marks that `advance` has put.
        """
        stores = list[Store]()
        for (sequence, start, count, *_), tokens in zip(plan.work, accepted, strict=True):
            if sequence.finish_reason is not None:  # it was cancelled or has failed since the plan
                self._drop_unread(sequence)
                continue
            if not is_advanced:
                self.memory.computed(sequence, start + count)
            elif sequence.has_unread_token:
                sequence.tokens.pop()
            reason = None
            for token in tokens:  # up to the first that ends the text
                sequence.tokens.append(token)
                if reason := sequence.end_reason:
                    break
            if tokens:  # tokens fed for drafts that were not accepted do not count
                self.memory.settle(sequence, len(sequence.tokens) - 1 if self.cache else 0)
            if sequence.score_from is not None and not sequence.num_pending_tokens:
                reason = "scored"
            stores += self.memory.publish(sequence, has_ended=bool(reason))
            if reason:
                self.finish(sequence, reason)
        return stores

    # ---- inside a step

    def _feed(self, sequence: Sequence, budget: int, plan: Plan, guesses: List[int] = ()) -> int:
        """Plan as many tokens as the budget allows; return their number, 0 if the sequence is preempted or waits for
        blocks.

        Only a sequence that decodes is fed guesses, and only for positions before its end.
        """
        if self.whole and (budget >= sequence.num_pending_tokens or not plan.work):
            budget = sequence.num_pending_tokens
        elif self.whole:
            return 0
        if (budget := self.memory.max_fed(sequence, budget)) < 1:
            return 0
        assert not self.whole or budget == sequence.num_pending_tokens, "a text would be divided"
        drafts: tuple[int, ...] = ()
        undo = Undo()
        if guesses and sequence.num_pending_tokens == 1 and sequence.score_from is None:
            drafts = tuple(guesses[: max(min(budget, sequence.max_tokens - len(sequence.tokens)) - 1, 0)])
            is_found = drafts[:1] == (UNKNOWN,)  # by the program: all of them stay, unless the text ends
            drafts = drafts if is_found else drafts[: self.memory.max_drafts()]
            undo = Undo(0 if is_found else len(drafts), is_found)
        count = min(sequence.num_pending_tokens, budget) + len(drafts)
        take = partial(self._take_block, sequence, plan)
        if not self.memory.reserve(sequence, count, undo, plan, take):
            return 0
        start, end = sequence.kept.num_computed, sequence.kept.num_computed + count
        num_logits = min(count, max(end - sequence.first_logits, 0))
        self._clients.num_fed[sequence.client] += count
        plan.work.append(Work(sequence, start, count, num_logits, drafts))
        return count

    def _make_way(self) -> None:
        """Preempt a sequence for one of better priority without place or blocks, or for a client without a place."""
        first, last = self.waiting[0], self.running[-1]
        is_full = len(self.running) == self.max_sequences
        if first.priority < last.priority and (is_full or not self.memory.has_room(first, self.max_step_tokens)):
            self._preempt(last)
        elif is_full and (sequence := self._clients.gives_way(self.waiting, self.running)) is not None:
            self._preempt(sequence)

    def _newcomer(self, unfinished: List[Sequence]) -> list[int]:
        """Count the pending tokens of a sequence that this step could admit, as a list; empty without a place."""
        if not self.waiting or not unfinished or len(self.running) >= self.max_sequences:
            return []
        sequence = self._clients.next_of(self.waiting, self.running)
        has_room = self.memory.has_room(sequence, self.max_step_tokens)
        return [sequence.num_pending_tokens] if has_room else []

    def _admit(self, plan: Plan, budget: int) -> None:
        """Let waiting sequences run, as long as there are places, budget and blocks."""
        while self.waiting and len(self.running) < self.max_sequences and budget > 0:
            sequence = self._clients.next_of(self.waiting, self.running)
            loads = self.memory.match(sequence, self.max_step_tokens)
            if loads is None:
                if self._reclaim():
                    continue
                return
            plan.moves += loads
            if sequence.num_cached_tokens is None:
                sequence.num_cached_tokens = sequence.kept.num_computed
                sequence.num_recomputed_tokens = max(sequence.kept.num_shared - sequence.kept.num_computed, 0)
                self.num_recomputed += sequence.num_recomputed_tokens
            insort(self.running, sequence, key=_ORDER)
            self.waiting.remove(sequence)
            if not sequence.num_pending_tokens:
                plan.found.append(sequence)
                continue
            budget -= self._feed(sequence, budget, plan)

    def _take_block(self, sequence: Sequence, plan: Plan, kind: Keeps) -> int | None:
        """Take a free block, an idle sequence's or the last running one's; None if the last one is `sequence`
        itself.
        """
        while (block := kind.allocator.allocate()) is None:
            if self._reclaim():
                continue
            victim = self.running[-1]
            self._preempt(victim)
            plan.drop(victim)
            if victim is sequence:
                return None
        return block

    def _reclaim(self) -> bool:
        """Take the blocks of parked and waiting sequences; their rows are recomputed when they run."""
        holders = [sequence for sequence in (*self.parked, *self.waiting) if self.memory.holds(sequence)]
        for sequence in holders:
            self.memory.keep(sequence, 0)
        return bool(holders)

    def _preempt(self, sequence: Sequence) -> None:
        insort(self.waiting, sequence, key=_ORDER)
        self.running.remove(sequence)
        self.memory.keep(sequence, 0)
        self.num_preemptions += 1

    def _drop_unread(self, sequence: Sequence) -> None:
        """Remove the unread token of a sequence; it will be chosen again, with the same result."""
        if sequence.has_unread_token:
            sequence.tokens.pop()
            self.memory.settle(sequence, len(sequence.tokens) - 1)
