"""Estimates of the controller: seconds of a pass by its number of tokens, and how often guesses were right."""

from bisect import bisect_left
from collections.abc import Sequence as List
from itertools import accumulate
from math import exp
from operator import mul
from weakref import WeakKeyDictionary

from tokenmill.schedule.sequence import Sequence

SIZES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128, 192, 256, 384, 512)
SLOPE = 0.08  # cost of one more token, as a part of a pass of one, until it is measured: low, so that it is tried
FORGET = 0.02  # weight of the latest guess, once there are some
PRIOR = 4  # guesses of a draft model for which the estimate before its first guess stands
BELIEVED = 3  # passes of a size
FRESH = 100  # passes after which a pass without drafts is measured again
BUCKETS = 8
NEW_TEXT = -0.5  # offset of a text before its first guess
TEXT_WEIGHT = 0.5  # a guess moves the offset of its text by this factor
FARTHEST = 6.0
HOPELESS = 0.01  # a draft with a smaller chance costs more than it brings, however cheap passes are
JUDGED = 5  # tokens that are guessed even if hopeless: as many as one call computes, to see when that changes


class PassCosts:
    """Seconds of a pass by its number of tokens, as multiples of a unit that follows the speed of the machine."""

    def __init__(self) -> None:
        self._unit_s = 0.0
        # (size, several) → ratio, number of measurements, and the pass of the last one
        self._ratios: dict[tuple[int, bool], tuple[float, int, int]] = {}
        self._num_passes = 0

    def of(self, num_tokens: int, several: bool) -> float:
        """Estimate the seconds of a pass with so many tokens; several: one of several in a call.

        The first passes of a size may be the first to touch states of drafts, which takes longer than the pass, so that
        a few are measured before one is believed to be dear.
        """
        size = _size(num_tokens)
        if (known := self._ratios.get((size, several))) is not None and (known[1] >= BELIEVED or size == 1):
            return known[0]
        smaller = [(at, ratio) for (at, kind), (ratio, _, _) in self._ratios.items() if not kind and at < size]
        start, ratio = max(smaller, default=(1, 1.0))
        found = ratio + SLOPE * (size - start)
        return found if known is None else min(found, known[0])

    def is_old(self, num_tokens: int, several: bool) -> bool:
        """Say whether such a pass was not measured lately."""
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
        off = min(off, 1.0) if 0 < count < BELIEVED and size > 1 else off
        self._ratios[size, several] = ratio * off ** max(0.05, 1 / (count + 1)), count + 1, self._num_passes
        is_measured = count >= BELIEVED or (size == 1 and count > 0)
        self._unit_s *= off ** (0.3 if is_measured else 0.0)  # a new size says nothing about the machine


def _size(num_tokens: int) -> int:
    return SIZES[min(bisect_left(SIZES, num_tokens), len(SIZES) - 1)]


class MatchChances:
    """Rates at which a guessed token is right: by the length of the match before it, and by the text.

    The rates of all texts are moved, in log-odds, by an offset of each text. Every guess teaches it, tried or not, so a
    text that repeats nothing shows after a few tokens, whatever the texts before it did.
    """

    def __init__(self) -> None:
        self._odds = [-6.0, -6.0, 0.0, 0.4, 1.1, 1.7, 2.2, 2.2]  # by bucket of the length of the match
        self._weights = [1.0] * BUCKETS
        self._offsets: WeakKeyDictionary[Sequence, float] = WeakKeyDictionary()

    def along(self, sequence: Sequence, matched: int, count: int) -> list[float]:
        """Estimate for each of `count` tokens after a match the chance that it and all tokens before it are right."""
        offset = self._offsets.get(sequence, NEW_TEXT)
        return list(accumulate((self._chance(_bucket(matched + place), offset) for place in range(count)), mul))

    def useful(self, sequence: Sequence, matched: int, limit: int) -> int:
        """Count how many of `limit` tokens after a match have a chance at all; a few more, so that they are judged."""
        chance, offset = 1.0, self._offsets.get(sequence, NEW_TEXT)
        for place in range(limit):
            chance *= self._chance(_bucket(matched + place), offset)
            if chance < HOPELESS:
                return min(max(place, JUDGED), limit)
        return limit

    def learn(self, sequence: Sequence, matched: int, guess: List[int], tokens: List[int]) -> None:
        """Compare a guess, tried or not, with the tokens that were chosen, up to the first that is wrong."""
        offset = self._offsets.get(sequence, NEW_TEXT)
        for place, (guessed, token) in enumerate(zip(guess, tokens, strict=False)):
            at = _bucket(matched + place)
            surprise = (guessed == token) - self._chance(at, offset)
            self._weights[at] = max(self._weights[at] * 0.9, 5 * FORGET)
            self._odds[at] = min(max(self._odds[at] + self._weights[at] * surprise, -FARTHEST), FARTHEST)
            offset = min(max(offset + TEXT_WEIGHT * surprise, -FARTHEST), FARTHEST)
            if guessed != token:
                break
        self._offsets[sequence] = offset

    def _chance(self, at: int, offset: float) -> float:
        return 1.0 / (1.0 + exp(-self._odds[at] - offset))


def _bucket(length: int) -> int:
    return min(length.bit_length(), BUCKETS - 1)


class TextChances:
    """Rates at which the draft model's next token is right, in each text; a new text begins with their mean."""

    def __init__(self) -> None:
        self._everywhere, self._num_judged = 0.8, 0
        self._rates: WeakKeyDictionary[Sequence, tuple[float, int]] = WeakKeyDictionary()  # and how often it was judged

    def along(self, sequence: Sequence, count: int) -> list[float]:
        """Estimate for each of `count` tokens the chance that it and all tokens before it are right."""
        rate, _ = self._rates.get(sequence, (self._everywhere, 0))
        return list(accumulate([rate] * count, mul))

    def learn(self, sequence: Sequence, num_drafted: int, num_accepted: int) -> None:
        """Learn that the first num_accepted drafts were right."""
        for right in [1.0] * num_accepted + [0.0] * (num_accepted < num_drafted):
            rate, count = self._rates.get(sequence, (self._everywhere, 0))
            self._rates[sequence] = rate + max(0.05, 1 / (PRIOR + count)) * (right - rate), count + 1
            self._everywhere += max(FORGET, 1 / (2 * PRIOR + self._num_judged)) * (right - self._everywhere)
            self._num_judged += 1

    def fail(self, sequence: Sequence) -> None:
        """Note that the draft model had no drafts for this text."""
        self._rates[sequence] = 0.0, 0


class DraftCosts:
    """Seconds in which the draft model makes a token for each of a number of texts."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}

    def of(self, num_sequences: int) -> float:
        """Estimate the seconds; 0 until they are measured, so that the draft model is tried."""
        return self._seconds.get(_size(num_sequences), 0.0)

    def is_known(self, num_sequences: int) -> bool:
        """Say whether the seconds were measured."""
        return _size(num_sequences) in self._seconds

    def learn(self, num_sequences: int, seconds: float) -> None:
        size = _size(num_sequences)
        known = self._seconds.get(size, seconds)
        self._seconds[size] = known + 0.2 * (seconds - known)
