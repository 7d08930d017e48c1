"""Kernel of a matrix product of up to 16 rows a tile, with the norm before it and what follows it.

Each program computes some outputs of one tile of rows over all inputs, in one order: the bits of a row depend on
nothing but its own numbers and the matrix. Weights are read once for all rows of a tile.
"""

import triton
import triton.language as tl

from tokenmill.kernels.triton.arithmetic import ROWS, activated, multiplied, rounded, sigmoid


@triton.jit
def power_of(exponent):
    """Make the bits of 2 to the power of exponent - 128, as float32; the two smallest are subnormal."""
    bits = tl.where(exponent > 1, (exponent - 1) << 23, 0x200000 << tl.minimum(exponent, 1))
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def twice(codes):
    """Compute twice the numbers of E2M1 codes. As a float16 number a sign, two bits of the exponent and one of the
    fraction, each in its place, are 2 to the power of -14 times the number; 0.5 is subnormal in both.
    """
    codes = codes.to(tl.int16)
    bits = ((codes & 8) << 12) | ((codes & 7) << 9)
    return bits.to(tl.float16, bitcast=True).to(tl.float32) * 32768.0


@triton.jit
def scaled(
    codes, scales, minimums, f, first, num_inputs, seen, OUTPUTS: tl.constexpr, GROUPS: tl.constexpr,
    BITS: tl.constexpr, E2M1: tl.constexpr, FACTORED: tl.constexpr, HAS_MINIMUMS: tl.constexpr, T: tl.constexpr,
    INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Multiply codes [OUTPUTS, GROUPS · n] by the scales of their groups, see quant.stored: numbers of T.

    FACTORED: `minimums` are the integer factors of each 16 inputs, [outputs, inputs / 16]. E2M1: scales are exponents.
    """
    groups = (num_inputs + 31) // 32
    group = first // 32 + tl.arange(0, GROUPS)
    at = f.to(tl.int64)[:, None] * groups + group[None, :]
    there = seen & (group < groups)[None, :]
    scale = tl.load(scales + at, mask=there, other=0)
    scale = (power_of(scale.to(tl.int32)) if E2M1 else scale.to(tl.float32))[:, :, None]
    if E2M1:
        values = tl.reshape(twice(codes), (OUTPUTS, GROUPS, codes.shape[1] // GROUPS)) * scale
    elif FACTORED:
        half = first // 16 + tl.arange(0, 2 * GROUPS)
        at = f.to(tl.int64)[:, None] * (2 * groups) + half[None, :]
        factor = tl.load(minimums + at, mask=seen & (half < 2 * groups)[None, :], other=0).to(tl.float32)
        codes = tl.reshape(codes, (OUTPUTS, 2 * GROUPS, codes.shape[1] // (2 * GROUPS))).to(tl.float32)
        signed = (codes - (1 << (BITS - 1))) * factor[:, :, None]
        values = tl.reshape(signed, (OUTPUTS, GROUPS, 2 * signed.shape[2])) * scale
    else:
        values = tl.reshape(codes, (OUTPUTS, GROUPS, codes.shape[1] // GROUPS)).to(tl.float32)
        if HAS_MINIMUMS:
            values = values * scale + tl.load(minimums + at, mask=there, other=0.0).to(tl.float32)[:, :, None]
        else:
            values = (values - (1 << (BITS - 1))) * scale
    return rounded(tl.reshape(values, (OUTPUTS, GROUPS * values.shape[2])), T, INTERPRETED)


@triton.jit
def add_products(
    sums, a, a_high, numbers, scales, minimums, f, first, num_inputs, num_outputs,
    BITS: tl.constexpr, PAIRED: tl.constexpr, E2M1: tl.constexpr, FACTORED: tl.constexpr, HAS_MINIMUMS: tl.constexpr,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, T: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Add the products of a tile of rows with weights [OUTPUTS, INPUTS].

    PAIRED: a byte has the codes of an input and of the 16th behind it, and a_high are the rows of the latter.
    """
    made = (f < num_outputs)[:, None]
    halves: tl.constexpr = 2 if PAIRED else 1
    row_size = num_inputs if BITS == 0 else (num_inputs + 31) // 32 * 32 // halves
    j = first // halves + tl.arange(0, INPUTS // halves)
    tile = tl.load(
        numbers + f.to(tl.int64)[:, None] * row_size + j[None, :], mask=made & (j < row_size)[None, :], other=0
    )
    for half in tl.static_range(halves):
        part, rows = tile, a
        if PAIRED:
            part = (tile >> (4 * half)) & 15
        if half == 1:
            rows = a_high
        if BITS > 0:
            part = scaled(
                part, scales, minimums, f, first, num_inputs, made, OUTPUTS, INPUTS // 32,
                BITS, E2M1, FACTORED, HAS_MINIMUMS, T, INTERPRETED,
            )  # fmt: skip
        sums = multiplied(rows, tl.trans(part), sums, T, INTERPRETED)
    return sums


@triton.jit
def normed(
    a, norm_weight, norm_bias, mean, factor, k, num_inputs, CENTRED: tl.constexpr, NORM_BIAS: tl.constexpr,
    UNIT_OFFSET: tl.constexpr, T: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Multiply rows by a factor of each row and the weights of a norm, numbers of T. CENTRED: without their means."""
    weight = tl.load(norm_weight + k, mask=k < num_inputs, other=0.0).to(tl.float32) + UNIT_OFFSET
    if CENTRED:
        a = tl.where((k < num_inputs)[None, :], a - mean[:, None], 0.0)
    a = a * factor[:, None] * weight[None, :]
    if NORM_BIAS:
        a += tl.load(norm_bias + k, mask=k < num_inputs, other=0.0).to(tl.float32)[None, :]
    return rounded(a, T, INTERPRETED)


@triton.jit
def in_pairs(a, INPUTS: tl.constexpr):
    """Take rows [ROWS, INPUTS] apart: the first 16 inputs of each group of 32, and the last 16."""
    low, high = tl.split(tl.permute(tl.reshape(a, (ROWS, INPUTS // 32, 2, 16)), (0, 1, 3, 2)))
    return tl.reshape(low, (ROWS, INPUTS // 2)), tl.reshape(high, (ROWS, INPUTS // 2))


@triton.jit
def finished(
    sums, up_sums, bias, f, num_outputs, multiplier, up_multiplier, alpha, limit,
    GATED: tl.constexpr, ACTIVATION: tl.constexpr, HAS_BIAS: tl.constexpr, CLAMPED: tl.constexpr,
):  # fmt: skip
    """Add the bias, multiply, activate, multiply gates by their factors. CLAMPED: as model.layers.clamped_swiglu."""
    if HAS_BIAS:
        sums += tl.load(bias + f, mask=f < num_outputs, other=0.0).to(tl.float32)[None, :]
        if GATED:
            up_sums += tl.load(bias + num_outputs + f, mask=f < num_outputs, other=0.0).to(tl.float32)[None, :]
    sums = sums * multiplier
    if CLAMPED:
        gates, factors = tl.where(sums > limit, limit, sums), up_sums * up_multiplier  # which keep what is no number
        factors = tl.where(factors > limit, limit, tl.where(factors < -limit, -limit, factors))
        return (factors + 1.0) * (gates * sigmoid(alpha * gates))
    if ACTIVATION > 0:
        sums = activated(sums, ACTIVATION)
    if GATED:
        sums = sums * (up_sums * up_multiplier)
    return sums


@triton.jit
def mean_and_factor(rows, there, num_inputs, eps, CENTRED: tl.constexpr, INPUTS: tl.constexpr):
    """Compute the mean of each row, 0 unless CENTRED, and 1 / the root of the mean square of what differs from it."""
    mean, squares = tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS,), tl.float32)
    if CENTRED:
        for first in range(0, num_inputs, INPUTS):
            k = first + tl.arange(0, INPUTS)
            mean += tl.sum(
                tl.load(rows + k[None, :], mask=there & (k < num_inputs)[None, :], other=0.0).to(tl.float32), 1
            )
        mean = mean / num_inputs
    for first in range(0, num_inputs, INPUTS):
        k = first + tl.arange(0, INPUTS)
        part = tl.load(rows + k[None, :], mask=there & (k < num_inputs)[None, :], other=0.0).to(tl.float32)
        if CENTRED:
            part = tl.where((k < num_inputs)[None, :], part - mean[:, None], 0.0)
        squares += tl.sum(part * part, 1)
    return mean, tl.rsqrt(squares / num_inputs + eps)


@triton.jit
def summed(
    rows, there, norm_weight, norm_bias, numbers, scales, minimums, f, num_inputs, num_outputs, eps,
    NORM: tl.constexpr, CENTRED: tl.constexpr, NORM_BIAS: tl.constexpr, UNIT_OFFSET: tl.constexpr,
    TWO_PASSES: tl.constexpr, GATED: tl.constexpr,
    BITS: tl.constexpr, PAIRED: tl.constexpr, E2M1: tl.constexpr, FACTORED: tl.constexpr, HAS_MINIMUMS: tl.constexpr,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, T: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Add up the products of rows, normed, with weights f; of gated matrices also the products with the factors."""
    sums, up_sums = tl.zeros((ROWS, OUTPUTS), tl.float32), tl.zeros((ROWS, OUTPUTS), tl.float32)
    squares, factor, mean = tl.zeros((ROWS,), tl.float32), tl.full((ROWS,), 1.0, tl.float32), 0.0
    if TWO_PASSES:
        mean, factor = mean_and_factor(rows, there, num_inputs, eps, CENTRED, INPUTS)
    for first in range(0, num_inputs, INPUTS):
        k = first + tl.arange(0, INPUTS)
        a = tl.load(rows + k[None, :], mask=there & (k < num_inputs)[None, :], other=0.0)
        if NORM:
            a = a.to(tl.float32)
            squares += tl.sum(a * a, 1)
            a = normed(
                a, norm_weight, norm_bias, mean, factor, k, num_inputs, CENTRED, NORM_BIAS, UNIT_OFFSET, T, INTERPRETED
            )
        a_high = a
        if PAIRED:
            a, a_high = in_pairs(a, INPUTS)
        sums = add_products(
            sums, a, a_high, numbers, scales, minimums, f, first, num_inputs, num_outputs,
            BITS, PAIRED, E2M1, FACTORED, HAS_MINIMUMS, OUTPUTS, INPUTS, T, INTERPRETED,
        )  # fmt: skip
        if GATED:
            up_sums = add_products(
                up_sums, a, a_high, numbers, scales, minimums, f + num_outputs, first, num_inputs, 2 * num_outputs,
                BITS, PAIRED, E2M1, FACTORED, HAS_MINIMUMS, OUTPUTS, INPUTS, T, INTERPRETED,
            )  # fmt: skip
    if NORM and not TWO_PASSES:
        factor = tl.rsqrt(squares / num_inputs + eps)
        sums, up_sums = sums * factor[:, None], up_sums * factor[:, None]
    return sums, up_sums


@triton.jit(do_not_specialize=["num_rows"])  # code for one row alone could have another order of sums
def product(
    x, norm_weight, norm_bias, numbers, scales, minimums, bias, out, chosen, places,
    num_rows, num_inputs, num_outputs, x_stride, out_stride, x_head_stride, out_head_stride, numbers_stride,
    scales_stride, bias_stride, eps, multiplier, up_multiplier, added_multiplier, alpha, limit,
    CHOSEN: tl.constexpr, BY_HEADS: tl.constexpr, SEVERAL: tl.constexpr, READS_PAIRS: tl.constexpr,
    CLAMPED: tl.constexpr, NORM: tl.constexpr, CENTRED: tl.constexpr, NORM_BIAS: tl.constexpr,
    UNIT_OFFSET: tl.constexpr, TWO_PASSES: tl.constexpr, GATED: tl.constexpr, ACTIVATION: tl.constexpr,
    HAS_BIAS: tl.constexpr, ADDS: tl.constexpr, BITS: tl.constexpr, PAIRED: tl.constexpr, E2M1: tl.constexpr,
    FACTORED: tl.constexpr, HAS_MINIMUMS: tl.constexpr, T: tl.constexpr, OUT: tl.constexpr, OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Compute out = after(matrix · norm(x)): [num_rows, num_outputs].

    NORM: x is divided by its root mean square and multiplied by a weight, before the product; the division is made
    behind it, since it is by one number a row, unless TWO_PASSES: numbers of float16 could overflow before it. CENTRED:
    the mean is taken off first, as in LayerNorm, always in two passes, and NORM_BIAS is added to what is normed. GATED:
    the matrix has num_outputs rows of gates and as many of factors. ACTIVATION: 0 for none. ADDS: the result is
    multiplied and added to `out`. CHOSEN: the number of experts of each row, or 0 for a matrix that all rows
    share. The experts' matrices lie one behind the other, and a program computes one row with one of its experts. `out`
    has a row for each pair of a row and an expert. So has x if READS_PAIRS; else x has a row for each token. SEVERAL:
    only some of the experts lie there, each in its place of `places`; -1 stands for one that another launch computes.
    BY_HEADS: each head has a matrix, which lie as the experts' do, and multiplies its own part of a row, which begins
    x_head_stride numbers behind the part of the head before.
    """
    lane = tl.arange(0, ROWS)
    m = tl.program_id(1) * ROWS + lane
    from_, there = m, (m < num_rows)[:, None]
    if CHOSEN > 0:
        m, there = tl.program_id(1) + 0 * lane, (lane == 0)[:, None]
        from_ = m if READS_PAIRS else m // CHOSEN
    if (CHOSEN > 0) | BY_HEADS:
        if BY_HEADS:
            expert = tl.program_id(2).to(tl.int64)
            x, out = x + expert * x_head_stride, out + expert * out_head_stride
        else:
            expert = tl.load(chosen + tl.program_id(1)).to(tl.int64)
        if SEVERAL:
            bias, expert = bias + expert * bias_stride, tl.load(places + expert).to(tl.int64)
            if expert < 0:  # it is stored in another way, and another launch computes it
                return
        else:
            bias += expert * bias_stride
        numbers, scales = numbers + expert * numbers_stride, scales + expert * scales_stride
        minimums += expert * scales_stride * (2 if FACTORED else 1)
    f = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    sums, up_sums = summed(
        x + from_.to(tl.int64)[:, None] * x_stride, there, norm_weight, norm_bias, numbers, scales, minimums, f,
        num_inputs, num_outputs, eps, NORM, CENTRED, NORM_BIAS, UNIT_OFFSET, TWO_PASSES, GATED, BITS, PAIRED, E2M1,
        FACTORED, HAS_MINIMUMS, OUTPUTS, INPUTS, T, INTERPRETED,
    )  # fmt: skip
    sums = finished(
        sums, up_sums, bias, f, num_outputs, multiplier, up_multiplier, alpha, limit,
        GATED, ACTIVATION, HAS_BIAS, CLAMPED,
    )  # fmt: skip
    to, wanted = out + m.to(tl.int64)[:, None] * out_stride + f[None, :], there & (f < num_outputs)[None, :]
    if ADDS:
        sums = tl.load(to, mask=wanted, other=0.0).to(tl.float32) + sums * added_multiplier
    tl.store(to, rounded(sums, OUT, INTERPRETED), mask=wanted)


@triton.jit
def add_chosen(
    parts, weights, out, num_outputs, out_stride, multiplier, CHOSEN: tl.constexpr, OUTPUTS: tl.constexpr,
    ADDS: tl.constexpr, T: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Add up what the chosen experts of a row gave, [B, CHOSEN, num_outputs], times their weights, in their order."""
    row, f = tl.program_id(1).to(tl.int64), tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    sums = tl.zeros((OUTPUTS,), tl.float32)
    for c in range(CHOSEN):
        pair = row * CHOSEN + c
        part = tl.load(parts + pair * num_outputs + f, mask=f < num_outputs, other=0.0)
        sums += part * tl.load(weights + pair)
    to = out + row * out_stride + f
    if ADDS:
        sums = tl.load(to, mask=f < num_outputs, other=0.0).to(tl.float32) + sums * multiplier
    tl.store(to, rounded(sums, T, INTERPRETED), mask=f < num_outputs)


@triton.jit
def add_normed(
    x, out, weight, bias, num_inputs, x_stride, out_stride, eps, multiplier, CENTRED: tl.constexpr,
    NORM_BIAS: tl.constexpr, UNIT_OFFSET: tl.constexpr, INPUTS: tl.constexpr, T: tl.constexpr,
    INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Add multiplier · norm(x) to `out`, one row a program."""
    row = tl.program_id(0).to(tl.int64)
    sums, squares, mean = tl.zeros((INPUTS,), tl.float32), tl.zeros((INPUTS,), tl.float32), 0.0
    if CENTRED:
        for first in range(0, num_inputs, INPUTS):
            k = first + tl.arange(0, INPUTS)
            sums += tl.load(x + row * x_stride + k, mask=k < num_inputs, other=0.0).to(tl.float32)
        mean = tl.sum(sums, 0) / num_inputs
    for first in range(0, num_inputs, INPUTS):
        k = first + tl.arange(0, INPUTS)
        part = tl.load(x + row * x_stride + k, mask=k < num_inputs, other=0.0).to(tl.float32)
        if CENTRED:
            part = tl.where(k < num_inputs, part - mean, 0.0)
        squares += part * part
    factor = tl.rsqrt(tl.sum(squares, 0) / num_inputs + eps)
    for first in range(0, num_inputs, INPUTS):
        k = first + tl.arange(0, INPUTS)
        seen = k < num_inputs
        part = tl.load(x + row * x_stride + k, mask=seen, other=0.0).to(tl.float32)
        if CENTRED:
            part = part - mean
        part = part * factor * (tl.load(weight + k, mask=seen, other=0.0).to(tl.float32) + UNIT_OFFSET)
        if NORM_BIAS:
            part += tl.load(bias + k, mask=seen, other=0.0).to(tl.float32)
        to = out + row * out_stride + k
        total = tl.load(to, mask=seen, other=0.0).to(tl.float32) + part * multiplier
        tl.store(to, rounded(total, T, INTERPRETED), mask=seen)
