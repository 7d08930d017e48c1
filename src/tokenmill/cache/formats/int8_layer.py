"""Format int8: rows in 8 bits, with a float32 scale for each token and head. Half the bytes of bfloat16, and 4 a head.

A row is the integers from -127 to 127 nearest to row / scale, scale being the largest entry over 127. A row of zeros
has scale 0.
"""

import torch
from torch import Tensor

from tokenmill.cache.formats.layer import Zeros
from tokenmill.cache.spec import RowsSpec


class Int8Layer:
    """One layer's K and V: codes [S, K, H] and scales [S, K] each. Reading gives values in the model's dtype."""

    def __init__(self, num_slots: int, rows: RowsSpec, dtype: str, zeros: Zeros) -> None:
        self.dtype, heads = getattr(torch, dtype), (num_slots, rows.num_kv_heads)
        self.kinds = ("k", "k_scales") if rows.is_latent else ("k", "v", "k_scales", "v_scales")
        codes = [zeros((*heads, width), torch.int8) for width in rows.widths]
        self.tensors = (*codes, *(zeros(heads, torch.float32) for _ in codes))

    def write(self, slots_T: Tensor, k_TKH: Tensor, v_TKH: Tensor) -> None:
        codes, scales = self._divided()
        for rows_TKH, codes_SKH, scales_SK in zip((k_TKH, v_TKH), codes, scales, strict=False):
            values_TKH = rows_TKH.float()
            max_TK = values_TKH.abs().amax(-1)
            inverse_TK = torch.where(max_TK > 0, 127.0 / max_TK, 0.0)
            codes_SKH.index_copy_(0, slots_T, torch.round(values_TKH * inverse_TK[..., None]).to(torch.int8))
            scales_SK.index_copy_(0, slots_T, max_TK / 127.0)

    def gather(self, slots: Tensor | slice) -> tuple[Tensor, Tensor]:
        pairs = zip(*self._divided(), strict=True)
        rows = [
            (codes_SKH[slots].float() * scales_SK[slots][..., None]).to(self.dtype) for codes_SKH, scales_SK in pairs
        ]
        return rows[0], rows[-1]

    def _divided(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        half = len(self.tensors) // 2
        return self.tensors[:half], self.tensors[half:]
