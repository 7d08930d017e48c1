"""The types of a GGUF file's tensors: which are floating point, and which codes are kept as they are."""

import gguf

KIND = gguf.GGMLQuantizationType
CODE_BITS = {
    KIND.Q4_0: 4.5,
    KIND.Q4_1: 5.0,
    KIND.Q5_0: 6.0,
    KIND.Q5_1: 6.0,
    KIND.Q8_0: 8.5,
    KIND.Q3_K: 7.0,
    KIND.Q4_K: 6.0,
    KIND.Q5_K: 7.0,
    KIND.Q6_K: 7.0,
    KIND.IQ4_NL: 8.5,
    KIND.IQ4_XS: 9.0,
    KIND.MXFP4: 8.5,
    KIND.TQ1_0: 4.5,
    KIND.TQ2_0: 4.5,
}
"""Bits per number, scales included, as the native program packs the codes that are kept."""
KINDS = tuple(CODE_BITS)
FLOATS = {KIND.F32: "float32", KIND.F16: "float16", KIND.BF16: "bfloat16"}
BITS = {KIND.F32: 32.0, KIND.F16: 16.0, KIND.BF16: 16.0, **CODE_BITS}
"""Bits per number as the native program packs it; 8.5 for every other type, whose values are rounded to 8 bits."""
