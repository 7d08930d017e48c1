"""One stretch of memory for many tensors that every step reads: the KV cache, packed weights."""

from math import prod

import torch
from torch import Tensor

from tokenmill.memory.pages import map_pages

__all__ = ["ALIGNMENT", "Arena"]

ALIGNMENT = 64
"""Bytes of a cache line: every piece starts on one."""


class Arena:
    """Zeros in huge pages, handed out piece by piece.

    `num_bytes` and as many pieces are all that it has room for. OSError where the system refuses.
    """

    def __init__(self, num_bytes: int, num_pieces: int = 1) -> None:
        self._pages = map_pages(num_bytes + ALIGNMENT * (num_pieces + 1))
        self._bytes = torch.frombuffer(self._pages, dtype=torch.uint8)
        self.used = 0
        """Bytes that were handed out, gaps included."""

    @property
    def address(self) -> int:
        """Of the first byte."""
        return self._bytes.data_ptr()

    @property
    def bytes(self) -> Tensor:
        """All that was handed out, [used] uint8."""
        return self._bytes[: self.used]

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The next piece; it keeps the whole stretch alive."""
        count = prod(shape)
        if not count:
            return torch.zeros(shape, dtype=dtype)
        size = count * dtype.itemsize
        assert self.used + size <= len(self._bytes), "room for all pieces was asked for"
        # Not a slice of the whole: what shares a storage counts as overlapping where it is compiled.
        piece = torch.frombuffer(self._pages, dtype=dtype, count=count, offset=self.used)
        self.used += size + -size % ALIGNMENT
        return piece.view(shape)
