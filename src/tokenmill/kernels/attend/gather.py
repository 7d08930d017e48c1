"""Attention over any blocks: gather the rows of a sequence, then attend to them.

The portable reference: it serves every block size, format and shape. What is gathered has the layout of the view that
one contiguous block has, and the function that reads such a block attends to it, so the block size cannot change a bit.
Only capped scores and sinks, which SDPA does not know, are written out.
"""

import torch
from torch import Tensor

from tokenmill.cache.formats import LayerKV
from tokenmill.cache.spec import CacheSpec
from tokenmill.cache.step import PaddedStep, Span, Step
from tokenmill.kernels.attend import AttentionShape
from tokenmill.kernels.attend.sdpa import attend_span

__all__ = ["Gather", "attend_written_out"]


class Gather:
    """Index, then SDPA or, where the scores are not plain, matmul and softmax in float32."""

    padded = False

    def refuse(
        self, cache: CacheSpec, device: torch.device, max_length: int, shapes: frozenset[AttentionShape]
    ) -> str | None:
        """Never."""
        del cache, device, max_length, shapes  # part of the signature; this kernel serves all of them
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
        layer.write(step.slots_T, k_TKH, v_TKH)
        parts = [self._span(q_TNH[s.first : s.first + s.count], layer, step, s, shape, sinks_N) for s in step.spans]
        return torch.cat(parts)

    def _span(
        self, q_TNH: Tensor, layer: LayerKV, step: Step, span: Span, shape: AttentionShape, sinks_N: Tensor | None
    ) -> Tensor:
        if span.slots_L is None:
            assert span.base is not None, "a span has a base or slots"
            k_LKH, v_LKH = layer.view(span.base, span.base + span.length)
        else:
            k_LKH, v_LKH = layer.gather(span.slots_L)
        if shape.is_plain:
            return attend_span(q_TNH, k_LKH, v_LKH, step, span, shape)
        return attend_written_out(q_TNH, k_LKH, v_LKH, step, span, shape, sinks_N)


def attend_written_out(
    q_TNH: Tensor,
    k_LKH: Tensor,
    v_LKH: Tensor,
    step: Step,
    span: Span,
    shape: AttentionShape,
    sinks_N: Tensor | None = None,
) -> Tensor:
    """attend_span in plain float32 steps, with caps and sinks: the reference of the tests."""
    num_tokens, num_heads, head_dim = q_TNH.shape
    q_KGTH = q_TNH.view(num_tokens, k_LKH.shape[1], -1, head_dim).permute(1, 2, 0, 3).float()
    scores_KGTL = shape.capped(torch.matmul(q_KGTH, k_LKH.permute(1, 2, 0)[:, None].float()) * shape.scale)
    scores_KGTL = scores_KGTL + step.mask(span, shape.window, torch.float32)
    if sinks_N is None:
        weights_KGTL = torch.softmax(scores_KGTL, dim=-1)
    else:
        sinks_KGT1 = sinks_N.float().view(*scores_KGTL.shape[:2], 1, 1).expand(-1, -1, num_tokens, 1)
        weights_KGTL = torch.softmax(torch.cat((scores_KGTL, sinks_KGT1), dim=-1), dim=-1)[..., :-1]
    out_KGTH = torch.matmul(weights_KGTL, v_LKH.transpose(0, 1)[:, None].float())
    return out_KGTH.permute(2, 0, 1, 3).reshape(num_tokens, num_heads, head_dim).to(q_TNH.dtype)
