"""Attention over any blocks: gather the rows of a sequence, then attend to them.

The portable reference: it serves every block size, format and shape. What is gathered has the layout of the view that
`rows` takes, and the same function attends to it, so the block size cannot change a bit. Only capped scores, which SDPA
does not know, are written out.
"""

import torch
from torch import Tensor

from tokenmill.cache.formats import LayerKV
from tokenmill.cache.spec import CacheSpec
from tokenmill.cache.step import Span, Step
from tokenmill.kernels.attend import AttentionShape
from tokenmill.kernels.attend.sdpa import attend_span

__all__ = ["Gather", "attend_written_out"]


class Gather:
    """Index, then SDPA or, with capped scores, matmul and softmax in float32."""

    def refuse(self, cache: CacheSpec, max_length: int, shapes: frozenset[AttentionShape]) -> str | None:
        """Never."""
        del cache, max_length, shapes  # part of the signature; this kernel serves all of them
        return None

    def __call__(
        self, q_TNH: Tensor, k_TKH: Tensor, v_TKH: Tensor, layer: LayerKV, step: Step, shape: AttentionShape
    ) -> Tensor:
        """See `Attend`."""
        layer.write(step.slots_T, k_TKH, v_TKH)
        return torch.cat([self._span(q_TNH[s.first : s.first + s.count], layer, step, s, shape) for s in step.spans])

    def _span(self, q_TNH: Tensor, layer: LayerKV, step: Step, span: Span, shape: AttentionShape) -> Tensor:
        if span.slots_L is None:
            assert span.base is not None, "a span has a base or slots"
            k_LKH, v_LKH = layer.view(span.base, span.base + span.length)
        else:
            k_LKH, v_LKH = layer.gather(span.slots_L)
        attend = attend_span if shape.softcap is None else attend_written_out
        return attend(q_TNH, k_LKH, v_LKH, step, span, shape)


def attend_written_out(
    q_TNH: Tensor, k_LKH: Tensor, v_LKH: Tensor, step: Step, span: Span, shape: AttentionShape
) -> Tensor:
    """attend_span in plain float32 steps, capped scores included: what everything else is tested against."""
    num_tokens, num_heads, head_dim = q_TNH.shape
    q_KGTH = q_TNH.view(num_tokens, k_LKH.shape[1], -1, head_dim).permute(1, 2, 0, 3).float()
    scores_KGTL = shape.capped(torch.matmul(q_KGTH, k_LKH.permute(1, 2, 0)[:, None].float()) * shape.scale)
    weights_KGTL = torch.softmax(scores_KGTL + step.mask(span, shape.window, torch.float32), dim=-1)
    out_KGTH = torch.matmul(weights_KGTL, v_LKH.transpose(0, 1)[:, None].float())
    return out_KGTH.permute(2, 0, 1, 3).reshape(num_tokens, num_heads, head_dim).to(q_TNH.dtype)
