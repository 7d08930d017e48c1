"""Proposer adaptive: the controller takes as many drafts as pay, by its measurements of passes and guesses.

It has no settings. It measures the time of a pass by its number of tokens, how often guesses of the suffix automaton
are right by the length of the match before them, and how often the draft model is right in each text. A guess that is
not tried is compared with the token that the target chose, so judging guesses costs nothing, and speculation goes off
where it does not pay and on again where it does. Choices depend on time; texts do not, because every draft is verified.

Tokens that a constraint forces are drafted in any case. They widen the pass to which guesses are added, and say nothing
about guesses: only the tokens after them are judged.
"""

import time
from collections.abc import Callable
from collections.abc import Sequence as List
from operator import attrgetter
from typing import NamedTuple

from tokenmill.schedule.sequence import Plan, Sequence
from tokenmill.speculate.estimates import DraftCosts, MatchChances, PassCosts, TextChances
from tokenmill.speculate.multi_step import MAX_CALL_S, several_steps, take_largest
from tokenmill.speculate.proposer import Forced, Proposer, ProposerContext
from tokenmill.speculate.suffix import Guess, Suffix

MARGIN = 1.03  # drafts must promise to be faster by this factor
STEPS = 5  # in one call at most, because a match may begin meanwhile
PROBE = 64  # steps after which a draft model that did not pay is tried again; twice as many each time it fails
MAX_PROBE = 4096


class Judged(NamedTuple):
    """The guess of the tokens that follow the forced tokens of a sequence, which may be an empty list."""

    sequence: Sequence
    guess: Guess
    forced: List[int]


class DraftLengths(NamedTuple):
    """A choice. tokens_per_s: expected. lengths: drafts by id of the sequence. by_model: the draft model makes them."""

    tokens_per_s: float
    lengths: dict[int, int]
    by_model: bool = False


