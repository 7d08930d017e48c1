"""One layer of the cache as tensors, in some format. Kernels and programs use nothing but LayerKV.

The native program, which reads the tensors itself, has a table of the formats that it can read: native/layouts.py.
"""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from tokenmill.cache.spec import RowsSpec
from tokenmill.registry import FORMATS, lookup

Zeros = Callable[[tuple[int, ...], torch.dtype], Tensor]
"""Gives a format its memory: zeros of a shape and dtype, on the pool's device."""


class LayerKV(Protocol):
    """One layer's K and V in some format. The dtype of the model is given by name, as in the settings."""

    tensors: tuple[Tensor, ...]
    """Every allocation; the first dimension is slots."""
    dtype: torch.dtype
    """The dtype of the rows that are read. A layer has no other state than these two."""
    kinds: tuple[str, ...]
    """The names of `tensors`, "k" and "v" first: saved rows are named "layer.kind"."""

    def __init__(self, num_slots: int, rows: RowsSpec, dtype: str, zeros: Zeros) -> None: ...

    def write(self, slots_T: Tensor, k_TKH: Tensor, v_TKH: Tensor) -> None:
        """Store one row per slot, in place."""

    def gather(self, slots: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Read K and V of these slots, [L, K, H] in the model's dtype; a slice is perhaps not copied."""


def find_layer(name: str) -> type[LayerKV]:
    """Find the layers of the cache format of that name."""
    found: type[LayerKV] = lookup(FORMATS, name, "cache_format", computes=True)
    return found


def over(layer: LayerKV, *tensors: Tensor) -> LayerKV:
    """Make the same layer over other allocations, in the order of `tensors`; torch 2.11 cannot trace `copy.copy`."""
    other: LayerKV = object.__new__(type(layer))
    other.tensors, other.dtype = tensors, layer.dtype
    return other
