"""Exports in Hugging Face layout: our own directories of codes, and GPTQ's, which other engines read.

weights/codes/ has both layouts, and reads them.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tokenmill.errors import ConfigError
from tokenmill.hub.progress import Progress
from tokenmill.model.families import find_family
from tokenmill.quant.stored import Stored
from tokenmill.weights.codes.gptq import GPTQ
from tokenmill.weights.codes.integer_tensors import pack_gptq, pack_own
from tokenmill.weights.codes.layout import Layout
from tokenmill.weights.codes.own import Own
from tokenmill.weights.write.convert import Unit, check_new, plain_unit, write_directory
from tokenmill.weights.write.export import Export, ExportPlan, Rounded


class DirectoryExport(Export):
    """A directory in which parts X.… replace the matrices X.weight; every other tensor stays as it is.

    pack: (layout, rows as codes, inputs) → the parts of one matrix, by their names.
    """

    pack: Callable[[Any, Stored, int], dict[str, Tensor]]

    def layout(self, bits: int, group: int) -> Layout:
        """Choose how codes of so many bits are stored."""
        raise NotImplementedError

    def settings(self, plan: ExportPlan) -> Mapping[str, Any]:
        """Make quantization_config of config.json, without its method."""
        raise NotImplementedError

    def check_output(self, path: Path) -> None:
        check_new(path)

    def num_bytes(self, plan: ExportPlan, name: str) -> int:
        return self._unit(plan, name, None).num_bytes()

    def write(self, plan: ExportPlan, path: Path, rounded: Rounded, progress: Progress, stage: str) -> None:
        units = [self._unit(plan, name, rounded) for name in plan.shapes]
        method = self.layout(plan.scheme_bits, plan.group).method
        settings = {"quant_method": method, **self.settings(plan)}
        config = {"torch_dtype": plan.model.dtype, "quantization_config": settings}
        write_directory(plan.checkpoint, path, units, config, progress, stage)

    def _unit(self, plan: ExportPlan, name: str, rounded: Rounded | None) -> Unit:
        """Plan the unit that a tensor becomes; without `rounded`, only its types and shapes are of use."""
        shape = plan.shapes[name]
        if name not in plan.bits:
            return plain_unit(name, shape, plan.model.dtype, find_family({"model_type": plan.model.family}))
        base, bits = name.removesuffix(".weight"), plan.bits[name]
        layout = self.layout(bits, plan.group)
        shapes = layout.part_shapes(shape[0], shape[1], minimums=bits == 4)
        word: torch.dtype = getattr(torch, layout.word)
        types = dict.fromkeys(shapes, word) | dict.fromkeys(shapes.keys() & {"scales", "minimums"}, torch.float16)

        def make(numbers_RK: Tensor) -> dict[str, Tensor]:
            assert rounded is not None, "made to count bytes"
            parts = self.pack(layout, rounded(name, numbers_RK), shape[1])
            return {f"{base}.{part}": tensor for part, tensor in parts.items()}

        return Unit(name, {f"{base}.{part}": (types[part], shapes[part]) for part in shapes}, make)


class OwnExport(DirectoryExport):
    """Our own layout, with a free minimum for each group of 4 bits."""

    pack = staticmethod(pack_own)

    def layout(self, bits: int, group: int) -> Own:
        return Own(bits, group)

    def grid(self, bits: int, symmetric: bool) -> str:
        return "minimum"

    def leaves(self, bits: int, shape: tuple[int, ...]) -> bool:
        return bits == 4 and shape[1] % 2 == 1  # two codes to a byte

    def check(self, plan: ExportPlan) -> None:
        _refuse_transposed(plan)
        if plan.symmetric:
            raise ConfigError("symmetric", True, "only with export gptq or gguf; our own layout stores minimums")

    def settings(self, plan: ExportPlan) -> dict[str, Any]:
        return {"bits": plan.scheme_bits, "group_size": plan.group, "version": 1}


class GPTQExport(DirectoryExport):
    """GPTQ's layout in checkpoint_format "gptq", which most engines read. It stores zeros less one, from 1 on."""

    default_head = "none"
    mixes_bits = False
    pack = staticmethod(pack_gptq)

    def layout(self, bits: int, group: int) -> GPTQ:
        return GPTQ(bits, group, zero_offset=1)

    def grid(self, bits: int, symmetric: bool) -> str:
        return "symmetric" if symmetric or bits == 8 else "zero_point"

    def check(self, plan: ExportPlan) -> None:
        _refuse_transposed(plan)
        for name, bits in plan.bits.items():
            if name.endswith("]"):
                allowed = "a family whose files have a tensor for each expert, for a GPTQ export"
                raise ConfigError("model", f"{plan.model.family} at {plan.checkpoint.path}", allowed)
            if plan.targets[name].parameter == "head.weight":
                raise ConfigError("head", f"q{bits}", "none: a GPTQ export keeps its head in floating point")
            if bits != plan.scheme_bits:
                raise ConfigError("scheme", f"q{bits} for {name}", f"only q{plan.scheme_bits}: a GPTQ export has one")
            num_rows, num_inputs = plan.shapes[name]
            if num_inputs % plan.group:
                divisors = [group for group in (128, 64, 32) if not num_inputs % group]
                allowed = f"one that divides the {num_inputs} inputs of {name}: {divisors or 'none does'}"
                raise ConfigError("group", plan.group, allowed.replace("[", "").replace("]", ""))
            if num_rows % (fields := 32 // bits):
                allowed = f"one whose matrices have multiples of {fields} outputs; {name} has {num_rows}"
                raise ConfigError("model", str(plan.checkpoint.path), f"for a GPTQ export, {allowed}")

    def settings(self, plan: ExportPlan) -> dict[str, Any]:
        bits = plan.scheme_bits
        numbers = {"bits": bits, "group_size": plan.group, "desc_act": False, "lm_head": False}
        return numbers | {"sym": self.grid(bits, plan.symmetric) == "symmetric", "checkpoint_format": "gptq"}


def _refuse_transposed(plan: ExportPlan) -> None:
    if any(plan.is_transposed(name) for name in plan.bits):
        allowed = "a family whose files store matrices [out, in]; this one's are [in, out]. Use export gguf"
        raise ConfigError("model", f"{plan.model.family} at {plan.checkpoint.path}", allowed)
