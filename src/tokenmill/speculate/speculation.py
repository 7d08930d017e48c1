"""Speculation as the loop sees it: drafts before a step, verification after it, and the counts of drafts so far."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from collections.abc import Sequence as List
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Protocol
from weakref import WeakSet

from tokenmill.schedule.sequence import UNKNOWN, WHOLE, Plan, Sequence
from tokenmill.speculate.proposer import Forced, Proposer, ProposerContext

log = logging.getLogger(__name__)

ENDS = ("eos", "stop", WHOLE, "length")  # finish reasons of texts that were not broken off
Drafts = dict[int, list[int]]  # by the id of the sequence


class Constraining(Protocol):
    """The matchers of constrained sequences; see sample/matchers.py."""

    def forced(self, sequence: Sequence, limit: int) -> list[int]:
        """Find at most `limit` tokens that must come next."""

    def drafts(self, sequence: Sequence, guessed: list[int], forced: List[int], limit: int) -> list[int]:
        """Make drafts of guesses that fit the constraint."""


@dataclass
class DraftStats:
    """Counts of an engine's drafts, and of the accepted ones. Tokens that a program found itself, in one of several
    steps, are not counted.

    num_drafted, num_accepted: tokens. histogram: how often so many drafts of a sequence were accepted in one pass.
    drafting_s: time in the proposer. verifying_s: time of the passes that had drafts.
    """

    num_drafted: int = 0
    num_accepted: int = 0
    histogram: Counter[int] = field(default_factory=Counter)
    drafting_s: float = 0.0
    verifying_s: float = 0.0

    @property
    def mean_accepted(self) -> float:
        """Compute the mean number of accepted drafts of a sequence in one pass."""
        return self.num_accepted / max(self.histogram.total(), 1)

    @property
    def columns(self) -> dict[str, Any]:
        """Name the counts as reports do; accepted_histogram says how often each number came."""
        return {
            "drafted": self.num_drafted,
            "accepted": self.num_accepted,
            "mean_accepted": self.mean_accepted,
            "accepted_histogram": dict(sorted(self.histogram.items())),
            "drafting_s": self.drafting_s,
            "verifying_s": self.verifying_s,
        }

    def count(self, num_drafted: int, num_accepted: int) -> None:
        """Count the drafts of one sequence in one pass, and the accepted ones among them."""
        self.num_drafted += num_drafted
        self.num_accepted += num_accepted
        self.histogram[num_accepted] += 1


def described(columns: Mapping[str, Any]) -> str:
    """Write DraftStats.columns, or a row of a benchmark that has them, as a sentence."""
    counts = ", ".join(f"{number}: {times:,}" for number, times in columns["accepted_histogram"].items())
    return (
        f"{columns['accepted']:,} of {columns['drafted']:,} drafts accepted, {columns['mean_accepted']:.1f} in a pass "
        f"({counts}); {columns['drafting_s']:.2f} s to draft, {columns['verifying_s']:.2f} s to verify"
    )


class Speculation:
    """The proposer in use, which is asked for drafts, and left out for sequences with which it fails.

    num_draft_tokens: at most, for each sequence in a step. max_step_tokens: of a step, which sequences share evenly.
    vocab_size: of the model that verifies, which could not be fed other tokens. facts: the proposer's context.
    """

    def __init__(
        self,
        proposer: Proposer,
        num_draft_tokens: int,
        max_step_tokens: int,
        vocab_size: int,
        facts: ProposerContext | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.proposer, self.stats = proposer, DraftStats()
        self.draft, self._store = (facts.draft, facts.store) if facts is not None else (None, None)
        self._limit, self._max_step_tokens, self._vocab_size = num_draft_tokens, max_step_tokens, vocab_size
        self._clock = clock
        self._without: WeakSet[Sequence] = WeakSet()
        self._drafted: set[int] = set()  # ids of sequences with guessed drafts in the step that is made
        self._drafted_s = 0.0

    def drafts(self, sequences: List[Sequence], matchers: Constraining | None = None) -> Drafts:
        """Draft tokens that may follow the tokens of running sequences. matchers: of the constrained ones."""
        limit = min(self._limit, self._max_step_tokens // max(len(sequences), 1) - 1)
        begun_s = self._clock()
        constrained = [each for each in sequences if matchers is not None and each.choosing.is_constrained]
        forced = {each.id: tokens for each in constrained if matchers and (tokens := matchers.forced(each, limit))}
        asked = [each for each in sequences if each not in self._without]
        try:
            found = self.proposer.propose(asked, limit, forced)
        except Exception as error:  # noqa: BLE001  (drafts cost time at most, so no proposer may end a text)
            found = self._propose_singly(asked, limit, forced, error)
        found = {number: self._usable(tokens, limit) for number, tokens in found.items()}
        for each in constrained:
            if matchers is not None:
                found[each.id] = matchers.drafts(each, found.get(each.id, []), forced.get(each.id, []), limit)
        self._drafted = {number for number, tokens in found.items() if tokens and tokens[0] != UNKNOWN}
        self._drafted_s = self._clock()
        self.stats.drafting_s += self._drafted_s - begun_s
        return found

    def learn(self, plan: Plan, accepted: List[List[int]]) -> None:
        """Have the proposer learn from a step that is done; see Proposer.learn."""
        sequences = [work.sequence for work in plan.work]
        try:
            self.proposer.learn(plan, accepted)
        except Exception as error:  # noqa: BLE001  (as in `drafts`)
            self._go_without(sequences, error)
        for sequence in sequences:
            if sequence.finish_reason in ENDS:
                self._end(sequence)
        if not self._drafted:
            return
        self.stats.verifying_s += self._clock() - self._drafted_s
        for work, tokens in zip(plan.work, accepted, strict=True):
            if work.drafts and work.sequence.id in self._drafted:
                self.stats.count(len(work.drafts), len(tokens) - 1)
        self._drafted = set()

    def _end(self, sequence: Sequence) -> None:
        try:
            self.proposer.ended(sequence)
        except Exception as error:  # noqa: BLE001  (as in `drafts`)
            self._go_without([sequence], error)

    def close(self) -> None:
        """Let go of the draft model and the store."""
        for each in (self.draft, self._store):
            if each is not None:
                each.close()

    def _propose_singly(self, sequences: List[Sequence], limit: int, forced: Forced, error: Exception) -> Drafts:
        """Ask for each sequence alone; sequences for which the proposer fails go on without it from now on."""
        found: Drafts = {}
        failed = []
        for sequence in sequences:
            try:
                found |= self.proposer.propose([sequence], limit, forced)
            except Exception as again:  # noqa: BLE001  (as above)
                failed.append(sequence)
                error = again
        self._go_without(failed, error)
        return found

    def _go_without(self, sequences: List[Sequence], error: Exception) -> None:
        if sequences and not self._without:
            kind, number = type(self.proposer).__name__, f"{len(sequences)} text{'s' * (len(sequences) != 1)}"
            log.warning("proposer %s failed, %s: %s; without it: %s", kind, type(error).__name__, error, number)
        self._without.update(sequences)

    def _usable(self, tokens: list[int], limit: int) -> list[int]:
        """Cut drafts at the limit, or before the first that is no token of the model."""
        if tokens[:1] == [UNKNOWN]:  # several steps in one call are for all sequences or none
            return tokens[: limit * (not self._without)]
        return list(takewhile(lambda token: 0 <= token < self._vocab_size, tokens[:limit]))


def verify(plan: Plan, chosen: List[list[int]]) -> list[list[int]]:
    """Accept, for each work item of the plan, the tokens that the target chose, up to and including the first that
    differs from its draft; certain drafts need no choice. Without drafts that is the one sampled token, so plain
    decoding is the same code; where nothing was sampled, nothing is accepted.
    """
    accepted: list[list[int]] = []
    for work, sampled in zip(plan.work, chosen, strict=True):
        if not work.drafts:
            accepted.append(sampled)
            continue
        drafts = work.drafts[work.num_certain :]
        differ = (at for at, (draft, token) in enumerate(zip(drafts, sampled, strict=False)) if draft != token)
        accepted.append([*work.certain, *sampled[: next(differ, len(drafts)) + 1]])
    return accepted
