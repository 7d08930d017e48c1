"""A GGUF file as a checkpoint, described in Hugging Face's names and layout (names.py)."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
from numpy.typing import NDArray

from tokenmill.errors import CheckpointError, file_errors
from tokenmill.text.tokenizer import Tokenizer
from tokenmill.text.vocab import has_vocabulary, tokenizer_from_gguf
from tokenmill.weights.generation import defaults_of_gguf
from tokenmill.weights.gguf.config import read_gguf_config
from tokenmill.weights.gguf.header import TensorInfo
from tokenmill.weights.gguf.kinds import BITS, FLOATS, KINDS
from tokenmill.weights.gguf.names import ROPE_FREQS, Transform, find_transform, hf_bases
from tokenmill.weights.gguf.parts import read_parts
from tokenmill.weights.plain import Checkpoint

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from tokenmill.quant.stored import Stored


class GGUFCheckpoint(Checkpoint):
    """metadata: the file's keys and values."""

    def __init__(self, path: Path) -> None:
        header, self._parts = read_parts(path)
        self.path, self.metadata = path, header.metadata
        self.num_bytes = sum(info.num_bytes for info in header.tensors.values())
        factors = header.tensors.get(ROPE_FREQS)
        rope_factors = None if factors is None else gguf.dequantize(self.raw(factors), factors.type).flatten().tolist()
        self.config = read_gguf_config(path, header, rope_factors)
        self.rounded = _describe_rounding(header.tensors.values())
        if any(info.type not in FLOATS for info in header.tensors.values()):
            self.config["stored_as_codes"] = _code_bits(header.tensors)
        if (table := header.tensors.get("token_embd.weight")) is not None and table.type in KINDS:
            self.config["embedding_as_codes"] = BITS.get(table.type, 8.5)
        self._sources = self._find_sources(header.tensors)
        self.shapes = {
            name: info.shape[::-1] if transform.transposes else info.shape
            for name, (info, transform) in self._sources.items()
        }

    def source_of(self, name: str) -> tuple[TensorInfo, Transform]:
        """Find where a tensor lies in the file, and how it is brought to Hugging Face's layout."""
        return self._sources[name]

    def dtype_of(self, name: str) -> str:
        info, _ = self._sources[name]
        return FLOATS.get(info.type, "float32")

    def read(self, name: str, dtype: "torch.dtype | None" = None, rows: range | None = None) -> "Tensor":
        """Read one tensor, which may be a view that is not contiguous."""
        return self.find_reader("gguf").read(name, dtype, rows)

    def read_codes(self, name: str, rows: range | None = None) -> "Stored | None":
        return self.find_reader("gguf").read_codes(name, rows)

    def tokenizer(self) -> Tokenizer | None:
        return _tokenizer(self.metadata)

    @staticmethod
    def tokenizer_of(path: Path) -> Tokenizer | None:
        """The tokenizer alone, of a file that need not hold a model."""
        header, _ = read_parts(path)
        return _tokenizer(header.metadata)

    def generation_defaults(self) -> dict[str, Any]:
        return defaults_of_gguf(self.path, self.metadata)

    def _find_sources(self, tensors: Mapping[str, TensorInfo]) -> dict[str, tuple[TensorInfo, Transform]]:
        """Find, for each Hugging Face name, where it lies and how it is read; CheckpointError lists what has
        no name.
        """
        model_type = self.config["model_type"]
        bases = hf_bases(model_type)
        sources: dict[str, tuple[TensorInfo, Transform]] = {}
        unexpected = []
        for stored_name, info in tensors.items():
            base, _, suffix = stored_name.rpartition(".")
            kind, layer = re.sub(r"^blk\.\d+\.", "blk.{i}.", base), re.match(r"blk\.(\d+)\.", base)
            if kind in bases and suffix in ("weight", "bias"):
                name = bases[kind].replace("{i}", layer[1] if layer else "") + f".{suffix}"
                transform = find_transform(model_type, kind)
                sources |= {expert: (part, transform) for expert, part in self._experts(name, info)}
            elif not (stored_name == ROPE_FREQS and "rope_scaling" in self.config):
                unexpected.append(stored_name)
        if unexpected:
            raise CheckpointError(f"{self.path} holds tensors that no {model_type} has", unexpected=unexpected)
        return sources

    def _experts(self, name: str, info: TensorInfo) -> Iterator[tuple[str, TensorInfo]]:
        """Yield the tensor itself, or each expert of the stack that it is."""
        if "{e}" not in name:
            yield name, info
            return
        num_experts = self.config["num_local_experts"]
        if len(info.shape) != 3 or info.shape[0] != num_experts:
            shape = f"{info.name} {list(info.shape)}, needs {num_experts} experts of two dimensions"
            raise CheckpointError(f"{self.path} does not fit its metadata", misshapen=[shape])
        size = info.num_bytes // num_experts
        for i in range(num_experts):
            part = replace(info, shape=info.shape[1:], offset=info.offset + i * size, num_bytes=size)
            yield name.replace("{e}", str(i)), part

    def raw(self, info: TensorInfo) -> NDArray[np.uint8]:
        """Return the bytes of a tensor, row by row: [rows, bytes of a row]."""
        path, data_offset = self._parts[info.part]
        with file_errors(path, "read"):
            raw = np.fromfile(path, np.uint8, info.num_bytes, offset=data_offset + info.offset)
        if raw.size != info.num_bytes:
            raise CheckpointError(f"{path} ends inside tensor {info.name!r}: it was changed while it was in use")
        return raw.reshape(prod(info.shape[:-1]), -1)


def _tokenizer(metadata: Mapping[str, Any]) -> Tokenizer | None:
    return tokenizer_from_gguf(metadata) if has_vocabulary(metadata) else None


def _code_bits(tensors: Mapping[str, TensorInfo]) -> float:
    """Count the bits per number of the matrices that tokens are multiplied with, a tied head among them."""
    tables = ("position_embd.", "token_embd.") if "output.weight" in tensors else ("position_embd.",)
    matrices = [info for name, info in tensors.items() if len(info.shape) > 1 and not name.startswith(tables)]
    bits = sum(prod(info.shape) * BITS.get(info.type, 8.5) for info in matrices)
    return bits / max(sum(prod(info.shape) for info in matrices), 1)


def _describe_rounding(tensors: Iterable[TensorInfo]) -> str:
    counts = Counter(info.type.name for info in tensors if info.type not in FLOATS and info.type not in KINDS)
    if not counts:
        return ""
    found = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    return f"codes of other kinds are rounded to 8 bits: {found}; --scheme dense reads the file's values instead"
