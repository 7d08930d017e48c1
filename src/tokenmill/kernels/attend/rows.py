"""Attention over one contiguous block per sequence: the cache is read as a view, nothing is gathered.

torch's scaled_dot_product_attention does the work. Its own grouped-query mode repeats K and V in memory (571 µs a layer
at 1,000 tokens in bfloat16 on 2 cores); here a decoding query's heads are laid out as rows of their kv head instead,
which reads the cache once (108 µs).
"""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from tokenmill.cache.formats.dense import Dense
from tokenmill.cache.spec import CacheSpec
from tokenmill.cache.step import Span, Step
from tokenmill.kernels.attend import AttentionShape

__all__ = ["Rows"]


class Rows:
    """Views and SDPA."""

    def refuse(self, cache: CacheSpec, max_length: int, shapes: frozenset[AttentionShape]) -> str | None:
        """Needs one block per sequence and plain scores."""
        if cache.block_size < max_length:
            return f"needs one block per sequence, and block_size {cache.block_size} is under max_length {max_length}"
        if any(shape.softcap is not None for shape in shapes):
            return "cannot cap attention scores"
        return None

    def __call__(
        self, q_TNH: Tensor, k_TKH: Tensor, v_TKH: Tensor, layer: Dense, step: Step, shape: AttentionShape
    ) -> Tensor:
        """See `Attend`."""
        layer.write(step.slots_T, k_TKH, v_TKH)
        if len(step.spans) == 1:
            return self._span(q_TNH, layer, step, step.spans[0], shape)
        parts = [self._span(q_TNH[s.first : s.first + s.count], layer, step, s, shape) for s in step.spans]
        return torch.cat(parts)

    def _span(self, q_TNH: Tensor, layer: Dense, step: Step, span: Span, shape: AttentionShape) -> Tensor:
        assert span.base is not None
        num_tokens, num_heads, head_dim = q_TNH.shape
        if span.count == 1:
            oldest = 0 if shape.window is None else max(span.length - shape.window, 0)
            k_LKH, v_LKH = layer.view(span.base + oldest, span.base + span.length)
            q_KGH = q_TNH.view(1, k_LKH.shape[1], -1, head_dim)
            out = scaled_dot_product_attention(
                q_KGH, k_LKH.transpose(0, 1)[None], v_LKH.transpose(0, 1)[None], scale=shape.scale
            )
            return out.view(1, num_heads, head_dim)
        k_LKH, v_LKH = layer.view(span.base, span.base + span.length)
        num_kv_heads = k_LKH.shape[1]
        group = num_heads // num_kv_heads
        # Stride 0 over the heads of a group: shared, not copied.
        k_KGLH = k_LKH.transpose(0, 1)[:, None].expand(-1, group, -1, -1)
        v_KGLH = v_LKH.transpose(0, 1)[:, None].expand(-1, group, -1, -1)
        q_KGTH = q_TNH.view(num_tokens, num_kv_heads, group, head_dim).permute(1, 2, 0, 3)
        causal = span.start == 0 and shape.window is None
        mask = None if causal else step.mask(span, shape.window, q_TNH.dtype)
        out = scaled_dot_product_attention(q_KGTH, k_KGLH, v_KGLH, mask, is_causal=causal, scale=shape.scale)
        return out.permute(2, 0, 1, 3).reshape(num_tokens, num_heads, head_dim)
