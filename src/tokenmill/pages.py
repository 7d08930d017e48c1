"""Memory for what is read in every step: in huge pages where the system has them, so that reading is one stream.

With pages of 4 KiB the processor looks each of them up, and stops fetching ahead at its end.
"""

import mmap
from math import prod

import torch
from torch import Tensor

__all__ = ["ALIGNMENT", "Pages"]

ALIGNMENT = 64
"""Bytes of a cache line: every piece starts on one."""


class Pages:
    """One stretch of zeros, handed out piece by piece. Takes memory as it is first written to.

    `num_bytes` and as many pieces are all that it has room for. OSError where the system refuses.
    """

    def __init__(self, num_bytes: int, num_pieces: int = 1) -> None:
        room = num_bytes + ALIGNMENT * (num_pieces + 1)
        # Private: shared memory, Python's default, gets no huge pages.
        self._map = mmap.mmap(-1, room, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._map.madvise(mmap.MADV_HUGEPAGE)
        self._bytes = torch.frombuffer(self._map, dtype=torch.uint8)
        self._begin = self._used = -self._bytes.data_ptr() % ALIGNMENT

    @property
    def used(self) -> int:
        """Bytes that were handed out, gaps included."""
        return self._used - self._begin

    @property
    def address(self) -> int:
        """Of the first byte."""
        return self._bytes.data_ptr() + self._begin

    @property
    def bytes(self) -> Tensor:
        """All that was handed out, [used] uint8."""
        return self._bytes[self._begin : self._used]

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The next piece; it keeps the whole stretch alive."""
        size = prod(shape) * dtype.itemsize
        piece = self._bytes[self._used : self._used + size]
        assert piece.numel() == size, "room for all pieces was asked for"
        self._used += size + -size % ALIGNMENT
        return piece.view(dtype).view(shape)
