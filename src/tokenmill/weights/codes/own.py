"""The layout that `tokenmill quantize` writes.

X.codes [R, K] uint8 of 8 bits; X.scales [R, G] float16. A matrix of 4 bits also has X.minimums [R, G], and X.codes
[R, K / 2] with the earlier of two codes in the low half of a byte.
"""

from collections.abc import Mapping
from typing import ClassVar

from tokenmill.weights.codes.layout import GROUPS, Layout, Shape


class Own(Layout):
    method = "tokenmill"
    parts = ("codes", "scales", "minimums")
    word, has_rows = "uint8", True
    settings: ClassVar = {"bits": (..., 4, 8), "group_size": (..., *GROUPS), "version": (..., 1)}

    def shape_of(self, shapes: Mapping[str, Shape]) -> tuple[int, int]:
        num_rows, num_bytes = shapes["codes"]
        return num_rows, num_bytes * (2 if "minimums" in shapes else 1)

    def part_shapes(self, num_rows: int, num_inputs: int, minimums: bool) -> dict[str, Shape]:
        numbers = dict.fromkeys(("scales", "minimums")[: 1 + minimums], (num_rows, self.num_groups(num_inputs)))
        return {"codes": (num_rows, num_inputs // (1 + minimums)), **numbers}
