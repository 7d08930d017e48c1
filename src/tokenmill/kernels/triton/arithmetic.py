"""Functions that kernels share: rounding, products of tiles, activations.

Triton's interpreter (3.7) cuts bfloat16 off where it stores it, and multiplies tiles of it wrongly. There numbers are
float32 throughout, and are rounded to bfloat16 by integer arithmetic, which gives what a GPU's own rounding gives.
"""

import triton
import triton.language as tl

INTERPRETED = bool(triton.knobs.runtime.interpret)
"""Whether kernels are computed by Triton's interpreter. Triton reads the variable where a kernel is defined: once."""

ROWS = tl.constexpr(16)
"""Rows of a tile of activations, the fewest that a matrix unit takes. Fewer rows are filled up, so that a row is summed
by the same instructions alone and among others."""


@triton.jit
def rounded(x, T: tl.constexpr, INTERPRETED: tl.constexpr):
    """Round float32 numbers to T. Interpreted, numbers of bfloat16 stay in float32."""
    if tl.bfloat16 == T and INTERPRETED:
        bits = x.to(tl.int32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & -65536
        return tl.where(tl.abs(x) < float("inf"), bits.to(tl.float32, bitcast=True), x)
    return x.to(T)


@triton.jit
def multiplied(a, b, sums, T: tl.constexpr, INTERPRETED: tl.constexpr):
    """Add the product of two tiles of numbers of T to float32 sums."""
    if INTERPRETED:  # numpy's product adds up a row in an order that depends on its place
        return sums + tl.sum(a.to(tl.float32)[:, :, None] * b.to(tl.float32)[None, :, :], 1)
    return tl.dot(a.to(T), b.to(T), sums, input_precision="ieee")


@triton.jit
def tanh(x):
    """Compute tanh from exponentials of numbers that are not positive, which cannot overflow."""
    small = tl.exp(-2.0 * tl.abs(x))
    size = (1.0 - small) / (1.0 + small)
    return tl.where(x < 0, -size, size)


@triton.jit
def sigmoid(x):
    """Compute 1 / (1 + exp(-x)) from an exponential of a number that is not positive, which cannot overflow."""
    small = tl.exp(-tl.abs(x))
    return tl.where(x < 0, small, 1.0) / (1.0 + small)


@triton.jit
def activated(x, ACTIVATION: tl.constexpr):
    """Compute an activation by its number, see program.native.spec.ACTIVATIONS."""
    if ACTIVATION == 1:
        return x * sigmoid(x)
    if ACTIVATION == 2:
        return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    if ACTIVATION == 3:
        return 0.5 * x * (1.0 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))
    positive = tl.where(x < 0.0, 0.0, x)  # a GPU's maximum of NaN and 0 is 0
    return positive if ACTIVATION == 4 else positive * positive
