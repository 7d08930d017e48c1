"""Kernels of attention for steps with one token of each sequence: rotate, write the new row, attend, merge.

A program attends with the heads of one kv head of one sequence over one split of its positions. Where a split begins
depends on the position alone, and splits are merged in their order: so the bits of a row do not depend on its batch, on
the lengths of others, or on the size of blocks.
"""

import triton
import triton.language as tl

from tokenmill.kernels.triton.arithmetic import multiplied, rounded, tanh


@triton.jit
def turned(
    x, norm_weight, norm_bias, cos, sin, h, seen, squares, eps, HEAD_DIM: tl.constexpr, ROPE_DIM: tl.constexpr,
    NORM: tl.constexpr, CENTRED: tl.constexpr, NORM_BIAS: tl.constexpr, UNIT_OFFSET: tl.constexpr, T: tl.constexpr,
    INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Norm and rotate heads at x [heads, 1]; return numbers of T, [heads, len(h)].

    NORM: 0 for none, 1 for each head by itself, 2 for all heads together: `squares` is the mean of theirs then.
    norm_weight, norm_bias: [heads, 1], where the numbers of each head begin. CENTRED: the mean of each head is taken
    off first.
    """
    half: tl.constexpr = ROPE_DIM // 2
    there, mean = seen & (h < HEAD_DIM)[None, :], 0.0
    own = tl.load(x + h[None, :], mask=there, other=0.0).to(tl.float32)
    if NORM == 1:
        if CENTRED:
            mean = tl.sum(own, 1)[:, None] / HEAD_DIM
            own = tl.where(there, own - mean, 0.0)
        squares = tl.sum(own * own, 1)[:, None] / HEAD_DIM
    if NORM > 0:
        factor = tl.rsqrt(squares + eps)
        weight = tl.load(norm_weight + h[None, :], mask=there, other=0.0).to(tl.float32)
        own = own * factor * (weight + UNIT_OFFSET)
        if NORM_BIAS:
            own += tl.load(norm_bias + h[None, :], mask=there, other=0.0).to(tl.float32)
    if ROPE_DIM > 0:
        turns = h < ROPE_DIM
        partner, there = tl.where(h < half, h + half, h - half), seen & turns[None, :]
        other = tl.load(x + partner[None, :], mask=there, other=0.0).to(tl.float32)
        if NORM > 0:
            weight = tl.load(norm_weight + partner[None, :], mask=there, other=0.0).to(tl.float32)
            other = (other - mean) * factor * (weight + UNIT_OFFSET)
            if NORM_BIAS:
                other += tl.load(norm_bias + partner[None, :], mask=there, other=0.0).to(tl.float32)
        cosine = tl.load(cos + h, mask=turns, other=1.0).to(tl.float32)
        sine = tl.load(sin + h, mask=turns, other=0.0).to(tl.float32)
        own = own * cosine[None, :] + tl.where(h < half, -1.0, 1.0)[None, :] * other * sine[None, :]
    return rounded(own, T, INTERPRETED)


@triton.jit
def mean_square(x, COUNT: tl.constexpr, NORM: tl.constexpr):
    """Compute the mean of the squares of COUNT numbers, in one order, where a norm takes all heads together."""
    squares = 0.0
    if NORM == 2:
        parts = tl.zeros((1024,), tl.float32)
        for first in range(0, COUNT, 1024):
            at = first + tl.arange(0, 1024)
            part = tl.load(x + at, mask=at < COUNT, other=0.0).to(tl.float32)
            parts += part * part
        squares = tl.sum(parts, 0) / COUNT
    return squares


@triton.jit
def largest_of(row):
    """Find the largest size in a row [1, H]."""
    return tl.max(tl.abs(row.to(tl.float32)), 1)[:, None]


@triton.jit
def in_codes(row, largest, INTERPRETED: tl.constexpr):
    """Round numbers of a row whose largest size is known to 8 bits, with the bits of cache.formats.int8_layer: the
    codes as floats, and the scale.

    Rows may not depend on who wrote them, so divisions are torch's: 127 / max is 1 / max times 127, and a GPU divides
    by 127 as it multiplies by 1 / 127. The size of a product is taken before it is rounded to an integer, half to even:
    a product that is added to at once would not be rounded in between.
    """
    values = row.to(tl.float32)
    inverse = tl.where(largest > 0, tl.div_rn(1.0, tl.where(largest > 0, largest, 1.0)) * 127.0, 0.0)
    size = (tl.abs(values * inverse) + 8388608.0) - 8388608.0
    size = tl.where(size <= 127.0, size, 0.0)  # of NaN, which no integer is
    scale = tl.div_rn(largest, 127.0) if INTERPRETED else largest * (1.0 / 127.0)
    return tl.where(values < 0, -size, size), scale + tl.sum(values * 0.0, 1)[:, None]  # NaN fails its text


@triton.jit
def newest(
    row, k_norm, k_bias, cos, sin, kv, h, eps, NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr, ROPE_DIM: tl.constexpr, NORM: tl.constexpr, OWN: tl.constexpr, CENTRED: tl.constexpr,
    NORM_BIAS: tl.constexpr, UNIT_OFFSET: tl.constexpr, INT8: tl.constexpr, T: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Make the newest row of K and of V of a kv head, in T: [1, len(h)] each; and both as they are stored, with scales.

    INT8: attention sees the row as it will be read of the cache.
    """
    one = tl.arange(0, 1)[:, None]
    keys = row + NUM_HEADS * HEAD_DIM
    head = kv * HEAD_DIM + one
    of_norm = head if OWN else one
    new_k = turned(
        keys + head, k_norm + of_norm, k_bias + of_norm, cos, sin, h, one == 0,
        mean_square(keys, NUM_KV_HEADS * HEAD_DIM, NORM), eps, HEAD_DIM, ROPE_DIM, NORM, CENTRED, NORM_BIAS,
        UNIT_OFFSET, T, INTERPRETED,
    )  # fmt: skip
    at = keys + (NUM_KV_HEADS + kv) * HEAD_DIM + one + h[None, :]
    new_v = rounded(tl.load(at, mask=(h < HEAD_DIM)[None, :], other=0.0).to(tl.float32), T, INTERPRETED)
    k_stored, v_stored, k_scale, v_scale = new_k, new_v, 0.0, 0.0
    if INT8:
        k_stored, k_scale = in_codes(new_k, largest_of(new_k), INTERPRETED)
        v_stored, v_scale = in_codes(new_v, largest_of(new_v), INTERPRETED)
        new_k, new_v = rounded(k_stored * k_scale, T, INTERPRETED), rounded(v_stored * v_scale, T, INTERPRETED)
        k_stored, v_stored = k_stored.to(tl.int8), v_stored.to(tl.int8)
    return new_k, new_v, k_stored, v_stored, k_scale, v_scale


@triton.jit
def store_row(
    k_rows, v_rows, k_scales, v_scales, blocks, last, kv, h, k, v, k_scale, v_scale, NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr, INT8: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the newest row of a kv head into the cache: K and V, [1, len(h)], and in 8 bits their scales."""
    place = slots_of(blocks, last, last >= 0, BLOCK) * NUM_KV_HEADS + kv + tl.arange(0, 1)[:, None]
    at = place * HEAD_DIM + h[None, :]
    tl.store(k_rows + at, k, mask=(h < HEAD_DIM)[None, :])
    tl.store(v_rows + at, v, mask=(h < HEAD_DIM)[None, :])
    if INT8:
        tl.store(k_scales + place, k_scale)
        tl.store(v_scales + place, v_scale)


@triton.jit
def first_seen(last, WINDOW: tl.constexpr):
    """Find the first position to which the last one attends. WINDOW: 0 for none."""
    first = 0
    if WINDOW > 0:
        first = tl.maximum(last - WINDOW + 1, 0)
    return first


@triton.jit
def slots_of(blocks, p, seen, BLOCK: tl.constexpr):
    """Find where the rows of positions lie in the cache; of those that are not seen, anywhere."""
    block = tl.load(blocks + p // BLOCK, mask=seen, other=0)
    return (block * BLOCK + p % BLOCK).to(tl.int64)


@triton.jit
def nothing_seen(HEADS: tl.constexpr, WIDTH: tl.constexpr):
    """Begin with no position: the maximum of the scores of each head, the sum of exponentials, the sum of values."""
    return (
        tl.full((HEADS,), -float("inf"), tl.float32), tl.zeros((HEADS,), tl.float32),
        tl.zeros((HEADS, WIDTH), tl.float32),
    )  # fmt: skip


@triton.jit
def weighed(scores, seen, max_score, exp_sum):
    """Take the scores of further positions: the new maxima and sums of exponentials, the factors of what was summed up
    before, and the exponentials.
    """
    scores = tl.where(seen[None, :], scores, -float("inf"))
    highest = tl.maximum(max_score, tl.max(scores, 1))
    # Until a position is seen, both maxima are minus infinity, and their difference would be NaN.
    known = tl.where(highest == -float("inf"), 0.0, highest)
    kept, weights = tl.exp(max_score - known), tl.exp(scores - known[:, None])
    return highest, exp_sum * kept + tl.sum(weights, 1), kept, weights


@triton.jit
def read_split(
    q, new_k, new_v, k_rows, v_rows, k_scales, v_scales, blocks, kv, h, begin, first, last, scale, softcap,
    NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, CAPPED: tl.constexpr, INT8: tl.constexpr, BLOCK: tl.constexpr,
    SPLIT: tl.constexpr, POSITIONS: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, T: tl.constexpr,
    INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Attend to the positions from `first` to `last` of one split: the maximum of the scores of each head, the sum of
    their exponentials and the sum of the values.
    """
    within = h < HEAD_DIM
    max_score, exp_sum, value_sum = nothing_seen(HEADS, WIDTH)
    for from_ in range(begin, tl.minimum(begin + SPLIT, last + 1), POSITIONS):
        p = from_ + tl.arange(0, POSITIONS)
        seen = (p <= last) & (p >= first)
        row = slots_of(blocks, p, seen, BLOCK) * NUM_KV_HEADS + kv
        at, cached = row[:, None] * HEAD_DIM + h[None, :], (seen & (p < last))[:, None] & within[None, :]
        k, v = tl.load(k_rows + at, mask=cached, other=0), tl.load(v_rows + at, mask=cached, other=0)
        if INT8:
            k_scale = tl.load(k_scales + row, mask=seen & (p < last), other=0.0)
            v_scale = tl.load(v_scales + row, mask=seen & (p < last), other=0.0)
            k = rounded(k.to(tl.float32) * k_scale[:, None], T, INTERPRETED)
            v = rounded(v.to(tl.float32) * v_scale[:, None], T, INTERPRETED)
        k, v = tl.where((p == last)[:, None], new_k, k), tl.where((p == last)[:, None], new_v, v)
        scores = multiplied(q, tl.trans(k), tl.zeros((HEADS, POSITIONS), tl.float32), T, INTERPRETED) * scale
        if CAPPED:
            scores = tanh(scores / softcap) * softcap
        max_score, exp_sum, kept, weights = weighed(scores, seen, max_score, exp_sum)
        value_sum = multiplied(rounded(weights, T, INTERPRETED), v, value_sum * kept[:, None], T, INTERPRETED)
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
def store_part(
    max_scores, exp_sums, value_sums, max_score, exp_sum, value_sum, heads, split, g, h,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, NUM_SPLITS: tl.constexpr,
):  # fmt: skip
    """Keep what one split gave, for `merge`. heads: which heads of which sequence, counted through."""
    part, wanted = (heads * NUM_SPLITS + split).to(tl.int64) * GROUP + g, g < GROUP
    tl.store(max_scores + part, max_score, mask=wanted)
    tl.store(exp_sums + part, exp_sum, mask=wanted)
    tl.store(
        value_sums + part[:, None] * HEAD_DIM + h[None, :], value_sum, mask=wanted[:, None] & (h < HEAD_DIM)[None, :]
    )


@triton.jit
def attend(
    qkv, k_rows, v_rows, k_scales, v_scales, tables, positions, cos, sin, q_norm, k_norm, q_bias, k_bias, sinks, out,
    max_scores, exp_sums, value_sums, qkv_stride, table_stride, out_stride, cos_stride, q_eps, k_eps, scale, softcap,
    NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, ROPE_DIM: tl.constexpr,
    Q_NORM: tl.constexpr, K_NORM: tl.constexpr, OWN: tl.constexpr, CENTRED: tl.constexpr, NORM_BIAS: tl.constexpr,
    UNIT_OFFSET: tl.constexpr, WINDOW: tl.constexpr, CAPPED: tl.constexpr,
    SINKS: tl.constexpr, BLOCK: tl.constexpr, NUM_SPLITS: tl.constexpr, SPLIT: tl.constexpr, POSITIONS: tl.constexpr,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, T: tl.constexpr, INT8: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Write K and V of the newest position into the cache, and attend: `out` [B, N · H] of T, or what one split gives.

    qkv: the heads of Q, K and V of each row, before norm and rope, [B, (N + 2 K) · H] float32. k_rows, v_rows: the
    cache, [slots, K, H]; INT8: of codes, with scales of each row, [slots, K]. tables: the blocks of each sequence.
    WINDOW: 0 for none. OWN: norms have weights for each head; else all heads have the same. With several splits the
    maximum of the scores, the sum of the exponentials and the sum of values go to [B, K, NUM_SPLITS, N / K(, H)].
    A row with position -1 is none: nothing of it is read or written.
    """
    group: tl.constexpr = NUM_HEADS // NUM_KV_HEADS
    b, kv, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    last = tl.load(positions + b).to(tl.int32)
    first, begin = first_seen(last, WINDOW), split * SPLIT
    if (begin > last) | (begin + SPLIT <= first):
        return
    g, h = tl.arange(0, HEADS), tl.arange(0, WIDTH)
    row, blocks = qkv + b * qkv_stride, tables + b * table_stride
    cos, sin = cos + last * cos_stride, sin + last * cos_stride
    heads = (kv * group + g)[:, None] * HEAD_DIM
    of_norm = heads if OWN else 0 * heads
    q = turned(
        row + heads, q_norm + of_norm, q_bias + of_norm, cos, sin, h, (g < group)[:, None],
        mean_square(row, NUM_HEADS * HEAD_DIM, Q_NORM), q_eps, HEAD_DIM, ROPE_DIM, Q_NORM, CENTRED, NORM_BIAS,
        UNIT_OFFSET, T, INTERPRETED,
    )  # fmt: skip
    new_k, new_v, k_stored, v_stored, k_scale, v_scale = newest(
        row, k_norm, k_bias, cos, sin, kv, h, k_eps, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, ROPE_DIM, K_NORM, OWN, CENTRED,
        NORM_BIAS, UNIT_OFFSET, INT8, T, INTERPRETED,
    )  # fmt: skip
    if last < begin + SPLIT:
        store_row(
            k_rows, v_rows, k_scales, v_scales, blocks, last, kv, h, k_stored, v_stored, k_scale, v_scale,
            NUM_KV_HEADS, HEAD_DIM, INT8, BLOCK,
        )  # fmt: skip
    max_score, exp_sum, value_sum = read_split(
        q, new_k, new_v, k_rows, v_rows, k_scales, v_scales, blocks, kv, h, begin, first, last, scale, softcap,
        NUM_KV_HEADS, HEAD_DIM, CAPPED, INT8, BLOCK, SPLIT, POSITIONS, HEADS, WIDTH, T, INTERPRETED,
    )  # fmt: skip
    if NUM_SPLITS == 1:
        store_attended(
            out, sinks, max_score, exp_sum, value_sum, b, kv, g, h, out_stride, group, HEAD_DIM, SINKS, T, INTERPRETED
        )
    else:
        store_part(
            max_scores, exp_sums, value_sums, max_score, exp_sum, value_sum, b * NUM_KV_HEADS + kv, split, g, h,
            group, HEAD_DIM, NUM_SPLITS,
        )  # fmt: skip


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
    first = first_seen(last, WINDOW)
    g, h = tl.arange(0, HEADS), tl.arange(0, WIDTH)
    wanted = (g < group)[:, None] & (h < HEAD_DIM)[None, :]
    max_score, exp_sum, value_sum = nothing_seen(HEADS, WIDTH)
    for split in range(first // SPLIT, last // SPLIT + 1):
        part = ((b * NUM_KV_HEADS + kv) * NUM_SPLITS + split).to(tl.int64) * group + g
        other = tl.load(max_scores + part, mask=g < group, other=0.0)
        highest = tl.maximum(max_score, other)
        kept, added = tl.exp(max_score - highest), tl.exp(other - highest)
        exp_sum = exp_sum * kept + tl.load(exp_sums + part, mask=g < group, other=1.0) * added
        values = tl.load(value_sums + part[:, None] * HEAD_DIM + h[None, :], mask=wanted, other=0.0)
        value_sum = value_sum * kept[:, None] + values * added[:, None]
        max_score = highest
    store_attended(
        out, sinks, max_score, exp_sum, value_sum, b, kv, g, h, out_stride, group, HEAD_DIM, SINKS, T, INTERPRETED
    )
