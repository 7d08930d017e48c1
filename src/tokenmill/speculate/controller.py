"""The controller: in each step the number of drafts by which all running sequences together get most tokens a second.

It has no settings. It measures what a pass costs by its number of tokens, and how often guesses are right, by the
length of the match behind them. A guess that is not tried is compared with what the target chose, so judging guesses
costs nothing, and speculation goes off where it does not pay and on again where it does. Choices depend on time; texts
do not, because every draft is verified.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable
from collections.abc import Sequence as List
from itertools import accumulate
from operator import mul

from tokenmill.schedule.sequence import Plan, Sequence
from tokenmill.speculate.multi_step import MAX_CALL_S, several_steps, take_largest
from tokenmill.speculate.proposer import Facts, Proposer
from tokenmill.speculate.suffix import Suffix

__all__ = ["Controller"]

SIZES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128, 192, 256, 384, 512)
SLOPE = 0.08  # what a token more costs, as a part of a pass of one, until it is measured: few, so that it is tried
MARGIN = 1.03  # by so much drafts must promise to be faster
FORGET = 0.02  # weight of the latest guess, once there are some
FRESH = 100  # passes after which what a pass without drafts costs is measured again
BUCKETS = 8
STEPS = 5  # in one call at most, because a match may begin meanwhile


class Controller(Proposer):
    """Proposer adaptive: suffix, or several steps in one call where the program finds drafts itself, or none."""

    def __init__(self, facts: Facts, clock: Callable[[], float] = time.perf_counter) -> None:
        self._facts, self._suffix, self._clock, self._is_several = facts, Suffix(), clock, False
        self._costs, self._chances = PassCosts(), MatchChances()
        self._begun_s = 0.0
        self._guesses: dict[int, tuple[list[int], int]] = {}  # by sequence: tokens and the length of the match

    def propose(self, sequences: List[Sequence], limit: int) -> dict[int, list[int]]:
        """See Proposer."""
        self._begun_s, self._guesses, self._is_several = self._clock(), {}, False
        if not sequences or any(each.num_pending_tokens != 1 for each in sequences):
            return {}
        for sequence in sequences:
            if sequence.score_from is None:
                self._guesses[sequence.id] = self._suffix.automaton(sequence).guess(limit)
        count, can_be_several = len(sequences), self._facts.finds_drafts and take_largest(sequences)
        drafts = {}
        if not self._costs.is_old(count, can_be_several):  # else it is time for a pass without drafts
            drafts = self._best(count, MARGIN * count / self._costs.of(count, can_be_several))
        self._is_several = can_be_several and not drafts
        if self._is_several:
            step_s = self._costs.seconds(count, True) or MAX_CALL_S  # one step, until it is known how long it takes
            drafts = several_steps(sequences, min(limit, STEPS - 1), step_s)
        return drafts

    def _best(self, num_sequences: int, plain: float) -> dict[int, list[int]]:
        """The drafts that promise most tokens a second; none if that is less than `plain`."""
        drafts = [
            (chance, number, place)
            for number, (tokens, matched) in self._guesses.items()
            for place, chance in enumerate(self._chances.along(matched, len(tokens)))
        ]
        drafts.sort(key=lambda draft: -draft[0])  # a sequence's own stay in order, since chances only fall
        expected, best, count = float(num_sequences), plain, 0
        for taken, (chance, _, _) in enumerate(drafts, start=1):
            expected += chance
            if (rate := expected / self._costs.of(num_sequences + taken, False)) > best:
                best, count = rate, taken
        lengths: dict[int, int] = {}
        for _, number, _ in drafts[:count]:
            lengths[number] = lengths.get(number, 0) + 1
        return {number: self._guesses[number][0][:length] for number, length in lengths.items()}

    def learn(self, plan: Plan, accepted: List[List[int]]) -> None:
        """See Proposer."""
        is_decoding = all(accepted) and all(work.count == 1 + len(work.drafts) for work in plan.work)
        if is_decoding and accepted and self._begun_s:
            passes = max(map(len, accepted)) if self._is_several else 1
            num_tokens = len(plan.work) if self._is_several else sum(work.count for work in plan.work)
            self._costs.learn(num_tokens, self._is_several, (self._clock() - self._begun_s) / passes)
        for work, tokens in zip(plan.work, accepted, strict=True):
            guess, matched = self._guesses.get(work.sequence.id, ((), 0))
            self._chances.learn(matched, guess, tokens)
        self._begun_s = 0.0


class PassCosts:
    """Seconds of a pass by its number of tokens, as multiples of a unit that follows the speed of the machine."""

    def __init__(self) -> None:
        self._unit_s = 0.0
        # (size, several) → ratio, how often it was measured, and at which pass the last time
        self._ratios: dict[tuple[int, bool], tuple[float, int, int]] = {}
        self._num_passes = 0

    def of(self, num_tokens: int, several: bool) -> float:
        """Of a pass with so many tokens; several: one of several in a call."""
        size = _size(num_tokens)
        if (known := self._ratios.get((size, several))) is not None:
            return known[0]
        smaller = [(at, ratio) for (at, kind), (ratio, _, _) in self._ratios.items() if not kind and at < size]
        start, ratio = max(smaller, default=(1, 1.0))
        return ratio + SLOPE * (size - start)

    def is_old(self, num_tokens: int, several: bool) -> bool:
        """Whether such a pass was not measured lately."""
        known = self._ratios.get((_size(num_tokens), several))
        return known is None or self._num_passes - known[2] >= FRESH

    def seconds(self, num_tokens: int, several: bool) -> float:
        return self._unit_s * self.of(num_tokens, several)

    def learn(self, num_tokens: int, several: bool, seconds: float) -> None:
        size = _size(num_tokens)
        ratio, count, _ = self._ratios.get((size, several), (self.of(num_tokens, several), 0, 0))
        self._unit_s = self._unit_s or max(seconds, 1e-9) / ratio
        off = max(seconds, 1e-9) / (self._unit_s * ratio)
        self._num_passes += 1
        self._ratios[size, several] = ratio * off ** max(0.05, 1 / (count + 1)), count + 1, self._num_passes
        self._unit_s *= off ** (0.3 if count else 0.0)  # a size that is new says nothing about the machine


def _size(num_tokens: int) -> int:
    return SIZES[min(bisect_left(SIZES, num_tokens), len(SIZES) - 1)]


class MatchChances:
    """How often a guessed token is right, by the length of the match before it."""

    def __init__(self) -> None:
        self._rates = [0.0, 0.0, 0.5, 0.6, 0.75, 0.85, 0.9, 0.9]
        self._weights = [0.2] * BUCKETS

    def along(self, matched: int, count: int) -> Iterable[float]:
        """For each of `count` tokens after a match, the chance that it and all before it are right."""
        return accumulate((self._rates[_bucket(matched + place)] for place in range(count)), mul)

    def learn(self, matched: int, guess: List[int], tokens: List[int]) -> None:
        """Compare a guess, tried or not, with the tokens that were chosen, up to the first that is wrong."""
        for place, (guessed, token) in enumerate(zip(guess, tokens, strict=False)):
            at = _bucket(matched + place)
            self._weights[at] = max(self._weights[at] * 0.9, FORGET)
            self._rates[at] += self._weights[at] * ((guessed == token) - self._rates[at])
            if guessed != token:
                break


def _bucket(length: int) -> int:
    return min(length.bit_length(), BUCKETS - 1)
