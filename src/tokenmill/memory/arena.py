"""One contiguous allocation for many tensors that every step reads: the KV cache, packed weights."""

from collections.abc import Callable
from math import prod
from typing import Protocol

import torch
from torch import Tensor

from tokenmill.memory.pages import map_pages
from tokenmill.memory.shared_memory import SharedMemory

ALIGNMENT = 64  # bytes of a cache line; every tensor starts at the beginning of one


class Allocation(Protocol):
    """A source of tensors, handed out one after the other; each is filled before the next is asked for."""

    used: int
    """Bytes that were handed out, with the gaps that alignment leaves."""

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The next tensor, which begins at `used`."""

    @property
    def bytes(self) -> Tensor:
        """Everything that was handed out, [used] uint8, where it stays."""


Allocate = Callable[[int, int], Allocation]  # given the bytes and the number of tensors that there may be


class Arena:
    """Zeros in huge pages, handed out tensor by tensor.

    There is room for `num_bytes` in `num_pieces` tensors. OSError where the system refuses the memory. reserved: False
    if fewer bytes may be handed out; the rest then takes no memory. shared: memory that other processes map too.
    """

    def __init__(
        self, num_bytes: int, num_pieces: int = 1, reserved: bool = True, shared: SharedMemory | None = None
    ) -> None:
        needed = num_bytes + ALIGNMENT * (num_pieces + 1)
        self._pages = map_pages(needed, reserved) if shared is None else shared.map(needed)
        self._bytes = torch.frombuffer(self._pages, dtype=torch.uint8)
        self.used = 0

    @property
    def bytes(self) -> Tensor:
        """Everything that was handed out, [used] uint8."""
        return self._bytes[: self.used]

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The next tensor; it keeps the whole allocation alive."""
        count = prod(shape)
        if not count:
            return torch.zeros(shape, dtype=dtype)
        size = count * dtype.itemsize
        assert self.used + size <= len(self._bytes), "the caller reserved room for all tensors"
        # Not a slice of self._bytes: torch.compile takes tensors that share a storage for overlapping.
        piece = torch.frombuffer(self._pages, dtype=dtype, count=count, offset=self.used)
        self.used += size + -size % ALIGNMENT
        return piece.view(shape)


def unreserved(num_bytes: int, num_pieces: int) -> Arena:
    """An arena of which only a part may be handed out; the rest takes no memory."""
    return Arena(num_bytes, num_pieces, reserved=False)
