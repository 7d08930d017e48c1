"""Attention backends gather and rows: rows of any blocks, or views of one contiguous block, by torch's SDPA with
grouped heads, or by plain arithmetic where SDPA cannot serve.

Gathered rows have the layout of the view, and one function attends to both, so the block size cannot change a bit.
"""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from tokenmill.cache.formats.layer import LayerKV
from tokenmill.cache.spec import CacheSpec
from tokenmill.cache.step import Span, Step
from tokenmill.kernels.attend import AttentionShape, Shapes
from tokenmill.kernels.attend.kernel import Attend, capped


class Gather(Attend):
    """The portable reference, for every block size, format and shape."""

    def attend(
        self, q_TNH: Tensor, layer: LayerKV, step: Step, shape: AttentionShape, sinks_N: Tensor | None
    ) -> Tensor:
        assert isinstance(step, Step), "chosen for packed steps"
        parts = []
        for span in step.spans:
            first = span.first_key(shape.window)
            if span.slots_L is None:
                assert span.base is not None, "a span has a base or slots"
                k_LKH, v_LKH = layer.gather(slice(span.base + first, span.base + span.length))
            else:
                k_LKH, v_LKH = layer.gather(span.slots_L[first:])
            q = q_TNH if len(step.spans) == 1 else q_TNH[span.first : span.first + span.count]
            # SDPA sums heads whose rows lie unaligned in an order that depends on how many lie beside each other.
            if shape.is_plain and k_LKH.shape == v_LKH.shape and (q.dtype != torch.float32 or q.shape[-1] % 4 == 0):
                parts.append(_attend_span(q, k_LKH, v_LKH, step, span, shape))
            else:
                parts.append(attend_written_out(q, k_LKH, v_LKH, step, span, shape, sinks_N))
        return parts[0] if len(parts) == 1 else torch.cat(parts)


class ContiguousRows(Gather):
    """Gather where it never gathers: it refuses all but contiguous rows and plain scores."""

    def refuse(self, cache: CacheSpec, device: torch.device, max_length: int, shapes: Shapes) -> str | None:
        if cache.block_size < max_length:
            return f"needs one block per sequence, and block_size {cache.block_size} is under max_length {max_length}"
        if not all(shape.is_plain for shape in shapes):
            return "has neither caps of attention scores, nor attention sinks, nor a bias by distance"
        return None


def _attend_span(q_TNH: Tensor, k_LKH: Tensor, v_LKH: Tensor, step: Step, span: Span, shape: AttentionShape) -> Tensor:
    """Attend with one span's queries over its own rows by torch's SDPA: [T, N, H]. L: rows that they see. Scores are
    plain.

    The grouped-query mode of SDPA repeats K and V in memory (571 µs a layer at 1,000 tokens in bfloat16 on 2 cores);
    here a decoding query's heads are laid out as rows of their kv head, which reads the cache once (108 µs).
    """
    num_tokens, num_heads, head_dim = q_TNH.shape
    num_kv_heads = k_LKH.shape[1]
    if span.count == 1:
        k_KLH, v_KLH = k_LKH.transpose(0, 1), v_LKH.transpose(0, 1)
        q_KGH = q_TNH.view(num_kv_heads, -1, head_dim)
        out_KGH = scaled_dot_product_attention(q_KGH[None], k_KLH[None], v_KLH[None], scale=shape.scale)
        return out_KGH.reshape(1, num_heads, head_dim)  # on CUDA the result has another layout
    group = num_heads // num_kv_heads
    # Stride 0 over the heads of a group: shared, not copied.
    k_KGLH = k_LKH.transpose(0, 1)[:, None].expand(-1, group, -1, -1)
    v_KGLH = v_LKH.transpose(0, 1)[:, None].expand(-1, group, -1, -1)
    q_KGTH = q_TNH.view(num_tokens, num_kv_heads, group, head_dim).permute(1, 2, 0, 3)
    is_whole = span.start == 0 and shape.window is None
    causal = is_whole and not shape.both_ways
    mask = None if is_whole else step.mask(span, shape.window, shape.both_ways, q_TNH.dtype)
    out_KGTH = scaled_dot_product_attention(q_KGTH, k_KGLH, v_KGLH, mask, is_causal=causal, scale=shape.scale)
    return out_KGTH.permute(2, 0, 1, 3).reshape(num_tokens, num_heads, head_dim)


def attend_written_out(
    q_TNH: Tensor, k_LKH: Tensor, v_LKH: Tensor, step: Step, span: Span, shape: AttentionShape, sinks_N: Tensor | None
) -> Tensor:
    """Compute _attend_span in plain float32 steps, with caps, sinks and a bias: the reference of the tests.

    Each kv head is computed by itself, from copies: products of torch sum in an order that depends on how many there
    are, and how their rows lie in memory, and a rank has fewer heads than one process.
    """
    num_tokens, num_heads, head_dim = q_TNH.shape
    num_kv_heads = k_LKH.shape[1]
    q_KGTH = q_TNH.view(num_tokens, num_kv_heads, -1, head_dim).permute(1, 2, 0, 3)
    sinks_KG = [None] * num_kv_heads if sinks_N is None else sinks_N.float().view(num_kv_heads, -1)
    mask_TL = step.mask(span, shape.window, shape.both_ways, torch.float32)
    added_K = step.bias.added_to(mask_TL, span, num_kv_heads) if shape.distances else [mask_TL] * num_kv_heads
    heads_KLH = zip(q_KGTH, k_LKH.unbind(1), v_LKH.unbind(1), sinks_KG, added_K, strict=True)
    out_KGTH = torch.stack([_attend_head(*head, shape) for head in heads_KLH])
    return out_KGTH.permute(2, 0, 1, 3).reshape(num_tokens, num_heads, -1).to(q_TNH.dtype)


def _attend_head(
    q_GTH: Tensor, k_LH: Tensor, v_LH: Tensor, sinks_G: Tensor | None, added_GTL: Tensor, shape: AttentionShape
) -> Tensor:
    """Attend with the queries of one kv head: [G, T, H]."""
    q_RH, size = _copy(q_GTH).flatten(0, 1), q_GTH.shape[:2]
    scores_GTL = capped((q_RH @ _copy(k_LH).t()).view(*size, -1) * shape.scale, shape) + added_GTL
    if sinks_G is None:
        weights_GTL = torch.softmax(scores_GTL, dim=-1)
    else:
        sinks_GT1 = sinks_G[:, None, None].expand(*size, 1)
        weights_GTL = torch.softmax(torch.cat((scores_GTL, sinks_GT1), dim=-1), dim=-1)[..., :-1]
    out_RH = weights_GTL.flatten(0, 1) @ _copy(v_LH)
    return out_RH.view(*size, -1)


def _copy(values: Tensor) -> Tensor:
    """Copy values to float32, into memory whose layout their shape decides."""
    return torch.empty(values.shape, dtype=torch.float32, device=values.device).copy_(values)
