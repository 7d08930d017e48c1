"""Format dense: rows in the dtype of the cache, [K, H]."""

import torch
from torch import Tensor

from tokenmill.cache.formats.layer import Zeros
from tokenmill.cache.spec import RowsSpec


class DenseLayer:
    """One layer's K and V, one allocation of shape [S, K, H] each."""

    def __init__(self, num_slots: int, rows: RowsSpec, dtype: str, zeros: Zeros) -> None:
        self.dtype, self.kinds = getattr(torch, dtype), ("k", "v")[: len(rows.widths)]
        self.tensors = tuple(zeros((num_slots, rows.num_kv_heads, width), self.dtype) for width in rows.widths)

    def write(self, slots_T: Tensor, k_TKH: Tensor, v_TKH: Tensor) -> None:
        for stored_SKH, rows_TKH in zip(self.tensors, (k_TKH, v_TKH), strict=False):
            stored_SKH.index_copy_(0, slots_T, rows_TKH)

    def gather(self, slots: Tensor | slice) -> tuple[Tensor, Tensor]:
        k_SKH, v_SKH = self.tensors[0], self.tensors[-1]
        if isinstance(slots, slice):
            return k_SKH[slots], v_SKH[slots]
        return k_SKH.index_select(0, slots), v_SKH.index_select(0, slots)
