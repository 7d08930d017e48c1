"""Kernels of layers that keep a state, for steps with one token of each sequence: convolve, recur, gate.

A program computes some channels, or some columns of one head's state, of one row. It reads them in the slot with which
the row begins and writes them into the slot that the row fills; both may be the same. slots [B, 2]: these two of each
row. -1: nothing to read, since a text begins with zeros, and nothing to write. Everything here is float32, and the bits
of a row depend on nothing but its own numbers.
"""

import triton
import triton.language as tl

from tokenmill.kernels.triton.arithmetic import rounded, sigmoid


@triton.jit
def softplus(x):
    """Compute log(1 + exp(x)) = max(x, 0) + log(1 + y) with y = exp(-|x|).

    log(1 + y) is twice the inverse hyperbolic tangent of s = y / (2 + y), whose series in s² <= 1/9 is exact to a
    float after eight terms; a logarithm of 1 + y would lose the digits of a small y.
    """
    y = tl.exp(-tl.abs(x))
    s = y / (2.0 + y)
    square, series = s * s, 1.0 / 15
    for n in tl.static_range(13, 0, -2):
        series = series * square + 1.0 / n
    return tl.where(x < 0.0, 0.0, x) + 2.0 * s * series  # a GPU's maximum of NaN and 0 is 0


@triton.jit
def activated_gate(x, ACTIVATION: tl.constexpr):
    """Compute an activation by its number in program.native.op_list: 0 for none, 1 for silu, 8 for the sigmoid."""
    if ACTIVATION == 1:
        return x * sigmoid(x)
    return sigmoid(x) if ACTIVATION == 8 else x


