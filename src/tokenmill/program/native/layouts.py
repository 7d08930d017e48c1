"""Layouts of matrices and formats of cached rows that the native program can read, by name and number.

A scheme and a cache format give facts; here they become a layout of this program, or nothing, and then it refuses.
pack.py says how the tiles of each layout are made.
"""

from tokenmill.quant.schemes import Scheme
from tokenmill.settings.engine_config import DTYPES

TILE, PAD = 16, 64  # rows of a tile, and inputs of one step of its layout
SUPER = 256  # inputs of a superblock, of which scales and minimums are multiples of the same numbers (GGUF's K-quants)
LAYOUTS = {  # numbers as in native/kernels.h
    "float32": 0,
    "bfloat16": 1,
    "float16": 2,
    "8 bits": 3,
    "4 bits": 4,
    "4 bits with minimums": 5,
    "4 bits with wide scales": 6,
    "4 bits in pairs": 7,  # pairs of groups with the same scale and minimum, as groups of 64 and more have
    "8 bits with wide scales": 8,
    "5 bits with wide scales": 9,  # and minimums too
    "6 bits in halves": 10,  # with an integer factor for each half of a group
    "5 bits with minimums": 11,
    "4 bits with integer scales": 12,  # times half floats, and minimums too
    "5 bits with integer scales": 13,
    "4 bits in superblocks": 14,  # as with integer scales, whose half floats are the same for 256 inputs
    "5 bits in superblocks": 15,
    "6 bits in superblocks": 16,  # as in halves, with the same scale for 256 inputs
}
FLOATS = {LAYOUTS[name] for name in DTYPES}
INTEGER = {LAYOUTS[f"{bits} bits {how}"] for bits in (4, 5) for how in ("with integer scales", "in superblocks")}
SUPERBLOCKS = {LAYOUTS[name] for name in LAYOUTS if name.endswith("in superblocks")}
WIDE = {LAYOUTS[name] for name in LAYOUTS if name.endswith("with wide scales")}  # scales and minimums are float32
MODULES = ("plain", "codes")  # the modules of a matrix whose rows can be read
KV_NUMBERS = {
    ("dense", "float32"): 0,
    ("dense", "bfloat16"): 1,
    ("dense", "float16"): 3,
    **{("int8", dtype): 2 for dtype in ("float32", "bfloat16", "float16")},
}
"""cache_format in native/abi.h, by the name of a cache format and the dtype of the cache."""
KV_FIELDS = {"k": "k_rows", "v": "v_rows", "k_scales": "k_scales", "v_scales": "v_scales"}
"""The field of TmOp (native/abi.h) for the address of a layer's tensor, by its kind."""


def matrix_layout(scheme: Scheme, dtype: str) -> str | None:
    """Find the layout, a key of LAYOUTS, in which a scheme's matrices are packed; None if their rows cannot be read.

    If a scheme keeps the codes of the checkpoint, this is the layout of the matrices that are floating point.
    """
    if scheme.matrix not in MODULES:
        return None
    return dtype if scheme.rounds_to is None else {8: "8 bits", 4: "4 bits with minimums"}[scheme.rounds_to]


def kv_number(cache_format: str, dtype: str) -> int | None:
    """Find the number of a cache format; None if this program cannot read it."""
    return KV_NUMBERS.get((cache_format, dtype))
