"""Format int8: rows in 8 bits, with a float32 scale for each token and head. Half the bytes of bfloat16, and 4 a head.

A row is the integers from -127 to 127 nearest to row / scale, scale being the largest entry over 127. A row of zeros
has scale 0.
"""

import torch
from torch import Tensor

from tokenmill.cache.formats.layer import Zeros


class Int8Layer:
    """One layer's K and V: codes [S, K, H] and scales [S, K] each. Reading gives values in the model's dtype."""

    kinds = ("k", "v", "k_scales", "v_scales")

    def __init__(self, num_slots: int, num_kv_heads: int, head_dim: int, dtype: str, zeros: Zeros) -> None:
        self.dtype = getattr(torch, dtype)
        shape = (num_slots, num_kv_heads, head_dim)
        codes, scales = ((shape, torch.int8), (shape[:2], torch.float32))
        self.tensors = tuple(zeros(*each) for each in (codes, codes, scales, scales))

    def write(self, slots_T: Tensor, k_TKH: Tensor, v_TKH: Tensor) -> None:
        for rows_TKH, codes_SKH, scales_SK in zip((k_TKH, v_TKH), self.tensors[:2], self.tensors[2:], strict=True):
            values_TKH = rows_TKH.float()
            max_TK = values_TKH.abs().amax(-1)
            inverse_TK = torch.where(max_TK > 0, 127.0 / max_TK, 0.0)
            codes_SKH.index_copy_(0, slots_T, torch.round(values_TKH * inverse_TK[..., None]).to(torch.int8))
            scales_SK.index_copy_(0, slots_T, max_TK / 127.0)

    def gather(self, slots: Tensor | slice) -> tuple[Tensor, Tensor]:
        k_SKH, v_SKH, k_scales_SK, v_scales_SK = self.tensors
        k = (k_SKH[slots].float() * k_scales_SK[slots][..., None]).to(self.dtype)
        return k, (v_SKH[slots].float() * v_scales_SK[slots][..., None]).to(self.dtype)
