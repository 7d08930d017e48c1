"""Attention over one contiguous block per sequence: the cache is read as a view, nothing is gathered."""

import torch
from torch import Tensor

from tokenmill.cache.formats import LayerKV
from tokenmill.cache.spec import CacheSpec
from tokenmill.cache.step import PaddedStep, Span, Step
from tokenmill.kernels.attend import AttentionShape
from tokenmill.kernels.attend.sdpa import attend_span

__all__ = ["Rows"]


class Rows:
    """Views and SDPA."""

    padded = False

    def refuse(
        self, cache: CacheSpec, device: torch.device, max_length: int, shapes: frozenset[AttentionShape]
    ) -> str | None:
        """Needs one block per sequence and plain scores."""
        del device  # any
        if cache.block_size < max_length:
            return f"needs one block per sequence, and block_size {cache.block_size} is under max_length {max_length}"
        if not all(shape.is_plain for shape in shapes):
            return "has neither caps of attention scores nor attention sinks"
        return None

    def __call__(
        self,
        q_TNH: Tensor,
        k_TKH: Tensor,
        v_TKH: Tensor,
        layer: LayerKV,
        step: Step | PaddedStep,
        shape: AttentionShape,
        sinks_N: Tensor | None = None,
    ) -> Tensor:
        """See `Attend`."""
        assert isinstance(step, Step), "chosen for packed steps"
        assert sinks_N is None, "refused"
        layer.write(step.slots_T, k_TKH, v_TKH)
        if len(step.spans) == 1:
            return self._span(q_TNH, layer, step, step.spans[0], shape)
        parts = [self._span(q_TNH[s.first : s.first + s.count], layer, step, s, shape) for s in step.spans]
        return torch.cat(parts)

    def _span(self, q_TNH: Tensor, layer: LayerKV, step: Step, span: Span, shape: AttentionShape) -> Tensor:
        assert span.base is not None, "one block per sequence"
        k_LKH, v_LKH = layer.view(span.base, span.base + span.length)
        return attend_span(q_TNH, k_LKH, v_LKH, step, span, shape)
