"""How one token's K or V row is stored.

A format is one file and one line here. It says what a row costs, allocates one layer's rows, writes rows by slot, and
reads them by range or by slot; a kernel asks for no more than that.
"""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

__all__ = ["FORMATS", "LayerKV", "Zeros"]

Zeros = Callable[[tuple[int, ...], torch.dtype], Tensor]
"""Where a format gets its memory: zeros of a shape and dtype, on the pool's device."""

FORMATS = {
    "dense": "tokenmill.cache.formats.dense:Dense",
    "int8": "tokenmill.cache.formats.int8:Int8",
}


class LayerKV(Protocol):
    """One layer's K and V."""

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Every allocation, K and V first; the first dimension is slots."""

    def over(self, *tensors: Tensor) -> "LayerKV":
        """The same format over other allocations, in the order of `tensors`."""

    def write(self, slots_T: Tensor, k_TKH: Tensor, v_TKH: Tensor) -> None:
        """Store one row per slot, in place."""

    def view(self, first: int, last: int) -> tuple[Tensor, Tensor]:
        """K and V of the slots [first, last), [L, K, H] in the model's dtype."""

    def gather(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """The same of any slots."""
