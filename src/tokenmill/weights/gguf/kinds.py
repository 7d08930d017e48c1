"""The types of a GGUF file's tensors: which are floating point, and which codes are kept as they are."""

import gguf

KIND = gguf.GGMLQuantizationType
KINDS = (KIND.Q4_0, KIND.Q4_1, KIND.Q5_0, KIND.Q8_0, KIND.Q4_K)
BITS = {KIND.F32: 32.0, KIND.Q4_0: 4.5, KIND.Q4_1: 5.0, KIND.Q4_K: 6.0, KIND.F16: 16.0, KIND.BF16: 16.0}
"""Bits per number as the native program packs it, scales included; 8.5 for every other type."""
FLOATS = {KIND.F32: "float32", KIND.F16: "float16", KIND.BF16: "bfloat16"}
