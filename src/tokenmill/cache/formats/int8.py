"""Format int8: rows in 8 bits, with a float32 scale for each token and head. Half the bytes of bfloat16, and 4 a head.

A row is the integers from -127 to 127 nearest to row / scale, scale being the largest entry over 127. A row of zeros
has scale 0.
"""

from copy import copy

import torch
from torch import Tensor

from tokenmill.cache.formats import Zeros

__all__ = ["Int8"]


class Int8:
    """One layer's K and V: codes [S, K, H] and scales [S, K] each. Reading gives values in the model's dtype."""

    kinds = ("k", "v", "k_scales", "v_scales")
    native_fields = ("k_rows", "v_rows", "k_scales", "v_scales")

    def __init__(self, num_slots: int, num_kv_heads: int, head_dim: int, dtype: str, zeros: Zeros) -> None:
        self.dtype = getattr(torch, dtype)
        shape = (num_slots, num_kv_heads, head_dim)
        self.k_SKH, self.v_SKH = (zeros(shape, torch.int8) for _ in "kv")
        self.k_scales_SK, self.v_scales_SK = (zeros(shape[:2], torch.float32) for _ in "kv")

    @staticmethod
    def native_number(dtype: str) -> int | None:
        """See LayerKV."""
        del dtype
        return 2

    @staticmethod
    def row_bytes(num_kv_heads: int, head_dim: int, dtype: str) -> int:
        """Bytes of one token's K, or V."""
        del dtype
        return num_kv_heads * (head_dim + 4)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Every allocation; the first dimension is slots."""
        return (self.k_SKH, self.v_SKH, self.k_scales_SK, self.v_scales_SK)

    def over(self, *tensors: Tensor) -> "Int8":
        """See LayerKV."""
        other = copy(self)
        other.k_SKH, other.v_SKH, other.k_scales_SK, other.v_scales_SK = tensors
        return other

    def write(self, slots_T: Tensor, k_TKH: Tensor, v_TKH: Tensor) -> None:
        """Round and store one row per slot, in place."""
        for rows_TKH, codes_SKH, scales_SK in (
            (k_TKH, self.k_SKH, self.k_scales_SK),
            (v_TKH, self.v_SKH, self.v_scales_SK),
        ):
            values_TKH = rows_TKH.float()
            max_TK = values_TKH.abs().amax(-1)
            inverse_TK = torch.where(max_TK > 0, 127.0 / max_TK, 0.0)
            codes_SKH.index_copy_(0, slots_T, torch.round(values_TKH * inverse_TK[..., None]).to(torch.int8))
            scales_SK.index_copy_(0, slots_T, max_TK / 127.0)

    def view(self, first: int, last: int) -> tuple[Tensor, Tensor]:
        """K and V of the slots [first, last), as values."""
        k = self._values(self.k_SKH[first:last], self.k_scales_SK[first:last])
        return k, self._values(self.v_SKH[first:last], self.v_scales_SK[first:last])

    def gather(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """K and V of any slots, as values."""
        k = self._values(self.k_SKH[slots], self.k_scales_SK[slots])
        return k, self._values(self.v_SKH[slots], self.v_scales_SK[slots])

    def _values(self, codes_LKH: Tensor, scales_LK: Tensor) -> Tensor:
        return (codes_LKH.float() * scales_LK[..., None]).to(self.dtype)
