"""Memory that several processes of one machine map: a file without a name, which ends with the last of them."""

import mmap
import os
from threading import Lock

from tokenmill.errors import ConfigError


class SharedMemory:
    """Zeros that each process maps once it knows how many it needs; all must ask for the same number of bytes.

    descriptor: that of another process, which this one inherited; None for new memory.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        if descriptor is None:
            if not hasattr(os, "memfd_create"):
                raise ConfigError("tensor_parallel", "several processes", "1: they share memory as only Linux has it")
            descriptor = os.memfd_create("tokenmill")
        self.descriptor, self._lock = descriptor, Lock()

    def map(self, num_bytes: int) -> mmap.mmap:
        """Map it. Memory is taken page by page, as each is first written."""
        with self._lock:  # another thread may close it, after which its number is that of another file
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
