"""Memory in huge pages where the system has them, so that reading it is one stream.

With pages of 4 KiB the processor looks each of them up, and stops fetching ahead at its end.
"""

import mmap

__all__ = ["map_pages"]


def map_pages(num_bytes: int) -> mmap.mmap:
    """At least `num_bytes` of zeros, on a page's border. Takes memory as it is first written to; OSError if refused."""
    # Private: shared memory, Python's default, gets no huge pages.
    mapped = mmap.mmap(-1, max(num_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        mapped.madvise(mmap.MADV_HUGEPAGE)
    return mapped
