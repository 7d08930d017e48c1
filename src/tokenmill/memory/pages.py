"""Memory in huge pages where the system has them, so that reading it is one stream.

With pages of 4 KiB the processor needs an address translation for each, and its prefetchers stop at the end of a page.
"""

import mmap

__all__ = ["map_pages"]


def map_pages(num_bytes: int) -> mmap.mmap:
    """At least `num_bytes` of zeros, aligned to a page. Memory is taken as it is first written; OSError if refused."""
    # Private: shared memory, Python's default, gets no huge pages.
    mapped = mmap.mmap(-1, max(num_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        mapped.madvise(mmap.MADV_HUGEPAGE)
    return mapped
