"""How often tokens occur in a text. The counts of a sequence are kept, so that a step counts its new tokens alone."""

from array import array
from collections.abc import Sequence as List
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from tokenmill.schedule.sequence import Sequence

_KEPT: WeakKeyDictionary[Sequence, "TokenCounts"] = WeakKeyDictionary()


class TokenCounts:
    """The counts of a list of tokens, which only grows, from some of its places on."""

    def __init__(self, tokens: List[int]) -> None:
        self.tokens = tokens
        self._from: dict[int, _Counted] = {}

    def since(self, start: int, drafts: List[int] = ()) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Count the tokens from place `start` on, and drafts that follow them: each token's id, and how often it
        occurs, which may be 0. Both are [N].
        """
        if start not in self._from:
            self._from[start] = _Counted(start)
        counted = self._from[start]
        counted.add(self.tokens[counted.end :], 1)
        counted.end = len(self.tokens)
        counted.add(drafts, 1)
        found = np.array(counted.ids), np.array(counted.numbers)
        counted.add(drafts, -1)
        return found


class _Counted:
    """TokenCounts of the tokens before place `end`, in the order in which each occurred first."""

    def __init__(self, end: int) -> None:
        self.end, self.ids, self.numbers = end, array("q"), array("f")
        self._places: dict[int, int] = {}

    def add(self, tokens: List[int], number: int) -> None:
        for token in tokens:
            place = self._places.setdefault(token, len(self.ids))
            if place == len(self.ids):
                self.ids.append(token)
                self.numbers.append(0)
            self.numbers[place] += number


def counts_of(sequence: Sequence) -> TokenCounts:
    """Find the counts of a sequence's tokens; another list of tokens is counted anew."""
    known = _KEPT.get(sequence)
    if known is None or known.tokens is not sequence.tokens:
        _KEPT[sequence] = known = TokenCounts(sequence.tokens)
    return known