@triton.jit
def convolve(
    x, gates, weight, bias, states, slots, stride,
    CHANNELS: tl.constexpr, TAPS: tl.constexpr, GATED: tl.constexpr, HAS_BIAS: tl.constexpr, ACTIVATION: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """Convolve each channel over time with its taps, from the oldest input to the newest: x [B, CHANNELS], in place.

    GATED: the input is x times the gate of its channel. states: the last TAPS - 1 inputs, [slots, TAPS - 1, CHANNELS].
    """
    b, c = tl.program_id(0).to(tl.int64), tl.program_id(1) * TILE + tl.arange(0, TILE)
    seen, size = c < CHANNELS, (TAPS - 1) * CHANNELS
    first, filled = tl.load(slots + 2 * b), tl.load(slots + 2 * b + 1)
    newest = tl.load(x + b * stride + c, mask=seen, other=0.0)
    if GATED:
        newest = newest * tl.load(gates + b * stride + c, mask=seen, other=0.0)
    sums = tl.zeros((TILE,), tl.float32)
    for tap in tl.static_range(TAPS - 1):
        earlier = tl.load(states + first * size + tap * CHANNELS + c, mask=seen & (first >= 0), other=0.0)
        sums += earlier * tl.load(weight + c * TAPS + tap, mask=seen, other=0.0).to(tl.float32)
        if tap > 0:
            tl.debug_barrier()  # all threads have read the place that is written
            tl.store(states + filled * size + (tap - 1) * CHANNELS + c, earlier, mask=seen & (filled >= 0))
    sums += newest * tl.load(weight + c * TAPS + TAPS - 1, mask=seen, other=0.0).to(tl.float32)
    if HAS_BIAS:
        sums += tl.load(bias + c, mask=seen, other=0.0).to(tl.float32)
    tl.debug_barrier()
    tl.store(states + filled * size + (TAPS - 2) * CHANNELS + c, newest, mask=seen & (filled >= 0))
    tl.store(x + b * stride + c, activated_gate(sums, ACTIVATION), mask=seen)


@triton.jit
def unit(x, eps):
    """Bring a row to length 1."""
    return x * tl.rsqrt(tl.sum(x * x, 0) + eps)


@triton.jit
def recur(
    row_query, row_key, row_value, row_decay, row_strength, a_log, dt_bias, skip, states, slots,
    stride, eps, scale, max_strength, min_step, max_step,
    DELTA: tl.constexpr, EACH_DECAYS: tl.constexpr, HEADS: tl.constexpr, KEY_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, COLUMNS: tl.constexpr, KEYS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Take one token of each row into the states of its heads, and read them: the result takes the value's place.

        S <- decay · S;  S <- S + key ⊗ change;  out = queryᵀ S

    DELTA: change = (value - keyᵀ S) · strength, and queries and keys are brought to length 1; otherwise change = step ·
    value, and skip · value is added to the output. EACH_DECAYS: each number of a key has a decay of its own. row_*:
    columns of one tensor of products, [B, ·]. states: [slots, HEADS, VALUE_DIM / COLUMNS, KEY_DIM, COLUMNS]. A program
    has TILE columns of a head, all in one slice.
    """
    b, head, part = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    tiles: tl.constexpr = (COLUMNS + TILE - 1) // TILE
    k, c = tl.arange(0, KEYS), part % tiles * TILE + tl.arange(0, TILE)
    of_slice, is_key, is_column = part // tiles, k < KEY_DIM, c < COLUMNS
    of_key = b * stride + head // (HEADS // KEY_HEADS) * KEY_DIM + k
    query = tl.load(row_query + of_key, mask=is_key, other=0.0)
    key = tl.load(row_key + of_key, mask=is_key, other=0.0)
    value_at = row_value + b * stride + head * VALUE_DIM + of_slice * COLUMNS + c
    value = tl.load(value_at, mask=is_column, other=0.0)
    if EACH_DECAYS:
        of_decay, is_decay = head * KEY_DIM + k, is_key
    else:
        of_decay, is_decay = head + tl.arange(0, 1), tl.arange(0, 1) == 0
    given = tl.load(row_decay + b * stride + of_decay, mask=is_decay, other=0.0)
    step = softplus(given + tl.load(dt_bias + of_decay, mask=is_decay, other=0.0).to(tl.float32))
    if not DELTA:
        step = tl.where(step < min_step, min_step, tl.where(step > max_step, max_step, step))
    decay = tl.exp(-tl.exp(tl.load(a_log + head).to(tl.float32)) * step)
    first, filled = tl.load(slots + 2 * b), tl.load(slots + 2 * b + 1)
    at = ((head * (VALUE_DIM // COLUMNS) + of_slice) * KEY_DIM + k)[:, None] * COLUMNS + c[None, :]
    there, size = is_key[:, None] & is_column[None, :], HEADS * KEY_DIM * VALUE_DIM
    state = tl.load(states + first * size + at, mask=there & (first >= 0), other=0.0) * decay[:, None]
    if DELTA:
        query, key = unit(query, eps) * scale, unit(key, eps)
        strength = sigmoid(tl.load(row_strength + b * stride + head)) * max_strength
        change = (value - tl.sum(state * key[:, None], 0)) * strength
    else:
        change = value * step
    state += key[:, None] * change[None, :]
    out = tl.sum(state * query[:, None], 0)
    if not DELTA:
        out += value * tl.load(skip + head).to(tl.float32)
    tl.debug_barrier()  # all threads have read the places that are written
    tl.store(states + filled * size + at, state, mask=there & (filled >= 0))
    tl.store(value_at, out, mask=is_column)


@triton.jit
def gated_part(x, gates, i, WIDTH: tl.constexpr, ACTIVATION: tl.constexpr):
    """Read some numbers of a group, and their gates."""
    factors = tl.load(gates + i, mask=i < WIDTH, other=0.0).to(tl.float32)
    return tl.load(x + i, mask=i < WIDTH, other=0.0).to(tl.float32), activated_gate(factors, ACTIVATION)


@triton.jit
def gate(
    x, gates, weight, out, x_stride, gate_stride, out_stride, weight_stride, eps,
    WIDTH: tl.constexpr, ACTIVATION: tl.constexpr, NORM: tl.constexpr, NORM_FIRST: tl.constexpr, INPUTS: tl.constexpr,
    T: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Multiply by gates: out = x · act(gates), [B, groups · WIDTH] of T. A program takes one group of one row.

    NORM: norm(x) · act(gates) if NORM_FIRST, else norm(x · act(gates)); each group is normed by itself. weight_stride:
    WIDTH where a group has weights of its own, 0 where all share them.
    """
    b, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    x, gates, out = (
        x + b * x_stride + group * WIDTH, gates + b * gate_stride + group * WIDTH, out + b * out_stride + group * WIDTH,
    )  # fmt: skip
    factor = 1.0
    if NORM:
        squares = tl.zeros((INPUTS,), tl.float32)
        for first in range(0, WIDTH, INPUTS):
            part, factors = gated_part(x, gates, first + tl.arange(0, INPUTS), WIDTH, ACTIVATION)
            part = part if NORM_FIRST else part * factors
            squares += part * part
        factor = tl.rsqrt(tl.sum(squares, 0) / WIDTH + eps)
    for first in range(0, WIDTH, INPUTS):
        i = first + tl.arange(0, INPUTS)
        part, factors = gated_part(x, gates, i, WIDTH, ACTIVATION)
        made = part * factors
        if NORM:
            made = made * factor * tl.load(weight + group * weight_stride + i, mask=i < WIDTH, other=0.0).to(tl.float32)
        tl.store(out + i, rounded(made, T, INTERPRETED), mask=i < WIDTH)
