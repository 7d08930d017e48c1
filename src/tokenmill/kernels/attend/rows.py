"""Attention over one contiguous block per sequence: the cache is read as a view, nothing is gathered."""

import torch
from torch import Tensor

from tokenmill.cache.formats import LayerKV
from tokenmill.cache.spec import CacheSpec
from tokenmill.cache.step import Span, Step
from tokenmill.kernels.attend import AttentionShape
from tokenmill.kernels.attend.sdpa import attend_span

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
        self, q_TNH: Tensor, k_TKH: Tensor, v_TKH: Tensor, layer: LayerKV, step: Step, shape: AttentionShape
    ) -> Tensor:
        """See `Attend`."""
        layer.write(step.slots_T, k_TKH, v_TKH)
        if len(step.spans) == 1:
            return self._span(q_TNH, layer, step, step.spans[0], shape)
        parts = [self._span(q_TNH[s.first : s.first + s.count], layer, step, s, shape) for s in step.spans]
        return torch.cat(parts)

    def _span(self, q_TNH: Tensor, layer: LayerKV, step: Step, span: Span, shape: AttentionShape) -> Tensor:
        assert span.base is not None, "one block per sequence"
        k_LKH, v_LKH = layer.view(span.base, span.base + span.length)
        return attend_span(q_TNH, k_LKH, v_LKH, step, span, shape)
