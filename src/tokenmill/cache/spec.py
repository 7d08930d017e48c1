"""The size of the KV cache, known before it is allocated.

One token costs a row of K and one of V in each layer, whatever the block size. The planner prints this number and the
pool allocates exactly it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from tokenmill.cache.formats import find_format

__all__ = ["CacheSpec", "RowsSpec", "kv_bytes_per_token"]


class RowsSpec(NamedTuple):
    """What a layer keeps of a token: K and V of so many heads. window: past tokens that a query sees, None for all."""

    num_kv_heads: int
    head_dim: int
    window: int | None = None


@dataclass(frozen=True)
class CacheSpec:
    """What each layer keeps, and the format of it. A contiguous cache has blocks of the maximum length.

    layers: they may differ. A slot is a row of each.
    """

    layers: tuple[RowsSpec, ...]
    dtype: str
    format: str
    block_size: int
    num_blocks: int

    @property
    def num_slots(self) -> int:
        return self.num_blocks * self.block_size

    @property
    def bytes_per_token(self) -> int:
        return kv_bytes_per_token(self.layers, self.dtype, self.format)

    @property
    def num_bytes(self) -> int:
        return self.bytes_per_token * self.num_slots


def kv_bytes_per_token(layers: Iterable[RowsSpec], dtype: str, cache_format: str) -> int:
    """K and V of one token in all layers."""
    stored = find_format(cache_format)
    return 2 * sum(stored.row_bytes(rows.num_kv_heads, rows.head_dim, dtype) for rows in layers)
