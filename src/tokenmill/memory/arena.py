"""One contiguous allocation for many tensors that every step reads: the KV cache, packed weights."""

import mmap
import os
from collections.abc import Callable
from math import prod
from threading import Lock
from typing import Protocol

import torch
from torch import Tensor

from tokenmill.errors import ConfigError
from tokenmill.memory.pages import map_pages

ALIGNMENT = 64  # bytes of a cache line; every tensor starts at the beginning of one


class Allocation(Protocol):
    """A source of tensors, handed out one after the other; each is filled before the next is asked for."""

    used: int
    """Bytes that were handed out, with the gaps that alignment leaves."""

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return the next tensor, which begins at `used`."""

    @property
    def bytes(self) -> Tensor:
        """Everything that was handed out, [used] uint8, where it stays."""


Allocate = Callable[[int, int], Allocation]  # given the bytes and the number of tensors that there may be


class SharedMemory:
    """Memory that several processes of one machine map: a file without a name, which ends with the last of them.

    Zeros that each process maps once it knows how many it needs; all must ask for the same number of bytes. descriptor:
    of another process' memory, which this process inherited; None for new memory.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        if descriptor is None:
            if not hasattr(os, "memfd_create"):
                raise ConfigError("tensor_parallel", "several processes", "1: they share memory as only Linux has it")
            descriptor = os.memfd_create("tokenmill")
        self.descriptor, self._lock = descriptor, Lock()

    def map(self, num_bytes: int) -> mmap.mmap:
        """Map it. Memory is taken page by page, as each is first written."""
        with self._lock:  # another thread may close it, and then its number may mean another file
            if os.fstat(self.descriptor).st_size < num_bytes:
                os.truncate(self.descriptor, num_bytes)
            mapped = mmap.mmap(self.descriptor, num_bytes, mmap.MAP_SHARED)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            mapped.madvise(mmap.MADV_HUGEPAGE)  # which some systems give to shared memory too
        return mapped

    def close(self) -> None:
        """Close the file; what is mapped stays."""
        with self._lock:
            descriptor, self.descriptor = self.descriptor, -1
            if descriptor >= 0:
                os.close(descriptor)


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
        """Return the next tensor; it keeps the whole allocation alive."""
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
    """Make an arena whose bytes may be handed out in part only; the rest takes no memory."""
    return Arena(num_bytes, num_pieces, reserved=False)