class Controller(Proposer):
    """Proposer adaptive: suffix, the draft model, several steps in one call where the program can, or none."""

    def __init__(self, facts: ProposerContext, clock: Callable[[], float] = time.perf_counter) -> None:
        self._facts, self._suffix, self._clock, self._is_several = facts, Suffix(facts), clock, False
        self._costs, self._matches, self._stored = PassCosts(), MatchChances(), MatchChances()
        self._model_costs, self._texts = DraftCosts(), TextChances()
        self._begun_s, self._by_model = 0.0, False
        self._num_unprobed, self._probe = 0, PROBE  # steps since the draft model was asked, and until it is again
        self._judged: dict[int, Judged] = {}  # by id of the sequence

    def propose(self, sequences: List[Sequence], limit: int, forced: Forced) -> dict[int, list[int]]:
        self._begun_s, self._judged, self._is_several, self._by_model = self._clock(), {}, False, False
        if not sequences or any(each.num_pending_tokens != 1 for each in sequences):
            return {}
        for each in sequences:
            if each.score_from is None:
                self._judged[each.id] = self._guessed(each, limit, forced.get(each.id, ()))
        count = len(sequences) + sum(len(each.forced) for each in self._judged.values())
        can_be_several = self._facts.finds_drafts and take_largest(sequences)
        best = DraftLengths(0.0, {})
        if not self._costs.is_old(count, can_be_several):  # old: it is time for a pass without drafts
            plain = MARGIN * count / max(self._costs.seconds(count, can_be_several), 1e-9)
            choices = DraftLengths(plain, {}), self._of_matches(count), self._of_model(sequences, limit)
            best = max(choices, key=attrgetter("tokens_per_s"))
        if best.lengths:
            return self._made(sequences, best)
        self._is_several = can_be_several
        if not can_be_several:
            return {}
        step_s = self._costs.seconds(count, True) or MAX_CALL_S  # one step, until it is known how long it takes
        return several_steps(sequences, min(limit, STEPS - 1), step_s)

    def _guessed(self, sequence: Sequence, limit: int, forced: List[int]) -> Judged:
        """Guess the tokens after a sequence and its forced tokens: none, unless the guess begins with those."""
        tokens, matched, is_stored = self._suffix.guess(sequence, limit, self._matches.useful)
        is_alike = tokens[: len(forced)] == list(forced)
        behind = Guess(tokens[len(forced) :] if is_alike else [], matched + len(forced), is_stored)
        return Judged(sequence, behind, forced)

    def _of_matches(self, num_certain: int) -> DraftLengths:
        """Choose the likeliest guesses that promise most tokens a second. num_certain: tokens without guesses."""
        drafts = [
            (chance, number)
            for number, (sequence, guess, _) in self._judged.items()
            for chance in self._chances(guess).along(sequence, guess.matched, len(guess.tokens))
        ]
        drafts.sort(key=lambda draft: -draft[0])  # a sequence's own stay in order, since chances only fall
        expected, best, count = float(num_certain), 0.0, 0
        for taken, (chance, _) in enumerate(drafts, start=1):
            expected += chance
            if (rate := expected / max(self._costs.seconds(num_certain + taken, False), 1e-9)) > best:
                best, count = rate, taken
        lengths: dict[int, int] = {}
        for _, number in drafts[:count]:
            lengths[number] = lengths.get(number, 0) + 1
        return DraftLengths(best, lengths)

    def _of_model(self, sequences: List[Sequence], limit: int) -> DraftLengths:
        """Choose as many tokens of the draft model for each sequence as promise most tokens a second."""
        if self._facts.draft is None or limit < 1:
            return DraftLengths(0.0, {})
        count, each_s = len(sequences), self._model_costs.of(len(sequences))
        limit = limit if self._model_costs.is_known(count) else 1  # one draft tells what a draft costs
        chances = [self._texts.along(each, limit) for each in sequences]
        expected, best, length = float(count), 0.0, 0
        for number in range(1, limit + 1):
            if not (more := sum(along[number - 1] for along in chances)):
                break  # the draft model has no drafts for any of the sequences
            expected += more
            seconds = self._costs.seconds(count * (1 + number), False) + number * each_s
            if (rate := expected / max(seconds, 1e-9)) > best:
                best, length = rate, number
        self._num_unprobed += 1
        if self._num_unprobed >= self._probe:
            best, length = float("inf"), max(length, 1)
        return DraftLengths(best, {each.id: length for each in sequences if each.score_from is None}, True)

    def _made(self, sequences: List[Sequence], choice: DraftLengths) -> dict[int, list[int]]:
        draft = self._facts.draft
        if not choice.by_model or draft is None:
            chosen = [(self._judged[number], length) for number, length in choice.lengths.items()]
            return {each.sequence.id: [*each.forced, *each.guess.tokens[:length]] for each, length in chosen}
        drafting = [each for each in sequences if each.id in choice.lengths]
        length, begun_s = max(choice.lengths.values()), self._clock()
        drafts = draft.continuations(drafting, length)
        now_s, self._by_model = self._clock(), True
        if draft.is_behind:
            self._num_unprobed -= 1  # so that the next step asks it again
        else:
            for each in drafting:
                if not drafts.get(each.id):
                    self._texts.fail(each)
            self._probe = min(2 * self._probe, MAX_PROBE) if self._num_unprobed > 1 else PROBE
            self._num_unprobed = 0
        if not draft.has_caught_up:  # it had: much of the time was for tokens that were not drafted
            self._model_costs.learn(len(drafting), (now_s - begun_s) / length)
        self._begun_s += now_s - begun_s
        return drafts

    def learn(self, plan: Plan, accepted: List[List[int]]) -> None:
        is_decoding = all(accepted) and all(work.count == 1 + len(work.drafts) for work in plan.work)
        if is_decoding and accepted and self._begun_s:
            passes = max(map(len, accepted)) if self._is_several else 1
            num_tokens = len(plan.work) if self._is_several else sum(work.count for work in plan.work)
            self._costs.learn(num_tokens, self._is_several, (self._clock() - self._begun_s) / passes)
        for work, tokens in zip(plan.work, accepted, strict=True):
            if (judged := self._judged.get(work.sequence.id)) is not None:
                sequence, guess, forced = judged
                self._chances(guess).learn(sequence, guess.matched, guess.tokens, tokens[len(forced) :])
            if self._by_model and work.drafts and tokens:
                self._texts.learn(work.sequence, len(work.drafts), len(tokens) - 1)
        self._begun_s, self._judged = 0.0, {}

    def ended(self, sequence: Sequence) -> None:
        self._suffix.ended(sequence)

    def _chances(self, guess: Guess) -> MatchChances:
        return self._stored if guess.is_stored else self._matches
