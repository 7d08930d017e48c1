"""The layout of MLX's quantised directories (https://github.com/ml-explore/mlx-lm).

X.weight [R, K * bits / 32] uint32, the codes of each row one after the other; X.scales and X.biases [R, G], with which
a value is code * scale + bias. config.json says bits and group_size under "quantization", for all matrices and under
the names of those that have others. Embedding and head are quantised, too. In mode "mxfp4", X.scales [R, K / 32] uint8
has exponents, and there are no biases.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from tokenmill.errors import CheckpointError
from tokenmill.value_reader import ValueReader
from tokenmill.weights.codes.layout import FLOATS, GROUPS, Choices, Layout, Parts, Shape, anything, odd_group

_EXPERT = re.compile(r"\.experts\.\d+\.(\w+)$")  # an expert has the settings of its stack
_OF_MIXTRAL = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}
_BITS, _MODES = (2, 3, 4, 5, 6, 8), ("affine", "mxfp4")


@dataclass(frozen=True)
class MLX(Layout):
    """See Layout. mode: "affine" or "mxfp4". others: the layouts of modules that have their own."""

    mode: str = "affine"
    others: tuple[tuple[str, "MLX"], ...] = ()

    method = "mlx"
    parts = ("weight", "scales", "biases")
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
            keys = ("bits", "group_size", "mode")
            bits, group, mode = (own.expect(key, found[key], *_ALLOWED[key]) for key in keys)
            own.refuse_unread(own.values)
            others.append((name, _layout(bits, group, mode)))
        return replace(_layout(found["bits"], found["group_size"], found["mode"]), others=tuple(others))

    @property
    def mark(self) -> str:
        return "scales"

    def of(self, parts: Parts) -> "MLX":
        module = parts.matrix.removesuffix(".weight")
        stack = _EXPERT.sub(lambda found: f".switch_mlp.{_OF_MIXTRAL.get(found[1], found[1])}", module)
        named = {module, stack, f"language_model.{module}", f"language_model.{stack}"}
        return next((own for name, own in self.others if name in named), self)

    def types_of(self, part: str) -> tuple[str, ...]:
        if part == "weight":
            return ("uint32",)
        return ("uint8",) if self.mode == "mxfp4" else FLOATS

    def shape_of(self, shapes: Mapping[str, Shape]) -> tuple[int, int]:
        num_rows, num_words = shapes["weight"]
        return num_rows, num_words * 32 // (4 if self.mode == "mxfp4" else self.bits)

    def part_shapes(self, num_rows: int, num_inputs: int, minimums: bool) -> dict[str, Shape]:
        bits, scales = 4 if self.mode == "mxfp4" else self.bits, (num_rows, self.num_groups(num_inputs))
        shapes: dict[str, Shape] = {"weight": (num_rows, num_inputs * bits // 32), "scales": scales}
        return shapes if self.mode == "mxfp4" else shapes | {"biases": scales}


_ALLOWED: Mapping[str, tuple[Any, ...]] = {"bits": _BITS, "group_size": (16, *GROUPS), "mode": _MODES}


def _layout(bits: int, group: int, mode: str) -> MLX:
    if mode == "mxfp4":
        if (bits, group) != (4, 32):
            raise CheckpointError(
                f"quantization of mlx: mode mxfp4 has 4 bits and groups of 32, not {bits} and {group}"
            )
        return MLX(8, group, mode=mode)  # as which they are kept, see mxfp4_tensors.py
    why = f"codes of {bits} bits with minimums" if bits > 4 else ""
    return MLX(bits, group, as_values=why or odd_group(group, 1 << 30), mode=mode)
