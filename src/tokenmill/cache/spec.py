"""The size of the KV cache, known before it is allocated.

One token costs 2 · layers · kv heads · head dim · itemsize bytes, whatever the block size. The planner prints this
number and the pool allocates exactly it.
"""

from dataclasses import dataclass

from tokenmill.cache.formats import find_format

__all__ = ["CacheSpec"]


@dataclass(frozen=True)
class CacheSpec:
    """Shape and format of the pool. A contiguous cache is one whose block_size is the maximum length."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: str
    format: str
    block_size: int
    num_blocks: int

    @property
    def num_slots(self) -> int:
        return self.num_blocks * self.block_size

    @property
    def bytes_per_token(self) -> int:
        return 2 * self.num_layers * find_format(self.format).row_bytes(self.num_kv_heads, self.head_dim, self.dtype)

    @property
    def num_bytes(self) -> int:
        return self.bytes_per_token * self.num_slots
