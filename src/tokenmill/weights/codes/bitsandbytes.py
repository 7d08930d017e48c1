"""The layouts of bitsandbytes (https://github.com/bitsandbytes-foundation/bitsandbytes).

With 4 bits, X.weight uint8 [R * K / 2, 1] has two codes a byte, the earlier in its high half, X.weight.quant_map the 16
values of a code (NF4 or FP4) and X.weight.absmax a factor for each block of codes. If these are quantised themselves,
X.weight.absmax is uint8, with X.weight.nested_quant_map and X.weight.nested_absmax. The bytes of
X.weight.quant_state.bitsandbytes__nf4, or of …fp4, are JSON with the matrix's shape. With 8 bits, X.weight is int8 and
X.SCB [R] has the largest value of each row. No scheme has such codes: they are read as values.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any, ClassVar

from tokenmill.errors import CheckpointError
from tokenmill.value_reader import ValueReader, brief
from tokenmill.weights.codes.layout import FLOATS, Choices, Layout, Parts, Shape, anything

_STORAGE = {"uint8": 1, "int8": 1, "float16": 2, "bfloat16": 2, "float32": 4}  # the types that hold bytes of codes
_LONGEST = 1 << 12  # of the JSON


@dataclass(frozen=True)
class Bitsandbytes(Layout):
    """See Layout. kind: "nf4", "fp4" or "int8". shape, block, nested_block, offset: the facts of one matrix.
    itemsize: bytes of a number in which codes lie.
    """

    kind: str = "nf4"
    shape: tuple[int, int] = (0, 0)
    block: int = 1
    nested_block: int = 0
    offset: float = 0.0
    itemsize: int = 1

    method = "bitsandbytes"
    parts = (
        "weight", "weight.absmax", "weight.quant_map", "weight.nested_absmax", "weight.nested_quant_map",
        "weight.quant_state.bitsandbytes__nf4", "weight.quant_state.bitsandbytes__fp4", "SCB", "weight_format",
    )  # fmt: skip
    optional = frozenset({"weight_format"})
    settings: ClassVar[Mapping[str, Choices]] = {
        "load_in_4bit": (False, True),
        "load_in_8bit": (False, True),
        "_load_in_4bit": (False, True),
        "_load_in_8bit": (False, True),
        "bnb_4bit_quant_type": ("fp4", "nf4"),
        **dict.fromkeys(
            ("bnb_4bit_compute_dtype", "bnb_4bit_quant_storage", "bnb_4bit_use_double_quant", "llm_int8_threshold",
             "llm_int8_enable_fp32_cpu_offload", "llm_int8_has_fp16_weight", "llm_int8_skip_modules"),
            anything,
        ),
    }  # fmt: skip

    @classmethod
    def read(cls, found: Mapping[str, Any]) -> "Bitsandbytes":
        four, eight = (found[f"load_in_{bits}bit"] or found[f"_load_in_{bits}bit"] for bits in (4, 8))
        if four == eight:
            raise CheckpointError(
                "quantization_config of bitsandbytes: one of load_in_4bit and load_in_8bit must be true"
            )
        kind = found["bnb_4bit_quant_type"] if four else "int8"
        named = "codes of 8 bits whose scales are no half floats" if eight else f"codes of the table {kind.upper()}"
        return cls(4 if four else 8, 0, as_values=named, kind=kind)

    @property
    def mark(self) -> str:
        return "SCB" if self.kind == "int8" else f"weight.quant_state.bitsandbytes__{self.kind}"

    @property
    def remark(self) -> str:
        return "activations are not rounded to 8 bits as LLM.int8 does" if self.kind == "int8" else ""

    def matrix_of(self, name: str) -> str | None:
        return f"{name.removesuffix(f'.{self.mark}')}.weight" if name.endswith(f".{self.mark}") else None

    def of(self, parts: Parts) -> "Bitsandbytes":
        if self.kind == "int8":
            if "weight_format" in parts.shapes and any(parts.read("weight_format")):
                raise CheckpointError(f"{parts.matrix}_format is not 0: only rows are implemented; save the model anew")
            return self
        return replace(self, itemsize=_STORAGE.get(parts.dtypes.get("weight", ""), 1), **self._read_state(parts))

    def _read_state(self, parts: Parts) -> dict[str, Any]:
        """Read the quant_state JSON of a matrix; CheckpointError where it is damaged."""
        where = f"{parts.matrix}.quant_state.bitsandbytes__{self.kind}"
        if prod(parts.shapes[self.mark]) > _LONGEST or parts.dtypes[self.mark] != "uint8":
            raise CheckpointError(f"{where} is no JSON in bytes")
        try:
            state = ValueReader(json.loads(parts.read(self.mark)), where, CheckpointError)
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{where} is no JSON: {brief(str(error))}") from None
        state.expect("quant_type", self.kind)
        sizes = state.entries("shape", int)
        if len(sizes) != 2 or not all(0 < size <= 1 << 24 for size in sizes):
            raise state.refuse("shape", sizes, "two whole numbers: only matrices are quantised")
        found: dict[str, Any] = {"shape": (sizes[0], sizes[1]), "block": state.count("blocksize")}
        if "nested_blocksize" in state.values:
            offset = state.number("nested_offset", minimum=-1e30)
            found |= {"nested_block": state.count("nested_blocksize"), "offset": offset}
        state.refuse_unread(set(state.values) - {"dtype", "nested_dtype", "nested_offset"})
        return found

    def types_of(self, part: str) -> tuple[str, ...]:
        if part == "weight":
            return ("int8",) if self.kind == "int8" else tuple(_STORAGE)
        if part == "weight.absmax" and self.nested_block:
            return ("uint8",)
        return ("uint8",) if part == "weight_format" or "quant_state" in part else FLOATS

    def shape_of(self, shapes: Mapping[str, Shape]) -> tuple[int, int]:
        if self.kind == "int8":
            num_rows, num_inputs = shapes["weight"]
            return num_rows, num_inputs
        return self.shape

    def part_shapes(self, num_rows: int, num_inputs: int, minimums: bool) -> dict[str, Shape]:
        if self.kind == "int8":
            return {"weight": (num_rows, num_inputs), "SCB": (num_rows,), "weight_format": ()}
        count = num_rows * num_inputs
        blocks = -(-count // self.block)
        shapes: dict[str, Shape] = {
            "weight": (-(-count // 2) // self.itemsize, 1),
            "weight.absmax": (blocks,),
            "weight.quant_map": (16,),
            self.mark: (),
        }
        if self.nested_block:
            nested = -(-blocks // self.nested_block)
            shapes |= {"weight.nested_absmax": (nested,), "weight.nested_quant_map": (256,)}
        return shapes

    def fits(self, part: str, shape: Shape, wanted: Shape) -> bool:
        if self.kind == "int8":
            return shape == wanted
        is_bytes = part == "weight" and prod(shape) == prod(wanted)
        return shape == wanted or is_bytes or part == self.mark
