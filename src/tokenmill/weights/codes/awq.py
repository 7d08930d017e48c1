"""The layouts of AWQ (https://github.com/casper-hansen/AutoAWQ, https://github.com/mit-han-lab/llm-awq).

In "gemm", X.qweight [K, R / 8] int32, whose eight codes belong to columns 0 2 4 6 1 3 5 7; X.qzeros [G, R / 8]
likewise; X.scales [G, R]. AutoRound's codes of 5 to 7 bits lie in the same order, one after the other. In "gemv",
X.qweight [R, K / 8] int32, the codes of a row one after the other; X.qzeros [R, W] likewise and X.scales [R, 8 W],
where 8 W is G rounded up. In "gemv_fast", which is also llm-awq's own, X.qweight [R / 4, K] int16 has the codes of four
rows in an order of its own (see integer_tensors.py), X.scales [8 W, R] and X.qzeros or X.scaled_zeros [8 W, R] in
floating point has the minimums.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from tokenmill.errors import CheckpointError
from tokenmill.weights.codes.layout import Choices, Layout, Parts, Shape, any_group, odd_group

VERSIONS = ("gemm", "gemv", "gemv_fast", "llm-awq")


@dataclass(frozen=True)
class AWQ(Layout):
    """See Layout. has_zeros: whether codes have zeros of their own, which must be there then. varies: whether some
    matrices have other groups, which their shapes then tell.
    """

    version: str = "gemm"
    has_zeros: bool = True
    varies: bool = False

    method = "awq"
    parts = ("qweight", "qzeros", "scales", "scaled_zeros")
    optional = frozenset({"scaled_zeros", "qzeros"})
    floats = ("scales", "scaled_zeros")
    settings: ClassVar[Mapping[str, Choices]] = {
        "bits": (..., 4),
        "group_size": any_group,
        "version": VERSIONS,
        "format": VERSIONS,
        "zero_point": (True, False),
        "data_type": ("int",),  # AutoRound's
        "method": ("awq",),  # GPTQModel's, as are the next
        "checkpoint_format": VERSIONS,
        "pack_dtype": ("int32",),
        "desc_act": (False,),
        "act_bits": (16, 32),
    }

    @classmethod
    def read(cls, found: Mapping[str, Any]) -> "AWQ":
        said = (found[key] for key in ("version", "format", "checkpoint_format"))
        version = next((word for word in said if word != "gemm"), "gemm")
        version = "gemv_fast" if version == "llm-awq" else version
        return cls(found["bits"], found["group_size"], version=version, has_zeros=found["zero_point"])

    @property
    def is_fast(self) -> bool:
        return self.version == "gemv_fast"

    def of(self, parts: Parts) -> "AWQ":
        num_rows, num_inputs = self.shape_of(parts.shapes)
        if self.is_fast and (num_rows % 4 or num_inputs % 64):
            raise CheckpointError(f"{parts.matrix} is {num_rows} x {num_inputs}: gemv_fast packs 4 rows and 64 inputs")
        if self.has_zeros and not parts.shapes.keys() & {"qzeros", "scaled_zeros"}:
            name = self.name_of(parts.matrix, "qzeros")
            raise CheckpointError(f"{name} is missing, while the config says zero_point: fetch the files anew")
        group = self.group
        if self.varies and "scales" in parts.shapes and self.num_groups(num_inputs) != parts.shapes["scales"][0]:
            groups = max(parts.shapes["scales"][0], 1)
            group = 0 if groups == 1 else num_inputs // groups
        return replace(self, group=group, as_values=odd_group(group, num_inputs))

    def types_of(self, part: str) -> tuple[str, ...]:
        if self.is_fast:
            return ("int16",) if part == "qweight" else ("float16", "bfloat16", "float32")
        return super().types_of(part)

    def shape_of(self, shapes: Mapping[str, Shape]) -> tuple[int, int]:
        first, second = shapes["qweight"]
        if self.is_fast:
            return first * 4, second
        wide = second * 32 // self.bits
        return (first, wide) if self.version == "gemv" else (wide, first)

    def part_shapes(self, num_rows: int, num_inputs: int, minimums: bool) -> dict[str, Shape]:
        groups, fields = self.num_groups(num_inputs), self.fields
        if self.version == "gemm":
            num_words = num_rows * self.bits // 32
            return {"qweight": (num_inputs, num_words), "qzeros": (groups, num_words), "scales": (groups, num_rows)}
        words = self._zero_words(groups)
        if self.version == "gemv":
            zeros, scales = (num_rows, words), (num_rows, words * fields)
            return {"qweight": (num_rows, num_inputs // fields), "qzeros": zeros, "scales": scales}
        wide = (words * fields, num_rows)
        return {"qweight": (num_rows // 4, num_inputs), "qzeros": wide, "scales": wide, "scaled_zeros": wide}

    def _zero_words(self, groups: int) -> int:
        """Count the words of the zeros of a row, as AutoAWQ's calculate_zeros_width rounds them up."""
        step = {64: 2, 32: 4}.get(self.group, 1)
        words = -(-groups // self.fields)
        return -(-words // step) * step
