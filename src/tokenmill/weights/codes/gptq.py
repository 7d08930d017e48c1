"""The layout of GPTQ (https://github.com/AutoGPTQ/AutoGPTQ).

X.qweight [K * bits / 32, R] int32, the codes of one column one after the other from the low bits up; X.qzeros
[G, R * bits / 32], which are stored less one in checkpoint_format "gptq"; X.scales [G, R]; X.g_idx [K], the group of
each input. With desc_act the inputs of one group may lie anywhere in the row: then the codes are read as values.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from tokenmill.weights.codes.layout import Choices, Layout, Parts, Shape, any_group, anything, odd_group

OUT_OF_ORDER = "inputs that are out of order (desc_act)"


@dataclass(frozen=True)
class GPTQ(Layout):
    """See Layout. varies: whether some matrices have other bits or groups, which their shapes then tell. may_permute:
    whether g_idx may be out of order.
    """

    varies: bool = False
    may_permute: bool = False

    method = "gptq"
    parts = ("qweight", "qzeros", "scales", "g_idx")
    optional = frozenset({"g_idx"})
    settings: ClassVar[Mapping[str, Choices]] = {
        "bits": (..., 2, 3, 4, 8),
        "group_size": any_group,
        "checkpoint_format": ("gptq", "gptq_v2"),
        "format": ("gptq", "gptq_v2"),  # transformers' newer word for it
        "method": ("gptq",),  # GPTQModel's word for quant_method
        "pack_dtype": ("int32",),
        "is_marlin_format": (False,),
        "data_type": ("int",),  # AutoRound's, as is the next: activations that are not rounded
        "act_bits": (16, 32),
        "desc_act": (False, True),  # g_idx itself tells whether inputs are in order
        "dynamic": anything,  # GPTQModel's rules for some matrices
        "extra_config": anything,  # AutoRound's
    }

    @classmethod
    def read(cls, found: Mapping[str, Any]) -> "GPTQ":
        less_one = "gptq_v2" not in (found["checkpoint_format"], found["format"])
        varies = any(found[key] for key in ("dynamic", "extra_config"))
        return cls(
            found["bits"], found["group_size"], int(less_one), varies=varies, may_permute=bool(found["desc_act"])
        )

    def of(self, parts: Parts) -> "GPTQ":
        layout = self
        if self.varies and {"qzeros", "scales"} <= parts.shapes.keys():
            bits, group = _told_by(parts.shapes, self)
            layout = replace(self, bits=bits, group=group)
        _, num_inputs = layout.shape_of(parts.shapes)
        why = odd_group(layout.group, num_inputs)
        if self.may_permute and "g_idx" in parts.shapes:
            groups = np.frombuffer(parts.read("g_idx"), "<i4")
            in_order = np.array_equal(groups, np.arange(num_inputs) // (layout.group or num_inputs))
            why = why or ("" if in_order or not groups.any() else OUT_OF_ORDER)  # zeros alone: see integer_tensors.py
        return replace(layout, as_values=why)

    def shape_of(self, shapes: Mapping[str, Shape]) -> tuple[int, int]:
        num_words, num_rows = shapes["qweight"]
        return num_rows, num_words * 32 // self.bits

    def part_shapes(self, num_rows: int, num_inputs: int, minimums: bool) -> dict[str, Shape]:
        groups, bits = self.num_groups(num_inputs), self.bits
        shapes = {"qweight": (num_inputs * bits // 32, num_rows), "qzeros": (groups, -(-num_rows * bits // 32))}
        return shapes | {"scales": (groups, num_rows), "g_idx": (num_inputs,)}


def _told_by(shapes: Mapping[str, Shape], usual: GPTQ) -> tuple[int, int]:
    """Find the bits and the group of a matrix by its shapes; the usual ones where the shapes do not tell them."""
    (num_words, num_rows), zero_words = shapes["qweight"], shapes["qzeros"][-1]
    bits = next((bits for bits in range(2, 9) if -(-num_rows * bits // 32) == zero_words), usual.bits)
    num_inputs, groups = num_words * 32 // bits, max(shapes["scales"][0], 1)
    group = usual.group if replace(usual, bits=bits).num_groups(num_inputs) == groups else num_inputs // groups
    return bits, 0 if groups == 1 else group
