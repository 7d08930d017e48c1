"""Kernel of latent attention for steps with one token of each sequence: all heads read one row of a token.

A row is a normed latent vector, which is key and value, and a rotated part, which is key alone: model.mixers.latent.
A program attends with some heads of one sequence over one split of its positions, and `merge` of attention.py takes
such heads for the heads of one kv head.
"""

import triton
import triton.language as tl

from tokenmill.kernels.triton.arithmetic import multiplied, rounded
from tokenmill.kernels.triton.attention import (
    first_seen,
    in_codes,
    largest_of,
    nothing_seen,
    slots_of,
    store_attended,
    store_part,
    turned,
    weighed,
)


@triton.jit
def newest_latent(
    row, norm_weight, cos, sin, v, e, eps, LATENT_DIM: tl.constexpr, END_DIM: tl.constexpr, ROPE_DIM: tl.constexpr,
    UNIT_OFFSET: tl.constexpr, INT8: tl.constexpr, T: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Make the two parts of the newest row, in T: [1, len(v)] and [1, len(e)]; and both as they are stored, with their
    scale. INT8: attention sees the row as it will be read of the cache.
    """
    one = tl.arange(0, 1)[:, None]
    latent = turned(
        row + one, norm_weight + one, row + one, cos, sin, v, one == 0, 0.0, eps, LATENT_DIM, 0, 1, False, False,
        UNIT_OFFSET, T, INTERPRETED,
    )  # fmt: skip
    end = turned(
        row + LATENT_DIM + one, row + one, row + one, cos, sin, e, one == 0, 0.0, eps, END_DIM, ROPE_DIM, 0, False,
        False, 0, T, INTERPRETED,
    )  # fmt: skip
    latent_stored, end_stored, scale = latent, end, 0.0
    if INT8:
        largest = tl.maximum(largest_of(latent), largest_of(end))
        latent_stored, scale = in_codes(latent, largest, INTERPRETED)
        end_stored, of_end = in_codes(end, largest, INTERPRETED)
        scale += of_end * 0.0  # NaN in either part fails its text
        latent, end = rounded(latent_stored * scale, T, INTERPRETED), rounded(end_stored * scale, T, INTERPRETED)
        latent_stored, end_stored = latent_stored.to(tl.int8), end_stored.to(tl.int8)
    return latent, end, latent_stored, end_stored, scale


@triton.jit
def read_latent_split(
    q, q_end, new_latent, new_end, rows, scales, blocks, v, e, begin, first, last, scale,
    LATENT_DIM: tl.constexpr, END_DIM: tl.constexpr, INT8: tl.constexpr, BLOCK: tl.constexpr, SPLIT: tl.constexpr,
    POSITIONS: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, T: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Attend to the positions from `first` to `last` of one split, as attention.read_split does."""
    max_score, exp_sum, value_sum = nothing_seen(HEADS, WIDTH)
    for from_ in range(begin, tl.minimum(begin + SPLIT, last + 1), POSITIONS):
        p = from_ + tl.arange(0, POSITIONS)
        seen = (p <= last) & (p >= first)
        slot, cached = slots_of(blocks, p, seen, BLOCK), seen & (p < last)
        at = rows + slot[:, None] * (LATENT_DIM + END_DIM)
        latent = tl.load(at + v[None, :], mask=cached[:, None] & (v < LATENT_DIM)[None, :], other=0)
        end = tl.load(at + LATENT_DIM + e[None, :], mask=cached[:, None] & (e < END_DIM)[None, :], other=0)
        if INT8:
            of_row = tl.load(scales + slot, mask=cached, other=0.0)[:, None]
            latent = rounded(latent.to(tl.float32) * of_row, T, INTERPRETED)
            end = rounded(end.to(tl.float32) * of_row, T, INTERPRETED)
        is_new = (p == last)[:, None]
        latent, end = tl.where(is_new, new_latent, latent), tl.where(is_new, new_end, end)
        scores = multiplied(q, tl.trans(latent), tl.zeros((HEADS, POSITIONS), tl.float32), T, INTERPRETED)
        scores = multiplied(q_end, tl.trans(end), scores, T, INTERPRETED) * scale
        max_score, exp_sum, kept, weights = weighed(scores, seen, max_score, exp_sum)
        value_sum = multiplied(rounded(weights, T, INTERPRETED), latent, value_sum * kept[:, None], T, INTERPRETED)
    return max_score, exp_sum, value_sum


@triton.jit
def attend_latent(
    q_latent, q, row, rows, scales, tables, positions, cos, sin, norm_weight, out, max_scores, exp_sums, value_sums,
    q_latent_stride, q_stride, row_stride, table_stride, out_stride, cos_stride, eps, scale,
    GROUP: tl.constexpr, LATENT_DIM: tl.constexpr, PLAIN_DIM: tl.constexpr, END_DIM: tl.constexpr,
    ROPE_DIM: tl.constexpr, UNIT_OFFSET: tl.constexpr, WINDOW: tl.constexpr, BLOCK: tl.constexpr,
    NUM_SPLITS: tl.constexpr, SPLIT: tl.constexpr, POSITIONS: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr,
    END_WIDTH: tl.constexpr, T: tl.constexpr, INT8: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Write the newest row into the cache, and attend: `out` [B, N · LATENT_DIM] of T, or what one split gives.

    q_latent: each head's query brought to the latent width, [B, N · LATENT_DIM]. q: each head has PLAIN_DIM numbers and
    END_DIM ones to be rotated, [B, N · (PLAIN_DIM + END_DIM)]. row: the newest row of each sequence before norm and
    rope, LATENT_DIM + END_DIM numbers, as in the cache `rows`; INT8: of codes, with a scale of each row. GROUP: the
    heads of one program.
    """
    b, part, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    last = tl.load(positions + b).to(tl.int32)
    first, begin = first_seen(last, WINDOW), split * SPLIT
    if (begin > last) | (begin + SPLIT <= first):
        return
    g, v, e = tl.arange(0, HEADS), tl.arange(0, WIDTH), tl.arange(0, END_WIDTH)
    heads, is_head = (part * GROUP + g)[:, None], (g < GROUP)[:, None]
    blocks, cos, sin = tables + b * table_stride, cos + last * cos_stride, sin + last * cos_stride
    ends = q + b * q_stride + heads * (PLAIN_DIM + END_DIM) + PLAIN_DIM
    q_end = turned(
        ends, ends, ends, cos, sin, e, is_head, 0.0, eps, END_DIM, ROPE_DIM, 0, False, False, 0, T, INTERPRETED
    )
    own = tl.load(
        q_latent + b * q_latent_stride + heads * LATENT_DIM + v[None, :], mask=is_head & (v < LATENT_DIM)[None, :],
        other=0.0,
    )  # fmt: skip
    latent, end, latent_stored, end_stored, of_row = newest_latent(
        row + b * row_stride, norm_weight, cos, sin, v, e, eps, LATENT_DIM, END_DIM, ROPE_DIM, UNIT_OFFSET, INT8, T,
        INTERPRETED,
    )  # fmt: skip
    if (part == 0) & (last < begin + SPLIT):
        slot = slots_of(blocks, last, last >= 0, BLOCK)
        at = rows + slot * (LATENT_DIM + END_DIM)
        tl.store(at + v[None, :], latent_stored, mask=(v < LATENT_DIM)[None, :])
        tl.store(at + LATENT_DIM + e[None, :], end_stored, mask=(e < END_DIM)[None, :])
        if INT8:
            tl.store(scales + slot + tl.arange(0, 1)[:, None], of_row)
    max_score, exp_sum, value_sum = read_latent_split(
        own, q_end, latent, end, rows, scales, blocks, v, e, begin, first, last, scale,
        LATENT_DIM, END_DIM, INT8, BLOCK, SPLIT, POSITIONS, HEADS, WIDTH, T, INTERPRETED,
    )  # fmt: skip
    if NUM_SPLITS == 1:
        store_attended(
            out, out, max_score, exp_sum, value_sum, b, part, g, v, out_stride, GROUP, LATENT_DIM, False, T, INTERPRETED
        )
    else:
        store_part(
            max_scores, exp_sums, value_sums, max_score, exp_sum, value_sum, b * tl.num_programs(1) + part, split, g, v,
            GROUP, LATENT_DIM, NUM_SPLITS,
        )  # fmt: skip
