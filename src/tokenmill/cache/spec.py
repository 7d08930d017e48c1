"""The specs of the rows or states that each layer keeps, and the size of the KV cache, before it is allocated.

One token costs a row of K and one of V in each layer that keeps rows, whatever the block size; one text costs a slot of
states. The planner prints this number and the pool allocates exactly it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from tokenmill.cache.formats import find_format
from tokenmill.settings.engine_config import DTYPES


class RowsSpec(NamedTuple):
    """Rows of K and V. window: past tokens that a query sees, None for all. is_latent: K is V. value_dim: V's width."""

    num_kv_heads: int
    head_dim: int
    window: int | None = None
    is_latent: bool = False
    value_dim: int | None = None

    @property
    def widths(self) -> tuple[int, ...]:
        """The widths of a head in K and V, or in the row that is both."""
        return (self.head_dim,) if self.is_latent else (self.head_dim, self.value_dim or self.head_dim)


class StateSpec(NamedTuple):
    """The states of a layer: tensors of a whole text, in the place of rows, which each token changes."""

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]

    @property
    def num_bytes(self) -> int:
        """Count the bytes of one text."""
        return sum(prod(shape) * DTYPES[dtype] for shape, dtype in zip(self.shapes, self.dtypes, strict=True))


LayerSpec = RowsSpec | StateSpec


@dataclass(frozen=True)
class CacheSpec:
    """The specs of all layers, and their format. A contiguous cache has blocks of the maximum length.

    layers: they may differ. A slot is a row of each layer that keeps rows; num_states: slots of the states of the
    others.
    """

    layers: tuple[LayerSpec, ...]
    dtype: str
    format: str
    block_size: int
    num_blocks: int
    num_states: int = 0

    @property
    def rows(self) -> tuple[RowsSpec, ...]:
        return tuple(layer for layer in self.layers if isinstance(layer, RowsSpec))

    @property
    def states(self) -> tuple[StateSpec, ...]:
        return tuple(layer for layer in self.layers if isinstance(layer, StateSpec) and layer.shapes)

    @property
    def window(self) -> int | None:
        """Find the most past tokens that a query of any layer sees; None if some layer sees all."""
        windows = [rows.window for rows in self.rows if rows.window is not None]
        return max(windows) if windows and len(windows) == len(self.rows) else None

    @property
    def num_slots(self) -> int:
        return self.num_blocks * self.block_size

    @property
    def bytes_per_token(self) -> int:
        return kv_bytes_per_token(self.rows, self.dtype, self.format)

    @property
    def bytes_per_state(self) -> int:
        """Count the bytes of one slot of states."""
        return sum(state.num_bytes for state in self.states)

    @property
    def num_bytes(self) -> int:
        return self.bytes_per_token * self.num_slots + self.bytes_per_state * self.num_states


def kv_bytes_per_token(layers: Iterable[RowsSpec], dtype: str, cache_format: str) -> int:
    """Count the bytes of K and V of one token in all layers that keep rows."""
    stored = find_format(cache_format)
    return sum(stored.row_bytes(rows.num_kv_heads, width, dtype) for rows in layers for width in rows.widths)
