"""What each layer keeps of a text, and the size of the KV cache, known before it is allocated.

One token costs a row of K and one of V in each layer, whatever the block size. The planner prints this number and the
pool allocates exactly it. Layers that keep state can be described, and `rows_of` is the place that refuses them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from tokenmill.cache.formats import find_format
from tokenmill.errors import CheckpointError


class RowsSpec(NamedTuple):
    """A layer keeps of a token K and V of so many heads. window: past tokens that a query sees, None for all."""

    num_kv_heads: int
    head_dim: int
    window: int | None = None


class StateSpec(NamedTuple):
    """A layer keeps of a whole text, in the place of rows, tensors that each token changes."""

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]

    def __str__(self) -> str:
        return ", ".join(f"{dtype} {list(shape)}" for shape, dtype in zip(self.shapes, self.dtypes, strict=True))


LayerSpec = RowsSpec | StateSpec


@dataclass(frozen=True)
class CacheSpec:
    """The specs of what each layer keeps, and its format. A contiguous cache has blocks of the maximum length.

    layers: they may differ. A slot is a row of each.
    """

    layers: tuple[RowsSpec, ...]
    dtype: str
    format: str
    block_size: int
    num_blocks: int

    @property
    def window(self) -> int | None:
        """The most past tokens that a query of any layer sees; None if some layer sees all."""
        windows = [rows.window for rows in self.layers if rows.window is not None]
        return max(windows) if len(windows) == len(self.layers) else None

    @property
    def num_slots(self) -> int:
        return self.num_blocks * self.block_size

    @property
    def bytes_per_token(self) -> int:
        return kv_bytes_per_token(self.layers, self.dtype, self.format)

    @property
    def num_bytes(self) -> int:
        return self.bytes_per_token * self.num_slots


def rows_of(layers: Iterable[LayerSpec]) -> tuple[RowsSpec, ...]:
    """Take the rows of layers that all keep rows. CheckpointError names the layers that keep state."""
    rows, states = list[RowsSpec](), list[str]()
    for number, layer in enumerate(layers):
        if isinstance(layer, RowsSpec):
            rows.append(layer)
        else:
            states.append(f"layer {number} keeps {layer}")
    if states:
        raise CheckpointError(f"layers that keep state are not implemented, only K and V rows: {'; '.join(states)}")
    return tuple(rows)


def kv_bytes_per_token(layers: Iterable[RowsSpec], dtype: str, cache_format: str) -> int:
    """K and V of one token in all layers."""
    stored = find_format(cache_format)
    return 2 * sum(stored.row_bytes(rows.num_kv_heads, rows.head_dim, dtype) for rows in layers)
