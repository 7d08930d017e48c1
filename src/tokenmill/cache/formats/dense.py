"""Format dense: rows in the dtype of the cache, [K, H]."""

from copy import copy

import torch
from torch import Tensor

from tokenmill.cache.formats import Zeros
from tokenmill.config import DTYPES

__all__ = ["Dense"]


class Dense:
    """One layer's K and V, one allocation of shape [S, K, H] each."""

    kinds = ("k", "v")
    native_fields = ("k_rows", "v_rows")

    def __init__(self, num_slots: int, num_kv_heads: int, head_dim: int, dtype: str, zeros: Zeros) -> None:
        shape = (num_slots, num_kv_heads, head_dim)
        self.k_SKH, self.v_SKH = (zeros(shape, getattr(torch, dtype)) for _ in "kv")

    @staticmethod
    def native_number(dtype: str) -> int | None:
        """See LayerKV."""
        return {"float32": 0, "bfloat16": 1}.get(dtype)

    @staticmethod
    def row_bytes(num_kv_heads: int, head_dim: int, dtype: str) -> int:
        """Bytes of one token's K, or V."""
        return num_kv_heads * head_dim * DTYPES[dtype]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Every allocation; the first dimension is slots."""
        return (self.k_SKH, self.v_SKH)

    def over(self, *tensors: Tensor) -> "Dense":
        """See LayerKV."""
        other = copy(self)
        other.k_SKH, other.v_SKH = tensors
        return other

    def write(self, slots_T: Tensor, k_TKH: Tensor, v_TKH: Tensor) -> None:
        """Store one row per slot, in place."""
        self.k_SKH.index_copy_(0, slots_T, k_TKH)
        self.v_SKH.index_copy_(0, slots_T, v_TKH)

    def view(self, first: int, last: int) -> tuple[Tensor, Tensor]:
        """K and V of the slots [first, last), without a copy."""
        return self.k_SKH[first:last], self.v_SKH[first:last]

    def gather(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """K and V of any slots, copied together."""
        return self.k_SKH.index_select(0, slots), self.v_SKH.index_select(0, slots)
