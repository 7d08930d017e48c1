"""Kernels of attention for steps with one token of each sequence: rotate, write the new row, attend, merge.

A program attends with the heads of one kv head of one sequence over one split of its positions. Where a split begins
depends on the position alone, and splits are merged in their order: so the bits of a row do not depend on its batch, on
the lengths of others, or on the size of blocks.
"""

import triton
import triton.language as tl

from tokenmill.kernels.triton.arithmetic import multiplied, rounded, tanh

SPLIT = 256
"""Positions that one program reads. A context of 8,192 tokens then has 32 programs for each kv head: with 8 kv heads
256 programs, where an H100 has 132 processors."""


@triton.jit
def turned(
    x, norm_weight, cos, sin, h, seen, eps, HEAD_DIM: tl.constexpr, ROPE_DIM: tl.constexpr,
    NORM: tl.constexpr, UNIT_OFFSET: tl.constexpr, T: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Norm and rotate heads at x [heads, 1]; return numbers of T, [heads, len(h)]."""
    half: tl.constexpr = ROPE_DIM // 2
    own = tl.load(x + h[None, :], mask=seen & (h < HEAD_DIM)[None, :], other=0.0).to(tl.float32)
    if NORM:
        factor = tl.rsqrt(tl.sum(own * own, 1) / HEAD_DIM + eps)[:, None]
        weight = tl.load(norm_weight + h, mask=h < HEAD_DIM, other=0.0).to(tl.float32) + UNIT_OFFSET
        own = own * factor * weight[None, :]
    if ROPE_DIM > 0:
        turns = h < ROPE_DIM
        partner = tl.where(h < half, h + half, h - half)
        other = tl.load(x + partner[None, :], mask=seen & turns[None, :], other=0.0).to(tl.float32)
        if NORM:
            weight = tl.load(norm_weight + partner, mask=turns, other=0.0).to(tl.float32) + UNIT_OFFSET
            other = other * factor * weight[None, :]
        cosine = tl.load(cos + h, mask=turns, other=1.0).to(tl.float32)
        sine = tl.load(sin + h, mask=turns, other=0.0).to(tl.float32)
        own = own * cosine[None, :] + tl.where(h < half, -1.0, 1.0)[None, :] * other * sine[None, :]
    return rounded(own, T, INTERPRETED)


@triton.jit
def newest(
    row, k_norm, cos, sin, kv, h, eps, NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
    ROPE_DIM: tl.constexpr, NORM: tl.constexpr, UNIT_OFFSET: tl.constexpr, CACHE: tl.constexpr,
    INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Make the newest row of K and of V of a kv head, as the cache has them: [1, len(h)] each."""
    one = tl.arange(0, 1)[:, None]
    new_k = turned(
        row + (NUM_HEADS + kv) * HEAD_DIM + one, k_norm, cos, sin, h, one == 0, eps,
        HEAD_DIM, ROPE_DIM, NORM, UNIT_OFFSET, CACHE, INTERPRETED,
    )  # fmt: skip
    at = row + (NUM_HEADS + NUM_KV_HEADS + kv) * HEAD_DIM + one + h[None, :]
    return new_k, rounded(tl.load(at, mask=(h < HEAD_DIM)[None, :], other=0.0).to(tl.float32), CACHE, INTERPRETED)


@triton.jit
def read_split(
    q, new_k, new_v, k_rows, v_rows, blocks, kv, h, begin, first, last, scale, softcap,
    NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, CAPPED: tl.constexpr, BLOCK: tl.constexpr, SPLIT: tl.constexpr,
    POSITIONS: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, T: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Attend to the positions from `first` to `last` of one split: the maximum of the scores of each head, the sum of
    their exponentials and the sum of the values.
    """
    within = h < HEAD_DIM
    max_score = tl.full((HEADS,), -float("inf"), tl.float32)
    exp_sum = tl.zeros((HEADS,), tl.float32)
    value_sum = tl.zeros((HEADS, WIDTH), tl.float32)
    for from_ in range(begin, tl.minimum(begin + SPLIT, last + 1), POSITIONS):
        p = from_ + tl.arange(0, POSITIONS)
        seen = (p <= last) & (p >= first)
        block = tl.load(blocks + p // BLOCK, mask=seen, other=0)
        at = ((block * BLOCK + p % BLOCK) * NUM_KV_HEADS + kv).to(tl.int64)[:, None] * HEAD_DIM + h[None, :]
        cached = (seen & (p < last))[:, None] & within[None, :]
        k = tl.where((p == last)[:, None], new_k, tl.load(k_rows + at, mask=cached, other=0.0))
        v = tl.where((p == last)[:, None], new_v, tl.load(v_rows + at, mask=cached, other=0.0))
        scores = multiplied(q, tl.trans(k), tl.zeros((HEADS, POSITIONS), tl.float32), T, INTERPRETED) * scale
        if CAPPED:
            scores = tanh(scores / softcap) * softcap
        scores = tl.where(seen[None, :], scores, -float("inf"))
        highest = tl.maximum(max_score, tl.max(scores, 1))
        # Until a position is seen, both maxima are minus infinity, and their difference would be NaN.
        known = tl.where(highest == -float("inf"), 0.0, highest)
        kept, weights = tl.exp(max_score - known), tl.exp(scores - known[:, None])
        exp_sum = exp_sum * kept + tl.sum(weights, 1)
        value_sum = multiplied(rounded(weights, T, INTERPRETED), v, value_sum * kept[:, None], T, INTERPRETED)
        max_score = highest
    return max_score, exp_sum, value_sum


@triton.jit
def store_attended(
    out, sinks, max_score, exp_sum, value_sum, b, kv, g, h, out_stride,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, SINKS: tl.constexpr, T: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Divide the sums of values by the sums of exponentials, to which a sink adds: one more score without a value."""
    seen = (g < GROUP)[:, None] & (h < HEAD_DIM)[None, :]
    if SINKS:
        sink = tl.load(sinks + kv * GROUP + g, mask=g < GROUP, other=0.0).to(tl.float32)
        highest = tl.maximum(max_score, sink)
        kept = tl.exp(max_score - highest)
        exp_sum, value_sum = exp_sum * kept + tl.exp(sink - highest), value_sum * kept[:, None]
    to = out + b * out_stride + (kv * GROUP + g)[:, None] * HEAD_DIM + h[None, :]
    tl.store(to, rounded(value_sum / exp_sum[:, None], T, INTERPRETED), mask=seen)


@triton.jit
def attend(
    qkv, k_rows, v_rows, tables, positions, cos, sin, q_norm, k_norm, sinks, out, max_scores, exp_sums, value_sums,
    qkv_stride, table_stride, out_stride, cos_stride, q_eps, k_eps, scale, softcap,
    NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, ROPE_DIM: tl.constexpr,
    Q_NORM: tl.constexpr, K_NORM: tl.constexpr, UNIT_OFFSET: tl.constexpr, WINDOW: tl.constexpr, CAPPED: tl.constexpr,
    SINKS: tl.constexpr, BLOCK: tl.constexpr, NUM_SPLITS: tl.constexpr, SPLIT: tl.constexpr, POSITIONS: tl.constexpr,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, T: tl.constexpr, CACHE: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Write K and V of the newest position into the cache, and attend: `out` [B, N · H] of T, or what one split gives.

    qkv: the heads of Q, K and V of each row, before norm and rope, [B, (N + 2 K) · H] float32. k_rows, v_rows: the
    cache, [slots, K, H]. tables: the blocks of each sequence. WINDOW: 0 for none. With several splits the maximum of
    the scores, the sum of the exponentials and the sum of values go to [B, K, NUM_SPLITS, HEADS(, WIDTH)].
    A row with position -1 is none: nothing of it is read or written.
    """
    group: tl.constexpr = NUM_HEADS // NUM_KV_HEADS
    b, kv, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    last, first = tl.load(positions + b).to(tl.int32), 0
    if WINDOW > 0:
        first = tl.maximum(last - WINDOW + 1, 0)
    begin = split * SPLIT
    if (begin > last) | (begin + SPLIT <= first):
        return
    g, h = tl.arange(0, HEADS), tl.arange(0, WIDTH)
    row, blocks = qkv + b * qkv_stride, tables + b * table_stride
    cos, sin = cos + last * cos_stride, sin + last * cos_stride
    q = turned(
        row + (kv * group + g)[:, None] * HEAD_DIM, q_norm, cos, sin, h, (g < group)[:, None], q_eps,
        HEAD_DIM, ROPE_DIM, Q_NORM, UNIT_OFFSET, T, INTERPRETED,
    )  # fmt: skip
    new_k, new_v = newest(
        row, k_norm, cos, sin, kv, h, k_eps, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, ROPE_DIM, K_NORM, UNIT_OFFSET, CACHE,
        INTERPRETED,
    )  # fmt: skip
    if last < begin + SPLIT:
        slot = tl.load(blocks + last // BLOCK) * BLOCK + last % BLOCK
        at = (slot * NUM_KV_HEADS + kv).to(tl.int64) * HEAD_DIM + tl.arange(0, 1)[:, None] + h[None, :]
        tl.store(k_rows + at, new_k, mask=(h < HEAD_DIM)[None, :])
        tl.store(v_rows + at, new_v, mask=(h < HEAD_DIM)[None, :])
    max_score, exp_sum, value_sum = read_split(
        q, new_k, new_v, k_rows, v_rows, blocks, kv, h, begin, first, last, scale, softcap,
        NUM_KV_HEADS, HEAD_DIM, CAPPED, BLOCK, SPLIT, POSITIONS, HEADS, WIDTH, T, INTERPRETED,
    )  # fmt: skip
    if NUM_SPLITS == 1:
        store_attended(
            out, sinks, max_score, exp_sum, value_sum, b, kv, g, h, out_stride, group, HEAD_DIM, SINKS, T, INTERPRETED
        )
    else:
        part = ((b * NUM_KV_HEADS + kv) * NUM_SPLITS + split).to(tl.int64) * HEADS + g
        tl.store(max_scores + part, max_score)
        tl.store(exp_sums + part, exp_sum)
        tl.store(value_sums + part[:, None] * WIDTH + h[None, :], value_sum)


@triton.jit
def merge(
    positions, sinks, out, max_scores, exp_sums, value_sums, out_stride,
    NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, WINDOW: tl.constexpr,
    SINKS: tl.constexpr, NUM_SPLITS: tl.constexpr, SPLIT: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr,
    T: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Merge what the splits of one kv head of one sequence gave, in their order."""
    group: tl.constexpr = NUM_HEADS // NUM_KV_HEADS
    b, kv = tl.program_id(0), tl.program_id(1)
    last = tl.load(positions + b).to(tl.int32)
    if last < 0:
        return
    first = 0
    if WINDOW > 0:
        first = tl.maximum(last - WINDOW + 1, 0)
    g, h = tl.arange(0, HEADS), tl.arange(0, WIDTH)
    max_score = tl.full((HEADS,), -float("inf"), tl.float32)
    exp_sum = tl.zeros((HEADS,), tl.float32)
    value_sum = tl.zeros((HEADS, WIDTH), tl.float32)
    for split in range(first // SPLIT, last // SPLIT + 1):
        part = ((b * NUM_KV_HEADS + kv) * NUM_SPLITS + split).to(tl.int64) * HEADS + g
        other = tl.load(max_scores + part)
        highest = tl.maximum(max_score, other)
        kept, added = tl.exp(max_score - highest), tl.exp(other - highest)
        exp_sum = exp_sum * kept + tl.load(exp_sums + part) * added
        values = tl.load(value_sums + part[:, None] * WIDTH + h[None, :])
        value_sum = value_sum * kept[:, None] + values * added[:, None]
        max_score = highest
    store_attended(
        out, sinks, max_score, exp_sum, value_sum, b, kv, g, h, out_stride, group, HEAD_DIM, SINKS, T, INTERPRETED
    )
