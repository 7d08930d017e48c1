"""The layout of MLX's quantised directories (https://github.com/ml-explore/mlx-lm).

X.weight [R, K * bits / 32] uint32, the codes of each row one after the other; X.scales and X.biases [R, G], with which
a value is code * scale + bias. config.json says bits and group_size under "quantization", for all matrices, and under
the name of each matrix that has others. Embedding and head are quantised, too. In the other modes there are no biases:
X.scales uint8 has exponents for each 32 codes in "mxfp4" and "mxfp8", numbers in fp8 for each 16 in "nvfp4", in which a
stack of experts may have X.global_scale [E], the largest number of each.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from tokenmill.errors import CheckpointError
from tokenmill.value_reader import ValueReader
from tokenmill.weights.codes.layout import (
    FLOATS,
    GROUPS,
    Choices,
    Layout,
    Parts,
    Shape,
    anything,
    names_of_module,
    odd_group,
)

_EXPERT = re.compile(r"\.experts\.\d+\.(\w+)$")  # an expert has the settings of its stack
_OF_MIXTRAL = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}
_BITS = (1, 2, 3, 4, 5, 6, 8)
_FLOATING = {"mxfp4": (4, 32), "mxfp8": (8, 32), "nvfp4": (4, 16)}  # bits of a number, inputs that share a scale
_MODES = ("affine", *_FLOATING)


@dataclass(frozen=True)
class MLX(Layout):
    """See Layout. mode: "affine", "mxfp4", "mxfp8" or "nvfp4". others: the layouts of modules that have their own."""

    mode: str = "affine"
    others: tuple[tuple[str, "MLX"], ...] = ()

    method = "mlx"
    parts = ("weight", "scales", "biases", "global_scale")
    optional = frozenset({"global_scale"})
    has_rows = True
    settings: ClassVar[Mapping[str, Choices]] = {
        "bits": (..., *_BITS),
        "group_size": (..., 16, *GROUPS),
        "mode": _MODES,
        "modules": anything,
    }

    @classmethod
    def read(cls, found: Mapping[str, Any]) -> "MLX":
        others = list[tuple[str, MLX]]()
        modules = ValueReader(found["modules"] or {}, 'config.json: "quantization" of MLX', CheckpointError)
        for name, value in modules.values.items():
            if type(value) is bool:  # false: as it was; its tensors tell so, too
                continue
            own = modules.inside(name, required=True)
            # What is left out has the defaults of MLX's to_quantized, whatever the settings for all matrices are.
            mode = own.expect("mode", "affine", *_MODES)
            usual_bits, usual_group = _FLOATING.get(mode, (4, 64))
            bits = own.expect("bits", usual_bits, *_BITS)
            group = own.expect("group_size", usual_group, 16, *GROUPS)
            own.flag("global_scale", False)  # its tensor tells
            own.refuse_unread(own.values)
            others.append((name, _layout(bits, group, mode)))
        return replace(_layout(found["bits"], found["group_size"], found["mode"]), others=tuple(others))

    @property
    def is_mxfp4(self) -> bool:
        return self.mode == "mxfp4"

    @property
    def mark(self) -> str:
        return "scales"

    def of(self, parts: Parts) -> "MLX":
        module = parts.matrix.removesuffix(".weight")
        found = _EXPERT.search(module)
        matrix = "" if found is None else _OF_MIXTRAL.get(found[1], found[1])
        begins = ("switch_mlp", "experts.switch_glu")
        stacks = [f"{module[: found.start()]}.{begin}.{matrix}" for begin in begins] if found is not None else []
        named = {name for each in (module, *stacks) for name in names_of_module(each)}
        own = next((own for name, own in self.others if name in named), None)
        if own is not None or parts.dtypes.get("scales") != "uint8" or "weight" not in parts.shapes:
            return self if own is None else own
        # As mlx-lm's infer_quant_config tells them: each mode has its own number of bits in a group.
        words, groups = parts.shapes["weight"][-1], max(parts.shapes["scales"][-1], 1)
        wide = {bits * group: mode for mode, (bits, group) in _FLOATING.items()}.get(words * 32 // groups)
        return self if wide in (None, self.mode) else _layout(*_FLOATING[wide], wide)

    def types_of(self, part: str) -> tuple[str, ...]:
        if part == "weight":
            return ("uint32",)
        return ("uint8",) if part == "scales" and self.mode in _FLOATING else FLOATS

    def shape_of(self, shapes: Mapping[str, Shape]) -> tuple[int, int]:
        num_rows, num_words = shapes["weight"]
        return num_rows, num_words * 32 // self.code_size

    def part_shapes(self, num_rows: int, num_inputs: int, minimums: bool) -> dict[str, Shape]:
        scales = num_rows, self.num_groups(num_inputs)
        shapes: dict[str, Shape] = {"weight": (num_rows, num_inputs * self.code_size // 32), "scales": scales}
        if self.mode == "nvfp4":
            shapes["global_scale"] = ()
        return shapes if self.mode in _FLOATING else shapes | {"biases": scales}

    @property
    def code_size(self) -> int:
        """The bits of a code in the file."""
        return _FLOATING[self.mode][0] if self.mode in _FLOATING else self.bits


def _layout(bits: int, group: int, mode: str) -> MLX:
    if mode in _FLOATING:
        if (bits, group) != (wanted := _FLOATING[mode]):
            how = "mode {} has {} bits and groups of {}".format(mode, *wanted)
            raise CheckpointError(f"quantization of mlx: {how}, not {bits} and {group}")
        why = "" if mode == "mxfp4" else f"numbers in {mode.upper()}"
        return MLX(8, group, as_values=why, mode=mode)  # codes of mxfp4 are kept in 8 bits, see floating_tensors.py
    why = f"codes of {bits} bits with minimums" if bits > 4 else ""
    return MLX(bits, group, as_values=why or odd_group(group, 1 << 30), mode=mode)
