"""How often tokens occur in a text. The counts of a sequence are kept, so that a step counts its new tokens alone."""

from array import array
from collections.abc import Sequence as List
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from tokenmill.schedule.sequence import Sequence

_KEPT: WeakKeyDictionary[Sequence, dict[int, "TokenCounts"]] = WeakKeyDictionary()


class TokenCounts:
    """How often each token of a list, which only grows, occurs from a place on; in the order of first occurrence."""

    def __init__(self, tokens: List[int], start: int) -> None:
        self.tokens, self._end = tokens, start
        self._ids, self._numbers, self._places = array("q"), array("f"), dict[int, int]()

    def beside(self, drafts: List[int] = ()) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Count drafts too, which follow: the id of each token [N], and how often it occurs [N], perhaps 0 times."""
        self._add(self.tokens[self._end :], 1)
        self._end = len(self.tokens)
        self._add(drafts, 1)
        found = np.array(self._ids), np.array(self._numbers)
        self._add(drafts, -1)
        return found

    def _add(self, tokens: List[int], number: int) -> None:
        for token in tokens:
            place = self._places.setdefault(token, len(self._ids))
            if place == len(self._ids):
                self._ids.append(token)
                self._numbers.append(0)
            self._numbers[place] += number


def counts_of(sequence: Sequence, start: int) -> TokenCounts:
    """Find the counts of a sequence's tokens from `start` on; another list of tokens is counted anew."""
    kept = _KEPT.setdefault(sequence, {})
    if any(counts.tokens is not sequence.tokens for counts in kept.values()):
        kept.clear()
    if start not in kept:
        kept[start] = TokenCounts(sequence.tokens, start)
    return kept[start]
