"""Attention written out: gather the rows of a sequence, multiply, mask, softmax, multiply.

The portable reference. It serves every block size, format and shape, and every other kernel is tested against it.
"""

import torch
from torch import Tensor

from tokenmill.cache.formats.dense import Dense
from tokenmill.cache.spec import CacheSpec
from tokenmill.cache.step import Span, Step
from tokenmill.kernels.attend import AttentionShape

__all__ = ["Gather"]


class Gather:
    """Index, matmul, softmax in float32, matmul."""

    def refuse(self, cache: CacheSpec, max_length: int, shapes: frozenset[AttentionShape]) -> str | None:
        """Never."""
        del cache, max_length, shapes  # part of the signature; this kernel serves all of them
        return None

    def __call__(
        self, q_TNH: Tensor, k_TKH: Tensor, v_TKH: Tensor, layer: Dense, step: Step, shape: AttentionShape
    ) -> Tensor:
        """See `Attend`."""
        layer.write(step.slots_T, k_TKH, v_TKH)
        return torch.cat([self._span(q_TNH[s.first : s.first + s.count], layer, step, s, shape) for s in step.spans])

    def _span(self, q_TNH: Tensor, layer: Dense, step: Step, span: Span, shape: AttentionShape) -> Tensor:
        if span.slots_L is None:
            assert span.base is not None
            k_LKH, v_LKH = layer.view(span.base, span.base + span.length)
        else:
            k_LKH, v_LKH = layer.gather(span.slots_L)
        num_tokens, num_heads, head_dim = q_TNH.shape
        num_kv_heads = k_LKH.shape[1]
        q_KGTH = q_TNH.view(num_tokens, num_kv_heads, -1, head_dim).permute(1, 2, 0, 3)
        scores_KGTL = torch.matmul(q_KGTH, k_LKH.permute(1, 2, 0)[:, None]) * shape.scale
        if shape.softcap is not None:
            scores_KGTL = torch.tanh(scores_KGTL / shape.softcap) * shape.softcap
        scores_KGTL = scores_KGTL + step.mask(span, shape.window, q_TNH.dtype)
        weights_KGTL = torch.softmax(scores_KGTL, dim=-1, dtype=torch.float32).to(q_TNH.dtype)
        out_KGTH = torch.matmul(weights_KGTL, v_LKH.transpose(0, 1)[:, None])
        return out_KGTH.permute(2, 0, 1, 3).reshape(num_tokens, num_heads, head_dim)
