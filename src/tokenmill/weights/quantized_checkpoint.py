"""Directories whose matrices are codes: our own, and exports of GPTQ and AWQ.

The tensors that together hold X.weight are shown as X.weight. It is read in floating point, or as the file's own codes,
which the loader keeps exactly. Everything else is as in a plain checkpoint.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tokenmill.errors import CheckpointError
from tokenmill.model.config import quant_method
from tokenmill.model.families import find_family, read_config
from tokenmill.quant.stored import Stored
from tokenmill.text.tokenizer import Tokenizer
from tokenmill.weights.codes import Layout, Shape, part_shapes, read_layout, shape_of, unpack
from tokenmill.weights.names import expand
from tokenmill.weights.protocol import Checkpoint

__all__ = ["QuantizedCheckpoint", "say_codes"]


CODE_BITS = {4: 5.0, 8: 8.5}
"""Per number once it is packed, with scales."""


def say_codes(config: dict[str, Any]) -> dict[str, Any]:
    """The config of a quantised directory as a GGUF file's would be; any other as it is.

    What stays in float16 counts as bfloat16: no program multiplies codes in float16 on a CPU.
    """
    if quant_method(config) is None:
        return config
    dtypes = {key: "bfloat16" for key in ("dtype", "torch_dtype") if str(config.get(key)).endswith("float16")}
    return config | dtypes | {"stored_as_codes": CODE_BITS.get(read_layout(config).bits, True)}


class QuantizedCheckpoint:
    """One such directory, over the checkpoint that reads its tensors. See Checkpoint for the attributes."""

    def __init__(self, plain: Checkpoint) -> None:
        self._plain, self._layout = plain, read_layout(plain.config)
        self.path: Path = plain.path
        self.rounded = ""
        self.num_bytes = plain.num_bytes
        self.config = {key: value for key, value in plain.config.items() if key != "quantization_config"}
        self._parts = _find_parts(self._layout, plain)
        used = {f"{base}.{part}" for base, parts in self._parts.items() for part in parts}
        left_out = used | set(_empty_biases(plain, self._parts))
        self.shapes: Mapping[str, Shape] = {
            **{name: shape for name, shape in plain.shapes.items() if name not in left_out},
            **{f"{base}.weight": shape_of(self._layout, parts) for base, parts in self._parts.items()},
        }

    def read(self, name: str) -> Tensor:
        """See Checkpoint."""
        stored = self._unpack(name)
        return self._plain.read(name) if stored is None else stored.values()[:, : self.shapes[name][1]]

    def read_codes(self, name: str) -> Stored | None:
        """See Checkpoint. 8 bits are kept where their zero is 128 and their scales are half floats."""
        stored = self._unpack(name)
        if stored is None or stored.bits == 4:
            return stored
        assert stored.scales is not None
        exact = stored.minimums is None and torch.equal(stored.scales.half().float(), stored.scales)
        return stored if exact else None

    def tokenizer(self) -> Tokenizer | None:
        """See Checkpoint."""
        return self._plain.tokenizer()

    def generation_defaults(self) -> dict[str, Any]:
        """See Checkpoint."""
        return self._plain.generation_defaults()

    def _unpack(self, name: str) -> Stored | None:
        base = name.removesuffix(".weight")
        if base not in self._parts or base == name:
            return None
        parts = {part: self._plain.read(f"{base}.{part}") for part in self._parts[base]}
        return unpack(self._layout, parts, base)


def _find_parts(layout: Layout, plain: Checkpoint) -> dict[str, dict[str, Shape]]:
    """X → the shapes of its parts; CheckpointError lists those that are missing or misshapen."""
    found, missing, misshapen = {}, [], []
    for name, shape in plain.shapes.items():
        base, _, suffix = name.rpartition(".")
        if suffix != layout.parts[0]:
            continue
        parts = {part: plain.shapes[f"{base}.{part}"] for part in layout.parts if f"{base}.{part}" in plain.shapes}
        if len(shape) != 2:
            misshapen.append(f"{name} {list(shape)} where two dimensions go")
            continue
        wanted = part_shapes(layout, *shape_of(layout, parts), "minimums" in parts)
        missing += [f"{base}.{part}" for part in wanted if part not in parts and part != "g_idx"]
        misshapen += [
            f"{base}.{part} {list(parts[part])} where {list(wanted[part])} goes"
            for part in parts
            if parts[part] != wanted[part]
        ]
        found[base] = parts
    if missing or misshapen:
        raise CheckpointError(f"{plain.path} does not fit its config", missing=missing, misshapen=misshapen)
    return found


def _empty_biases(plain: Checkpoint, parts: Mapping[str, Any]) -> Iterator[str]:
    """Biases of nothing but zeros that the model does not have: AutoGPTQ gave one to every matrix (its issue 555)."""
    model, family = read_config(plain.config), find_family(plain.config)
    has = {"attention.qkv": model.qkv_bias, "attention.out": model.o_bias}
    has |= {"mlp.up": model.mlp_bias, "mlp.down": model.mlp_bias}
    real = {f"layers.{i}.{path}.bias" for i in range(model.num_layers) for path, there in has.items() if there}
    wanted = expand(family, model, real)
    for base in parts:
        name = f"{base}.bias"
        if name in plain.shapes and name.removeprefix(family.prefix) not in wanted and not plain.read(name).any():
            yield name
