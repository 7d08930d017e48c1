"""The layout of GPTQ (https://github.com/AutoGPTQ/AutoGPTQ).

X.qweight [K / 8, R] int32, eight codes of one column from the low bits up (four codes if they have 8 bits);
X.qzeros [G, R / 8], which are stored less one in checkpoint_format "gptq"; X.scales [G, R]; X.g_idx [K], the group of
each input.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from tokenmill.weights.codes.layout import GROUPS, Layout, Shape


class GPTQ(Layout):
    """See Layout."""

    method = "gptq"
    parts = ("qweight", "qzeros", "scales", "g_idx")
    settings: ClassVar = {
        "bits": (..., 4, 8),
        "group_size": (..., *GROUPS, -1),
        "checkpoint_format": ("gptq", "gptq_v2"),
        "format": ("gptq", "gptq_v2"),  # transformers' newer word for it
        "pack_dtype": ("int32",),
        "is_marlin_format": (False,),
        "data_type": ("int",),  # AutoRound's, as is the next: activations that are not rounded
        "act_bits": (16, 32),
        "desc_act": (False, True),  # what counts is whether g_idx is in order
    }

    @classmethod
    def read(cls, found: Mapping[str, Any]) -> Self:
        less_one = "gptq_v2" not in (found["checkpoint_format"], found["format"])
        return cls(found["bits"], max(found["group_size"], 0), int(less_one))

    def shape_of(self, shapes: Mapping[str, Shape]) -> tuple[int, int]:
        num_words, num_rows = shapes["qweight"]
        return num_rows, num_words * self.fields

    def part_shapes(self, num_rows: int, num_inputs: int, minimums: bool) -> dict[str, Shape]:
        groups, fields = self.num_groups(num_inputs), self.fields
        shapes = {"qweight": (num_inputs // fields, num_rows), "qzeros": (groups, num_rows // fields)}
        return shapes | {"scales": (groups, num_rows), "g_idx": (num_inputs,)}
