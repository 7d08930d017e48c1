"""The layouts of the tiles that matrices of the native program are packed in; pack.py says how each is made."""

__all__ = ["LAYOUTS", "PAD", "TILE"]

TILE, PAD = 16, 64  # rows of a tile, and inputs that its layout goes on by
LAYOUTS = {  # numbers as in native/kernels.h
    "float32": 0,
    "bfloat16": 1,
    "8 bits": 2,
    "4 bits": 3,
    "4 bits with minimums": 4,
    "4 bits with wide scales": 5,
    "4 bits in pairs": 6,  # pairs of groups with the same scale and minimum, as groups of 64 and more have
}
