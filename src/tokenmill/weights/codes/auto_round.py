"""AutoRound's directories (https://github.com/intel/auto-round): data_type and packing_format name their layout.

Whole numbers lie as GPTQ or AWQ stores them; MXFP4, MXFP8, NVFP4 and MXINT4 as compressed-tensors stores them; other
numbers lie in fp8.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from tokenmill.errors import CheckpointError
from tokenmill.value_reader import ValueReader, brief
from tokenmill.weights.codes.awq import AWQ
from tokenmill.weights.codes.compressed import Compressed
from tokenmill.weights.codes.fp8 import FP8, read_block
from tokenmill.weights.codes.gptq import GPTQ
from tokenmill.weights.codes.layout import Choices, Layout, Parts, Shape, any_group, anything

_PACKERS = {"", *"""auto_gptq gptq gptqmodel auto_awq awq gemm exllamav2 marlin tritonv2 triton llm_compressor fp8
    fp8_static""".split()}  # fmt: skip
_SCALED = {("mx_fp", 4): "mxfp4", ("mx_fp", 8): "mxfp8", ("mx_int", 4): "mxint4", ("nv_fp", 4): "nvfp4"}


def _packing(reader: ValueReader, key: str) -> str:
    """Read the packer: the words after "auto_round", which choose the layout. Numbers in fp8 may have no packer."""
    if reader.take(key, None) is None and reader.take("data_type", None) == "fp":
        return ""
    value = reader.text(key)
    first, *words = value.split(":")
    if first not in ("auto_round", "auto-round") or not set(words) <= _PACKERS:
        allowed = "auto_round:auto_gptq, auto_round:auto_awq, auto_round:llm_compressor, auto_round:fp8 or auto_round"
        raise reader.refuse(key, value, allowed)
    return " ".join(words)


def _group(reader: ValueReader, key: str) -> int:
    """Read how many inputs share a scale, 0 for all of a row. In fp8 the key repeats weight_block_size, or says
    nothing.
    """
    if reader.take("data_type", "int") == "fp":
        reader.take(key, None)
        return 0
    return any_group(reader, key)


@dataclass(frozen=True)
class AutoRound(Layout):
    """The settings of AutoRound, which name the layout of another method."""

    method = "auto-round"
    settings: ClassVar[Mapping[str, Choices]] = {
        "bits": (..., 2, 3, 4, 5, 6, 7, 8),
        "group_size": _group,
        "packing_format": _packing,
        "data_type": ("int", "mx_fp", "mx_int", "nv_fp", "fp"),
        "act_bits": (16, 4, 8, 32),
        "weight_block_size": read_block,
        "fmt": ("e4m3", "float8_e4m3fn"),
        "activation_scheme": ("dynamic", "static"),
        "extra_config": anything,
    }

    @classmethod
    def read(cls, found: Mapping[str, Any]) -> Layout:
        packing, bits, group, kind = (found[key] for key in ("packing_format", "bits", "group_size", "data_type"))
        if kind == "fp" and bits == 8:
            block, rounds = found["weight_block_size"], found["act_bits"] < 16
            return FP8(8, 0, block=block, rounds_inputs=rounds) if block else ScaledRows(8, 0, rounds_inputs=rounds)
        if (kind, bits) in _SCALED:
            remarks = ("activations are not rounded as its config asks",) if found["act_bits"] < 16 else ()
            return replace(Microscaled.of_kind(_SCALED[kind, bits]), remarks=remarks)
        if kind != "int" or found["act_bits"] < 16:
            said = f"data_type {kind!r} with {bits} bits, and activations of {found['act_bits']}"
            raise CheckpointError(f"quantization_config of auto-round: {said}, is not implemented")
        if "llm_compressor" in packing or "fp8" in packing:
            where = "quantization_config of auto-round"
            raise CheckpointError(f"{where}: packing_format {brief(packing)} with data_type 'int' is not implemented")
        if "awq" in packing:
            if bits < 4 or bits == 8:
                raise CheckpointError(f"quantization_config of auto-round: {bits} bits in AWQ's layout: only 4 to 7")
            return AWQ(bits, group, varies=bool(found["extra_config"]))
        # As export/export_to_autoround/export.py chooses the packer: zeros less one are AutoGPTQ's alone.
        less_one = "gptq" in packing and "gptqmodel" not in packing
        return GPTQ(bits, group, int(less_one), varies=bool(found["extra_config"]))


class Microscaled(Compressed):
    """Matrices whose scales have 8 bits. They may be of several kinds, which their parts tell."""

    def of(self, parts: Parts) -> Compressed:
        usual = "mxint4" if self.kind == "mxint4" else "mxfp4"
        packed = "nvfp4" if "weight_global_scale" in parts.shapes else usual
        kind = packed if "weight_packed" in parts.shapes else "mxfp8"
        return self.of_kind(kind).sized(parts)


@dataclass(frozen=True)
class ScaledRows(FP8):
    """Numbers in fp8 with a scale for each row, or one for all."""

    parts = ("weight", "weight_scale")

    def part_shapes(self, num_rows: int, num_inputs: int, minimums: bool) -> dict[str, Shape]:
        return {"weight": (num_rows, num_inputs), self.mark: (num_rows,)}

    def fits(self, part: str, shape: Shape, wanted: Shape) -> bool:
        return super().fits(part, shape, wanted) or (part == self.mark and shape in ((), (1,), (*wanted, 1)))
