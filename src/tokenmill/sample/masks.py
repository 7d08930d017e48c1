"""Masks of bits, which say what tokens may come next: bit i of word w is 1 if the token 32 w + i may come."""

from collections.abc import Iterable

import numpy as np

from tokenmill.schedule.matcher import MaskRows, Words

BITS = 32  # bits of a word of a mask
_ALL_BUT = np.array([~(1 << bit) & 0xFFFFFFFF for bit in range(BITS)], dtype=np.uint32).view(np.int32)


class MaskTable:
    """Memory for the masks of a step, kept for later steps: making an array takes numpy longer than filling a mask,
    since a model's weights have gone through the processor's caches.
    """

    def __init__(self, num_rows: int, num_words: int) -> None:
        words_RW = np.empty((num_rows, num_words), dtype=np.int32)
        self._words, self._address, self._row_bytes = list(words_RW), words_RW.ctypes.data, words_RW.strides[0]

    def __len__(self) -> int:
        return len(self._words)

    def rows(self, first: int, count: int) -> MaskRows:
        """Slice the masks [first, first + count)."""
        return MaskRows(self._words[first : first + count], self._address + first * self._row_bytes)


def admits(token: int, words_W: Words) -> bool:
    """Say whether the bit of this token is set."""
    return bool(int(words_W[token // BITS]) >> token % BITS & 1)


def forbid(tokens: Iterable[int], words_W: Words) -> None:
    """Clear the bits of these tokens."""
    for token in tokens:
        words_W[token // BITS] &= _ALL_BUT[token % BITS]
