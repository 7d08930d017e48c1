"""Masks of bits, which say what tokens may come next: bit i of word w is 1 if the token 32 w + i may come."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokenmill.constrain.vocabulary import BITS, Vocabulary

Words = NDArray[np.int32]
"""A mask of one position."""

_ALL_BUT = np.array([~(1 << bit) & 0xFFFFFFFF for bit in range(BITS)], dtype=np.uint32).view(np.int32)


class MaskRows(NamedTuple):
    """Masks of positions one after the other. address: where the first lies, and each follows the one before."""

    words_RW: NDArray[np.int32]
    address: int


class MaskTable:
    """Room for the masks of a step. What is done here once is not done for each row."""

    def __init__(self, num_rows: int, vocabulary: Vocabulary) -> None:
        self._words_RW = np.empty((num_rows, vocabulary.words), dtype=np.int32)
        self._address = self._words_RW.ctypes.data

    def rows(self, first: int, count: int) -> MaskRows:
        """Masks [first, first + count)."""
        return MaskRows(self._words_RW[first : first + count], self._address + first * self._words_RW.strides[0])


def forbid(tokens: Iterable[int], words_W: Words) -> None:
    """Clear the bits of these tokens."""
    for token in tokens:
        words_W[token // BITS] &= _ALL_BUT[token % BITS]
