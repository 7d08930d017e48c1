"""GGUF files as checkpoints: Hugging Face's names and layout.

llama.cpp's converters rename every tensor and transform some
(https://github.com/ggml-org/llama.cpp/tree/master/conversion). The new names come from the gguf package's own table,
applied to the names of the family, and each transform is undone here, so that a float32 file gives back exactly what
was converted.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tokenmill.errors import CheckpointError, file_errors
from tokenmill.model.families import find_family
from tokenmill.quant.rtn import round_to_nearest
from tokenmill.quant.stored import Stored
from tokenmill.text.tokenizer import Tokenizer
from tokenmill.text.vocab import tokenizer_from_gguf
from tokenmill.weights.generation import defaults_of_gguf
from tokenmill.weights.gguf.codes import BITS, KINDS, decode
from tokenmill.weights.gguf.config import FLOATS, read_gguf_config
from tokenmill.weights.gguf.header import TensorInfo, read_header
from tokenmill.weights.plain import Checkpoint

__all__ = ["GGUFCheckpoint"]

CHUNK = 2**18  # values dequantised at a time: temporaries stay in the second-level cache
_ROPE_FREQS = "rope_freqs.weight"
Transform = Callable[[Tensor, Mapping[str, Any]], Tensor]


class GGUFCheckpoint(Checkpoint):
    def __init__(self, path: Path) -> None:
        header = read_header(path)
        self.path, self._metadata, self._data_offset = path, header.metadata, header.data_offset
        self.num_bytes = sum(info.num_bytes for info in header.tensors.values())
        factors = header.tensors.get(_ROPE_FREQS)
        rope_factors = None if factors is None else self._load(factors).flatten().tolist()
        self.config = read_gguf_config(path, header, rope_factors)
        self.rounded = _describe_rounding(header.tensors.values())
        if any(info.type not in FLOATS for info in header.tensors.values()):
            self.config["stored_as_codes"] = _code_bits(header.tensors)
        if (table := header.tensors.get("token_embd.weight")) is not None and table.type in KINDS:
            self.config["embedding_as_codes"] = BITS.get(table.type, 8.5)
        self._sources = self._find_sources(header.tensors)
        self.shapes = {
            name: info.shape[::-1] if transform is _transpose else info.shape
            for name, (info, transform) in self._sources.items()
        }

    def read(self, name: str, dtype: torch.dtype = torch.float32) -> Tensor:
        """May be a view that is not contiguous."""
        info, transform = self._sources[name]
        return transform(self._load(info, dtype), self.config)

    def read_codes(self, name: str) -> Stored | None:
        info, transform = self._sources[name]
        if info.type in FLOATS or len(info.shape) != 2:
            return None
        kept = info.type in KINDS
        stored = decode(self._raw(info), info.type) if kept else round_to_nearest(self._load(info), 8, quick=True)
        return stored if transform is _transpose else stored.map(lambda part: transform(part, self.config))

    def tokenizer(self) -> Tokenizer | None:
        return tokenizer_from_gguf(self._metadata) if "tokenizer.ggml.tokens" in self._metadata else None

    def generation_defaults(self) -> dict[str, Any]:
        return defaults_of_gguf(self.path, self._metadata)

    def _find_sources(self, tensors: Mapping[str, TensorInfo]) -> dict[str, tuple[TensorInfo, Transform]]:
        """Hugging Face name → where it lies and how it is read; CheckpointError lists what no name belongs to."""
        model_type = self.config["model_type"]
        bases = _hf_bases(self._metadata["general.architecture"], model_type)
        sources: dict[str, tuple[TensorInfo, Transform]] = {}
        unexpected = []
        for stored_name, info in tensors.items():
            base, _, suffix = stored_name.rpartition(".")
            kind, layer = re.sub(r"^blk\.\d+\.", "blk.{i}.", base), re.match(r"blk\.(\d+)\.", base)
            if kind in bases and suffix in ("weight", "bias"):
                name = bases[kind].replace("{i}", layer[1] if layer else "") + f".{suffix}"
                transform = _TRANSFORMS.get((model_type, kind.removeprefix("blk.{i}.")), lambda tensor, _: tensor)
                sources |= {expert: (part, transform) for expert, part in self._experts(name, info)}
            elif not (stored_name == _ROPE_FREQS and "rope_scaling" in self.config):
                unexpected.append(stored_name)
        if unexpected:
            raise CheckpointError(f"{self.path} holds tensors that no {model_type} has", unexpected=unexpected)
        return sources

    def _experts(self, name: str, info: TensorInfo) -> Iterator[tuple[str, TensorInfo]]:
        """The tensor itself, or each expert of the stack that it is."""
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

    def _raw(self, info: TensorInfo) -> NDArray[np.uint8]:
        """The bytes of a tensor, row by row: [rows, bytes of a row]."""
        with file_errors(self.path, "read"):
            raw = np.fromfile(self.path, np.uint8, info.num_bytes, offset=self._data_offset + info.offset)
        if raw.size != info.num_bytes:
            raise CheckpointError(f"{self.path} ends inside tensor {info.name!r}: it was changed while it was in use")
        return raw.reshape(prod(info.shape[:-1]), -1)

    def _load(self, info: TensorInfo, dtype: torch.dtype = torch.float32) -> Tensor:
        """The values of a tensor as it is stored, from its own bytes alone; in that dtype if it is quantised."""
        kind, raw, shape = info.type, self._raw(info), info.shape
        if kind in FLOATS:
            return torch.from_numpy(raw).view(getattr(torch, FLOATS[kind])).reshape(shape)
        values = torch.empty((len(raw), shape[-1]), dtype=dtype)
        step = max(CHUNK // shape[-1], 1)  # some rows at a time, since there are several temporaries as large
        try:
            for first in range(0, len(raw), step):
                values[first : first + step] = _dequantised(raw[first : first + step], kind)
        except NotImplementedError:
            what = f"tensor {info.name!r} is of type {kind.name}, which cannot be dequantised"
            raise CheckpointError(f"{self.path}: {what}") from None
        return values.reshape(shape)


def _dequantised(rows: NDArray[np.uint8], kind: gguf.GGMLQuantizationType) -> Tensor:
    """The float32 values of some rows."""
    if kind in KINDS:
        return decode(rows, kind).values()
    with np.errstate(all="ignore"):  # damaged scales are infinite or NaN, which numpy would warn of
        return torch.from_numpy(gguf.dequantize(rows, kind))


def _code_bits(tensors: Mapping[str, TensorInfo]) -> float:
    """Bits per number of the matrices that tokens are multiplied with, a tied head among them."""
    tables = ("position_embd.", "token_embd.") if "output.weight" in tensors else ("position_embd.",)
    matrices = [info for name, info in tensors.items() if len(info.shape) > 1 and not name.startswith(tables)]
    bits = sum(prod(info.shape) * BITS.get(info.type, 8.5) for info in matrices)
    return bits / max(sum(prod(info.shape) for info in matrices), 1)


def _describe_rounding(tensors: Iterable[TensorInfo]) -> str:
    counts = Counter(info.type.name for info in tensors if info.type not in FLOATS and info.type not in KINDS)
    if not counts:
        return ""
    found = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    return f"codes of other kinds are rounded to 8 bits: {found}; --dtype bfloat16 reads the file's values instead"


def _hf_bases(arch: str, model_type: str) -> dict[str, str]:
    """GGUF name → Hugging Face name, both without .weight or .bias; {i} is the layer, {e} the expert."""
    number = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    names = gguf.get_tensor_name_map(number, 1)
    family = find_family({"model_type": model_type})
    bases = {}
    for pattern in family.names:
        base = family.prefix + re.sub(r"(\{p\}|\.weight|\.bias)$", "", pattern)
        # gguf's table names the head without the family's prefix, and experts without their number.
        for spelling in (base, base.removeprefix(family.prefix)):
            stored = names.get_name(spelling.replace("{i}", "0").replace(".{e}", ""))
            if stored is not None:
                bases[stored.replace("blk.0.", "blk.{i}.")] = spelling
                break
    return bases


def _transpose(tensor: Tensor, config: Mapping[str, Any]) -> Tensor:
    """[out, in] → [in, out], as GPT-2's Conv1D has it; a bias stays."""
    return tensor.t()


