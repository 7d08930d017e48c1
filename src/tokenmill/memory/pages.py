"""Memory in huge pages where the system has them; files mapped as memory.

With pages of 4 KiB the processor needs an address translation for each, and its prefetchers stop at the end of a page.
"""

import ctypes
import mmap
import sys
from typing import BinaryIO

HUGE_PAGE = 2 << 20  # bytes; what begins at such an offset of a file can be mapped in huge pages
MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)  # Python 3.13 names it
POPULATE_READ = 22  # MADV_POPULATE_READ of Linux 5.14, which Python has no name for


def map_pages(num_bytes: int, reserved: bool = True) -> mmap.mmap:
    """Map `num_bytes` of zeros or more, aligned to a page. Memory is taken as it is first written; OSError if refused.

    reserved: False where only some of it will be written, so that the system does not count the rest.
    """
    # Private: shared memory, Python's default, gets no huge pages.
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (0 if reserved else MAP_NORESERVE)
    mapped = mmap.mmap(-1, max(num_bytes, 1), flags=flags)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        mapped.madvise(mmap.MADV_HUGEPAGE)
    return mapped


def map_file(opened: BinaryIO, offset: int, num_bytes: int) -> mmap.mmap:
    """Map bytes of a file, which are read when they are touched. All processes that map the file share the memory."""
    # Private and writable, since ctypes and torch take no other; nothing writes there.
    return mmap.mmap(opened.fileno(), num_bytes, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE, offset=offset)


def touch(mapped: mmap.mmap) -> None:
    """Read in all of a mapped file now, where the system can; other threads of Python go on."""
    if len(mapped):
        address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        ctypes.CDLL(None).madvise(ctypes.c_void_p(address), ctypes.c_size_t(len(mapped)), POPULATE_READ)
