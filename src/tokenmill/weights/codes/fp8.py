"""Directories in fp8, as DeepSeek, Mistral and Meta publish theirs: each X.weight float8_e4m3fn [R, K] with a scale.

quant_method "fp8" has X.weight_scale_inv, which is multiplied with the weight in spite of its name: a scale for each
block of weight_block_size, or one for all. "fbgemm_fp8" has X.weight_scale [R, 1]. No scheme has codes of such numbers:
they are read as values.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

from tokenmill.value_reader import ValueReader
from tokenmill.weights.codes.layout import FLOATS, Choices, Layout, Shape, anything


def read_block(reader: ValueReader, key: str) -> tuple[int, int] | None:
    """Read the rows and the inputs of a block, or None for one scale for all."""
    if reader.take(key, None) is None:
        return None
    sizes = reader.entries(key, int)
    if len(sizes) != 2 or min(sizes) < 1:
        raise reader.refuse(key, sizes, "two whole numbers")
    return sizes[0], sizes[1]


@dataclass(frozen=True)
class FP8(Layout):
    """See Layout. block: the rows and inputs that share a scale; None where all share one. rounds_inputs: whether
    other programs round activations, too.
    """

    block: tuple[int, int] | None = None
    rounds_inputs: bool = True
    as_values: str = "numbers in fp8"

    method = "fp8"
    parts = ("weight", "weight_scale_inv")
    settings: ClassVar[Mapping[str, Choices]] = {
        "activation_scheme": ("dynamic", "static"),
        "fmt": ("e4m3", "float8_e4m3fn"),
        "scale_fmt": ("float", "ue8m0"),
        "expert_dtype": ("fp8",),
        "weight_block_size": read_block,
        "bits": (8,),  # AutoRound's, as are the next
        "data_type": ("fp",),
        **dict.fromkeys(("dequantize", "modules_to_convert", "ignored_layers", "act_bits", "group_size"), anything),
    }

    @classmethod
    def read(cls, found: Mapping[str, Any]) -> "FP8":
        return cls(8, 0, block=found["weight_block_size"])

    @property
    def mark(self) -> str:
        return self.parts[1]

    @property
    def remark(self) -> str:
        return "activations are not rounded to fp8 as its config asks" if self.rounds_inputs else ""

    def is_beside(self, name: str) -> bool:
        return name.endswith((".activation_scale", ".input_scale", ".input_scale_ub"))

    def types_of(self, part: str) -> tuple[str, ...]:
        return ("float8_e4m3fn",) if part == "weight" else (*FLOATS, "float8_e8m0fnu", "uint8")

    def shape_of(self, shapes: Mapping[str, Shape]) -> tuple[int, int]:
        num_rows, num_inputs = shapes["weight"]
        return num_rows, num_inputs

    def part_shapes(self, num_rows: int, num_inputs: int, minimums: bool) -> dict[str, Shape]:
        rows, inputs = self.block or (num_rows, num_inputs)
        return {"weight": (num_rows, num_inputs), self.mark: (-(-num_rows // rows), -(-num_inputs // inputs))}

    def fits(self, part: str, shape: Shape, wanted: Shape) -> bool:
        return shape == wanted or (part == self.mark and prod(shape) == prod(wanted) == 1)


@dataclass(frozen=True)
class FBGemmFP8(FP8):
    """Meta's: a scale for each row."""

    method = "fbgemm_fp8"
    parts = ("weight", "weight_scale")
    settings: ClassVar[Mapping[str, Choices]] = {"activation_scale_ub": anything}

    @classmethod
    def read(cls, found: Mapping[str, Any]) -> "FBGemmFP8":
        return cls(8, 0)

    def part_shapes(self, num_rows: int, num_inputs: int, minimums: bool) -> dict[str, Shape]:
        return {"weight": (num_rows, num_inputs), self.mark: (num_rows, 1)}

    def fits(self, part: str, shape: Shape, wanted: Shape) -> bool:
        return shape == wanted or (part == self.mark and shape == wanted[:1])
