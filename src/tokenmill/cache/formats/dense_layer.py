"""Format dense: rows in the dtype of the cache, [K, H]."""

import torch
from torch import Tensor

from tokenmill.cache.formats.layer import Zeros


class DenseLayer:
    """One layer's K and V, one allocation of shape [S, K, H] each."""

    kinds = ("k", "v")

    def __init__(self, num_slots: int, num_kv_heads: int, head_dim: int, dtype: str, zeros: Zeros) -> None:
        self.dtype = getattr(torch, dtype)
        shape = (num_slots, num_kv_heads, head_dim)
        self.tensors = tuple(zeros(shape, self.dtype) for _ in "kv")

    def write(self, slots_T: Tensor, k_TKH: Tensor, v_TKH: Tensor) -> None:
        k_SKH, v_SKH = self.tensors
        k_SKH.index_copy_(0, slots_T, k_TKH)
        v_SKH.index_copy_(0, slots_T, v_TKH)

    def gather(self, slots: Tensor | slice) -> tuple[Tensor, Tensor]:
        k_SKH, v_SKH = self.tensors
        if isinstance(slots, slice):
            return k_SKH[slots], v_SKH[slots]
        return k_SKH.index_select(0, slots), v_SKH.index_select(0, slots)
