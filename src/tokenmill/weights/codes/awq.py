"""The layout of AWQ "gemm" (https://github.com/casper-hansen/AutoAWQ).

X.qweight [K, R / 8] int32, whose eight codes are those of columns 0 2 4 6 1 3 5 7; X.qzeros [G, R / 8] likewise;
X.scales [G, R].
"""

from collections.abc import Mapping
from typing import ClassVar

from tokenmill.weights.codes.layout import GROUPS, Layout, Shape


class AWQ(Layout):
    """See Layout."""

    method = "awq"
    parts = ("qweight", "qzeros", "scales")
    settings: ClassVar = {
        "bits": (..., 4),
        "group_size": (..., *GROUPS, -1),
        "version": ("gemm",),
        "format": ("gemm",),
        "zero_point": (True,),
        "act_bits": (16, 32),
    }

    def shape_of(self, shapes: Mapping[str, Shape]) -> tuple[int, int]:
        num_inputs, num_words = shapes["qweight"]
        return num_words * self.fields, num_inputs

    def part_shapes(self, num_rows: int, num_inputs: int, minimums: bool) -> dict[str, Shape]:
        groups, num_words = self.num_groups(num_inputs), num_rows // self.fields
        return {"qweight": (num_inputs, num_words), "qzeros": (groups, num_words), "scales": (groups, num_rows)}