def _swap_axes(axis: int, shape: tuple[int | str, ...], tensor: Tensor, config: Mapping[str, Any]) -> Tensor:
    """The rows as an array of `shape`, keys of the config and one -1, with `axis` and the one after it exchanged."""
    sizes = [config[size] if isinstance(size, str) else size for size in shape]
    if tensor.shape[0] % abs(prod(sizes)):
        return tensor  # its shape is reported as wrong by the loader
    return tensor.reshape(*sizes, *tensor.shape[1:]).transpose(axis, axis + 1).reshape(tensor.shape)


# Within each head, from pairs of rows that rotate together, 0 1, 2 3, …, to all even rows, then all odd rows.
_halve_q = partial(_swap_axes, 1, ("num_attention_heads", -1, 2))
_halve_k = partial(_swap_axes, 1, ("num_key_value_heads", -1, 2))
# [(q, k, v) · N · H, …] → [N · (q, k, v) · H, …]
_interleave_qkv = partial(_swap_axes, 0, (3, "num_attention_heads", -1))
# (model_type, GGUF's name within the layer) → what undoes the converter's transform
_TRANSFORMS: dict[tuple[str, str], Transform] = {
    **{(family, "attn_q"): _halve_q for family in ("llama", "mistral", "mixtral")},
    **{(family, "attn_k"): _halve_k for family in ("llama", "mistral", "mixtral")},
    **{("gpt2", name): _transpose for name in ("attn_qkv", "attn_output", "ffn_up", "ffn_down")},
    ("gpt_neox", "attn_qkv"): _interleave_qkv,
}
