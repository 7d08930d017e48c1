"""The layouts of compressed-tensors, which llm-compressor writes (https://github.com/vllm-project/compressed-tensors).

In "pack-quantized", X.weight_packed int32 has the codes of each row one after the other, and X.weight_shape says how
many there are. In "int-quantized", X.weight int8 has a code a byte; in "float-quantized", X.weight is fp8. In
"naive-quantized" it is either. X.weight_scale is [R, G], [R, 1], [1] or one for each block; X.weight_zero_point [R, G],
which "pack-quantized" packs along R. In "mxfp4-pack-quantized" and "nvfp4-pack-quantized", X.weight_packed uint8 has
two E2M1 codes a byte (see mxfp4.py), with X.weight_scale of 8 bits for each 32 or 16 inputs. The config has groups of
matrices, each with settings of its own.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from tokenmill.errors import CheckpointError
from tokenmill.value_reader import ValueReader, brief
from tokenmill.weights.codes.gptq import OUT_OF_ORDER
from tokenmill.weights.codes.layout import FLOATS, Choices, Layout, Parts, Shape, anything, odd_group

FP8, NO_CODES = "float8_e4m3fn", "numbers in {}"
_FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized")
_FP4 = {"nvfp4-pack-quantized": 16, "mxfp4-pack-quantized": 32}  # the inputs that share a scale
_BESIDE = re.compile(r".*\.(?:(?:input|output|[qkv])_(?:scale|zero_point|global_scale)|weight_shape)")
_STRATEGIES = ("tensor", "channel", "group", "block", "tensor_group")
# How codes were chosen: none of these says how they are stored.
_CHOSEN = frozenset({"observer", "observer_kwargs", "dynamic", "scale_dtype", "zp_dtype"})


@dataclass(frozen=True)
class Compressed(Layout):
    """See Layout. kind: "packed", "int", "float", "nvfp4" or "mxfp4". strategy: what shares a scale. block: its rows
    and inputs. symmetric: whether there are no zeros. size: the inputs of one matrix. groups: the layouts of the
    directory, with their targets. remarks: what is not done that the config asks for.
    """

    kind: str = "packed"
    strategy: str = "channel"
    block: tuple[int, int] = (1, 1)
    symmetric: bool = True
    may_permute: bool = False
    size: int = 0
    groups: tuple[tuple[tuple[str, ...], "Compressed"], ...] = ()
    remarks: tuple[str, ...] = ()

    method = "compressed-tensors"
    parts = (
        "weight", "weight_packed", "weight_scale", "weight_zero_point", "weight_g_idx", "weight_global_scale",
        "weight_shape",
    )  # fmt: skip
    optional = frozenset({"weight_g_idx"})
    settings: ClassVar[Mapping[str, Choices]] = {
        "config_groups": anything,
        "format": anything,
        "quantization_status": ("compressed", "frozen"),
        "kv_cache_scheme": anything,
        "sparsity_config": anything,
        "transform_config": anything,
        **dict.fromkeys(("ignore", "global_compression_ratio", "version", "moe_sparsity_config"), anything),
    }

    @classmethod
    def read(cls, found: Mapping[str, Any]) -> "Compressed":
        where = "quantization_config of compressed-tensors"
        for key in ("sparsity_config", "transform_config"):
            if found[key] and (found[key].get("format") if isinstance(found[key], dict) else 1) not in (None, "dense"):
                raise CheckpointError(f"{where}: {key} {brief(found[key])} is not implemented: give the model without")
        if found["transform_config"]:
            raise CheckpointError(f"{where}: transform_config is not implemented: give the model without")
        given = ValueReader({"config_groups": found["config_groups"]}, where, CheckpointError)
        groups, remarks = list[tuple[tuple[str, ...], Compressed]](), list[str]()
        inside = given.inside("config_groups", required=True)
        for name in inside.values:
            group = inside.inside(name, required=True)
            group.refuse_unread(
                set(group.values) - {"targets", "weights", "format", "input_activations", "output_activations"}
            )
            if any(group.take(key, None) for key in ("input_activations", "output_activations")):
                remarks.append("activations are not rounded as its config asks")
            if group.take("weights", None) is not None:
                targets = tuple(group.entries("targets", str))
                groups.append((targets, _read_group(group, found["format"])))
        if not groups:
            raise CheckpointError(f"{where}: config_groups has no group with weights")
        if found["kv_cache_scheme"]:
            remarks.append("the cache is not rounded as its config asks (kv_cache_scheme)")
        return replace(groups[0][1], groups=tuple(groups), remarks=tuple(dict.fromkeys(remarks)))

    @property
    def remark(self) -> str:
        return "; ".join(self.remarks)

    @property
    def mark(self) -> str:
        return "weight_scale"

    @property
    def codes_of_any(self) -> tuple[str, ...]:
        return "weight_packed", "weight"

    @property
    def codes(self) -> str:
        return "weight_packed" if self.kind in ("packed", "nvfp4", "mxfp4") else "weight"

    def of(self, parts: Parts) -> "Compressed":
        layout = self.of_module(parts.matrix.removesuffix(".weight"))
        if layout.codes not in parts.shapes:
            return layout
        width = parts.shapes[layout.codes][-1]
        size = width * 2 if layout.kind in _FP4_KINDS else width
        if layout.kind == "packed" and "weight_shape" in parts.shapes:
            size = _stored_inputs(parts)
        why = layout.as_values or odd_group(layout.group, size)
        if "weight_g_idx" in parts.shapes and not why and parts.shapes["weight_g_idx"] == (size,):
            in_order = np.arange(size, dtype="<i4") // (layout.group or size)
            why = "" if parts.read("weight_g_idx") == in_order.tobytes() else OUT_OF_ORDER
        if parts.dtypes.get("weight_scale") in ("float32", "float64") and layout.bits > 4 and not why:
            why = "codes of 8 bits whose scales are no half floats"
        return replace(layout, size=size, as_values=why)

    def of_module(self, module: str) -> "Compressed":
        """The layout of the group that a module is in: named, matched by a pattern, or of the class of matrices."""
        best: tuple[int, Compressed] | None = None
        for targets, layout in self.groups:
            for target in targets:
                rank = 0 if target == module else 1 if _matches(target, module) else 2
                if (rank < 2 or target in ("Linear", "linear")) and (best is None or rank < best[0]):
                    best = rank, layout
        if best is None:
            raise CheckpointError(
                f"quantization_config of compressed-tensors: {module} is in none of its config_groups"
            )
        return best[1]

    def is_beside(self, name: str) -> bool:
        return _BESIDE.fullmatch(name) is not None

    def types_of(self, part: str) -> tuple[str, ...]:
        if part == self.codes:
            return {"packed": ("int32",), "int": ("int8",), "float": (FP8,)}.get(self.kind, ("uint8",))
        if part == "weight_scale":
            return {"nvfp4": (FP8,), "mxfp4": ("uint8",)}.get(self.kind, FLOATS)
        if part == "weight_zero_point":
            return ("int32",) if self.kind == "packed" else ("int8", FP8)
        return {"weight_g_idx": ("int32",), "weight_shape": ("int64", "int32")}.get(part, FLOATS)

    def shape_of(self, shapes: Mapping[str, Shape]) -> tuple[int, int]:
        return shapes[self.codes][0], self.size

    def part_shapes(self, num_rows: int, num_inputs: int, minimums: bool) -> dict[str, Shape]:
        groups = self.num_groups(num_inputs)
        blocks = -(-num_rows // self.block[0]), -(-num_inputs // self.block[1])
        scale = {"tensor": (1,), "channel": (num_rows, 1), "block": blocks}.get(self.strategy, (num_rows, groups))
        shapes: dict[str, Shape] = {self.codes: (num_rows, num_inputs), "weight_scale": scale}
        if self.kind == "packed":
            packed = -(-num_inputs * self.bits // 32)
            shapes |= {self.codes: (num_rows, packed), "weight_g_idx": (num_inputs,), "weight_shape": (2,)}
        if self.kind in _FP4_KINDS:
            shapes[self.codes] = num_rows, num_inputs // 2
        if self.kind == "nvfp4":
            shapes["weight_global_scale"] = (1,)
        if not self.symmetric:
            rows = -(-num_rows * self.bits // 32) if self.kind == "packed" else num_rows
            shapes["weight_zero_point"] = (rows, *scale[1:]) if len(scale) > 1 else scale
        return shapes

    def fits(self, part: str, shape: Shape, wanted: Shape) -> bool:
        return shape == wanted or (shape in ((), (1,), (1, 1)) and wanted in ((1,), (1, 1)))


_FP4_KINDS = ("nvfp4", "mxfp4")


def _read_group(group: ValueReader, usual: Any) -> Compressed:
    """The layout that a group's settings describe."""
    how, given = group.inside("weights", required=True), group.take("format", usual)
    bits, kind = how.count("num_bits", 8, maximum=8), how.expect("type", "int", "float")
    symmetric, size = how.flag("symmetric", True), how.take("group_size", None)
    strategy = how.expect("strategy", "tensor" if size is None else "group", *_STRATEGIES)
    group_size = how.count("group_size") if strategy in ("group", "tensor_group") else 0
    order = how.expect("actorder", None, False, True, "group", "weight", "static", "dynamic")
    how.refuse_unread(set(how.values) - _CHOSEN - {"block_structure"})
    block = (1, 1)
    if strategy == "block":
        sizes = how.entries("block_structure", int)
        if len(sizes) != 2 or min(sizes) < 1:
            raise how.refuse("block_structure", sizes, "two whole numbers")
        block = sizes[0], sizes[1]
    stored = str(given).lower()
    if stored in _FP4:
        expected = (4, "float", _FP4[stored], True)
        if (bits, kind, group_size, symmetric) != expected:
            raise how.refuse("num_bits", bits, f"for {stored} 4 bits in float, symmetric, groups of {_FP4[stored]}")
        kept = stored.startswith("mxfp4")
        why = "" if kept else NO_CODES.format("NVFP4")
        return Compressed(8 if kept else 4, group_size, as_values=why, kind=stored.partition("-")[0], strategy="group")
    if stored not in _FORMATS:
        names = ", ".join((*_FORMATS, *_FP4))
        raise CheckpointError(
            f"quantization_config of compressed-tensors: format {brief(given)} is not implemented: only {names}; "
            "give the model as it was before, or another export of it"
        )
    if kind == "float":
        if bits != 8 or not symmetric or stored == "pack-quantized":
            raise how.refuse("num_bits", bits, "8 bits for numbers in float, symmetric, and not packed")
        return Compressed(8, group_size, as_values=NO_CODES.format("fp8"), kind="float", strategy=strategy, block=block)
    why = "a scale for each block" if strategy == "block" else ""
    if bits == 8 and not symmetric:
        why = "codes of 8 bits with zeros"
    permutes = order in (True, "group", "dynamic")
    packed = "packed" if stored == "pack-quantized" else "int"
    return Compressed(
        bits, group_size, as_values=why, kind=packed, strategy=strategy, block=block, symmetric=symmetric,
        may_permute=permutes,
    )  # fmt: skip


def _matches(target: str, module: str) -> bool:
    """Whether a target "re:…" matches; CheckpointError where it is no pattern."""
    if not target.startswith("re:"):
        return module.endswith(f".{target}")
    try:
        return re.match(target.removeprefix("re:"), module) is not None
    except re.error as error:
        raise CheckpointError(f"config_groups: target {brief(target)} is no regular expression: {error}") from None


def _stored_inputs(parts: Parts) -> int:
    """The inputs that weight_shape says; CheckpointError where it cannot be."""
    dtype = {"int64": "<i8", "int32": "<i4"}.get(parts.dtypes["weight_shape"])
    sizes = [] if dtype is None else np.frombuffer(parts.read("weight_shape"), dtype).tolist()
    if len(sizes) != 2 or not 0 < sizes[1] <= 1 << 24 or sizes[0] != parts.shapes["weight_packed"][0]:
        raise CheckpointError(f"{parts.matrix}_shape says {brief(sizes)}, which is not the shape of its codes")
    return int(sizes[1])
