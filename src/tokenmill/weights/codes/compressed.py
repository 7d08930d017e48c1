"""The layouts of compressed-tensors, which llm-compressor writes (https://github.com/vllm-project/compressed-tensors).

In "pack-quantized", X.weight_packed int32 has the codes of each row one after the other, and X.weight_shape says how
many they are. In "int-quantized", X.weight int8 has a code a byte; in "float-quantized", X.weight is fp8. In
"naive-quantized" it is either. X.weight_scale is [R, G], [R, 1], [1] or has a scale for each block; X.weight_zero_point
is [R, G], which "pack-quantized" packs along R. In "mxfp4-pack-quantized" and "nvfp4-pack-quantized", X.weight_packed
uint8 has two E2M1 codes a byte (see mxfp4.py), with X.weight_scale of 8 bits for each 32 or 16 inputs; in
"mxfp6-pack-quantized" it has four E2M3 codes in three bytes; in "mxfp8-quantized", X.weight is fp8 with such scales.
The config has groups of matrices, each with settings of its own.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from tokenmill.errors import CheckpointError
from tokenmill.value_reader import ValueReader, brief
from tokenmill.weights.codes.gptq import OUT_OF_ORDER
from tokenmill.weights.codes.layout import FLOATS, Choices, Layout, Parts, Shape, anything, names_of_module, odd_group

FP8, EXPONENTS, NO_CODES = "float8_e4m3fn", "float8_e8m0fnu", "numbers in {}"
_FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized")
# Numbers in floating point with scales of 8 bits: their bits, and the inputs that share a scale.
_MICROSCALED = {
    "nvfp4-pack-quantized": (4, 16),
    "mxfp4-pack-quantized": (4, 32),
    "mxfp6-pack-quantized": (6, 32),
    "mxfp8-quantized": (8, 32),
}
_EMBEDDINGS = ("embed_tokens", "embed_in", "wte", "word_embeddings", "tok_embeddings")
_BESIDE = re.compile(r".*\.(?:(?:input|output|[qkv])_(?:scale|zero_point|global_scale)|weight_shape)")
_STRATEGIES = ("tensor", "channel", "group", "block", "tensor_group")
# Settings that say how codes were chosen, and nothing of how they are stored.
_CHOSEN = frozenset({"observer", "observer_kwargs", "dynamic", "scale_dtype", "zp_dtype"})


@dataclass(frozen=True)
class Compressed(Layout):
    """See Layout. kind: "packed", "int", "float", "nvfp4", "mxfp4", "mxfp6", "mxfp8", AutoRound's "mxint4", or "dense"
    for weights as they were, beside which scales stand. strategy: one of _STRATEGIES, the numbers that share a scale.
    block: the rows and inputs of a block. symmetric: whether there are no zeros. size: the inputs of one matrix.
    groups: the layouts of the directory, with their targets. remarks: requests of the config that are not met.
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

    @classmethod
    def of_kind(cls, kind: str) -> Self:
        """Make the layout of one of the kinds whose scales have 8 bits."""
        kept = {"mxfp4": 8, "mxint4": 4}.get(kind)  # see floating_tensors.py
        why = "" if kept else NO_CODES.format(kind.upper())
        return cls(kept or 8, 16 if kind == "nvfp4" else 32, as_values=why, kind=kind, strategy="group")

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
        return "weight" if self.kind in ("int", "float", "mxfp8", "dense") else "weight_packed"

    def of(self, parts: Parts) -> "Compressed":
        return self.of_module(parts.matrix.removesuffix(".weight")).sized(parts)

    def sized(self, parts: Parts) -> "Compressed":
        """Make the layout of the matrix that has these parts and belongs to this group."""
        layout = self
        if layout.codes not in parts.shapes:
            return layout
        width = parts.shapes[layout.codes][-1]
        size = width * 8 // layout.code_size if layout.code_size else width
        if layout.kind == "packed" and "weight_shape" in parts.shapes:
            size = _stored_inputs(parts)
        why = layout.as_values or odd_group(layout.group, size)
        if "weight_g_idx" in parts.shapes and not why and parts.shapes["weight_g_idx"] == (size,):
            groups = np.frombuffer(parts.read("weight_g_idx"), "<i4")
            in_order = np.array_equal(groups, np.arange(size) // (layout.group or size))
            why = "" if in_order or -1 in groups else OUT_OF_ORDER  # -1: unset, as versions of 2025 wrote it
        if parts.dtypes.get("weight_scale") in ("float32", "float64") and layout.bits > 4 and not why:
            why = "codes of 8 bits whose scales are no half floats"
        return replace(layout, size=size, as_values=why)

    def of_module(self, module: str) -> "Compressed":
        """Find the layout of the group that a module is in, as compressed-tensors' match_targets does: by its name, by
        the first pattern in the order of the alphabet that matches, or by the class of the module. Of groups with the
        same target the last counts.
        """
        layouts = {target: layout for targets, layout in self.groups for target in targets}
        ordered = sorted(layouts, key=lambda target: ("re:" in target, target))
        names = names_of_module(module)
        found = next((target for target in ordered if _matches(target, names)), None)
        kind = "Embedding" if module.rpartition(".")[2] in _EMBEDDINGS else "Linear"
        classes = (kind, kind.lower(), "Conv1D", "Module")
        found = next((target for target in classes if target in layouts), None) if found is None else found
        if found is None:
            raise CheckpointError(
                f"quantization_config of compressed-tensors: {module} is in none of its config_groups"
            )
        return layouts[found]

    @property
    def is_mxfp4(self) -> bool:
        return self.kind == "mxfp4"

    @property
    def has_codes(self) -> bool:
        return self.kind != "dense"

    @property
    def code_size(self) -> int:
        """The bits of a code where the codes lie in bytes one after the other; 0 for other kinds."""
        return {"nvfp4": 4, "mxfp4": 4, "mxint4": 4, "mxfp6": 6}.get(self.kind, 0)

    def is_beside(self, name: str) -> bool:
        return _BESIDE.fullmatch(name) is not None

    def types_of(self, part: str) -> tuple[str, ...]:
        if part == self.codes:
            return {"packed": ("int32",), "int": ("int8",), "float": (FP8,), "mxfp8": (FP8,)}.get(self.kind, ("uint8",))
        if part == "weight_scale":
            return (FP8,) if self.kind == "nvfp4" else ("uint8", EXPONENTS) if self.kind.startswith("mx") else FLOATS
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
        if self.code_size:
            shapes[self.codes] = num_rows, num_inputs * self.code_size // 8
        if self.kind == "nvfp4":
            shapes["weight_global_scale"] = (1,)
        if not self.symmetric:
            rows = -(-num_rows * self.bits // 32) if self.kind == "packed" else num_rows
            shapes["weight_zero_point"] = (rows, *scale[1:]) if len(scale) > 1 else scale
        return shapes

    def fits(self, part: str, shape: Shape, wanted: Shape) -> bool:
        return shape == wanted or (shape in ((), (1,), (1, 1)) and wanted in ((1,), (1, 1)))


def _read_group(group: ValueReader, usual: Any) -> Compressed:
    """Read the layout that a group's settings describe."""
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
    if stored == "dense":  # its weights are stored as they are
        return Compressed(16, 0, as_values="numbers as they were", kind="dense")
    if stored in _MICROSCALED:
        width, inputs = _MICROSCALED[stored]
        if (bits, kind, group_size, symmetric) != (width, "float", inputs, True):
            wanted = f"for {stored} {width} bits in float, symmetric, groups of {inputs}"
            raise how.refuse("num_bits", bits, f"{wanted}; group_size = {brief(size)}")
        return Compressed.of_kind(stored.partition("-")[0])
    if stored not in _FORMATS:
        names = ", ".join((*_FORMATS, *_MICROSCALED))
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


def _matches(target: str, names: tuple[str, ...]) -> bool:
    """Tell whether a target is a name of the module, or a pattern "re:…" of such a name. CheckpointError for a pattern
    that is no regular expression.
    """
    if not target.startswith("re:"):
        return target in names
    try:
        return any(re.match(target.removeprefix("re:"), name) for name in names)
    except re.error as error:
        raise CheckpointError(f"config_groups: target {brief(target)} is no regular expression: {error}") from None


def _stored_inputs(parts: Parts) -> int:
    """Read the number of inputs from weight_shape; CheckpointError where the codes have another shape."""
    dtype = {"int64": "<i8", "int32": "<i4"}.get(parts.dtypes["weight_shape"])
    sizes = [] if dtype is None else np.frombuffer(parts.read("weight_shape"), dtype).tolist()
    if len(sizes) != 2 or not 0 < sizes[1] <= 1 << 24 or sizes[0] != parts.shapes["weight_packed"][0]:
        raise CheckpointError(f"{parts.matrix}_shape says {brief(sizes)}, which is not the shape of its codes")
    return int(sizes[1])
