"""The layout of MXFP4, in which gpt-oss is published: one tensor has a kind of matrix of all experts of a layer.

For E experts X_blocks [E, R, K / 32, 16] uint8, whose bytes have two codes each, the earlier in the low half; and
X_scales [E, R, K / 32] uint8, exponents of 2 with 127 added. A code is a sign, two bits of an exponent and one of a
fraction (E2M1): 0, 0.5, 1, 1.5, 2, 3, 4 or 6. The checkpoint shows a slice of an expert: X_blocks[e], and X[e].
"""

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from tokenmill.weights.codes.layout import Layout, Shape

_CODES = re.compile(r"(.+)_blocks(\[\d+\])")


class MXFP4(Layout):
    method = "mxfp4"
    parts = ("blocks", "scales")
    floats = ()
    word, has_rows = "uint8", True
    settings: ClassVar = {}
    num_dimensions = 3

    @classmethod
    def read(cls, found: Mapping[str, Any]) -> Self:
        return cls(8, 32)  # the codes are kept in 8 bits, see floating_tensors.py

    @property
    def is_mxfp4(self) -> bool:
        return True

    def matrix_of(self, name: str) -> str | None:
        found = _CODES.fullmatch(name)
        return found and f"{found[1]}{found[2]}"

    def name_of(self, matrix: str, part: str) -> str:
        base, bracket, expert = matrix.rpartition("[")
        return f"{base}_{part}{bracket}{expert}"

    def shape_of(self, shapes: Mapping[str, Shape]) -> tuple[int, int]:
        num_rows, num_groups, _ = shapes["blocks"]
        return num_rows, num_groups * self.group

    def part_shapes(self, num_rows: int, num_inputs: int, minimums: bool) -> dict[str, Shape]:
        groups = num_inputs // self.group
        return {"blocks": (num_rows, groups, self.group // 2), "scales": (num_rows, groups)}
