"""GGUF files as checkpoints: Hugging Face's names, Hugging Face's layout, whatever llama.cpp made of the tensors.

llama.cpp's converters rename every tensor and transform some. The new names come from the gguf package's own table,
applied to the names of the family, and each transform is undone here, so that a float32 file gives back exactly what
went in
(converters: https://github.com/ggml-org/llama.cpp/tree/master/conversion). A tensor is read from the file when it is
asked for, dequantised, and not kept.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tokenmill.errors import CheckpointError
from tokenmill.model.families import find_family
from tokenmill.quant.rtn import round_to_nearest
from tokenmill.quant.stored import Stored
from tokenmill.text.tokenizer import Tokenizer
from tokenmill.text.vocab import tokenizer_from_gguf
from tokenmill.weights.generation import defaults_of_gguf
from tokenmill.weights.gguf.codes import BITS, KINDS, decode
from tokenmill.weights.gguf.config import read_gguf_config
from tokenmill.weights.gguf.header import TensorInfo, read_header

__all__ = ["GGUFCheckpoint"]

CHUNK = 2**18  # values dequantised at a time: temporaries stay in the second-level cache
_ROPE_FREQS = "rope_freqs.weight"
_FLOATS = {
    gguf.GGMLQuantizationType.F32: torch.float32,
    gguf.GGMLQuantizationType.F16: torch.float16,
    gguf.GGMLQuantizationType.BF16: torch.bfloat16,
}
Transform = Callable[[Tensor, Mapping[str, Any]], Tensor]


@dataclass(frozen=True, slots=True)
class _Source:
    """Where one Hugging Face tensor lies: all of a GGUF tensor, or one expert of a stack, and how it is transformed."""

    info: TensorInfo
    expert: int | None
    transform: Transform | None

    @property
    def stored_shape(self) -> tuple[int, ...]:
        return self.info.shape if self.expert is None else self.info.shape[1:]


class GGUFCheckpoint:
    """One `.gguf` file. See Checkpoint for what the attributes mean."""

    def __init__(self, path: Path) -> None:
        header = read_header(path)
        self.path, self._metadata, self._data_offset = path, header.metadata, header.data_offset
        self.num_bytes = sum(info.num_bytes for info in header.tensors.values())
        factors = header.tensors.get(_ROPE_FREQS)
        self.config = read_gguf_config(path, header, None if factors is None else self._rope_factors(factors))
        self.rounded = _say_rounded(header.tensors.values())
        if any(info.type not in _FLOATS for info in header.tensors.values()):
            self.config["stored_as_codes"] = _code_bits(header.tensors)
        self._sources = self._find_sources(header.tensors)
        self.shapes: Mapping[str, tuple[int, ...]] = {
            name: source.stored_shape[::-1] if source.transform is _transpose else source.stored_shape
            for name, source in self._sources.items()
        }

    def read(self, name: str) -> Tensor:
        """See Checkpoint. May be a view that is not contiguous."""
        source = self._sources[name]
        tensor = self._load(source.info, source.stored_shape, source.expert or 0)
        return tensor if source.transform is None else source.transform(tensor, self.config)

    def read_codes(self, name: str) -> Stored | None:
        """See Checkpoint."""
        source = self._sources[name]
        if source.info.type in _FLOATS or len(source.stored_shape) != 2:
            return None
        if source.info.type in KINDS:
            raw = self._raw(source.info, source.stored_shape, source.expert or 0)
            stored = decode(raw.reshape(source.stored_shape[0], -1), source.info.type)
        else:
            stored = round_to_nearest(self._load(source.info, source.stored_shape, source.expert or 0), 8)
        transform = source.transform
        return (
            stored
            if transform is None or transform is _transpose
            else stored.map(lambda part: transform(part, self.config))
        )

    def tokenizer(self) -> Tokenizer | None:
        """See Checkpoint."""
        return tokenizer_from_gguf(self._metadata) if "tokenizer.ggml.tokens" in self._metadata else None

    def generation_defaults(self) -> dict[str, Any]:
        """See Checkpoint."""
        return defaults_of_gguf(self.path, self._metadata)

    def _rope_factors(self, info: TensorInfo) -> list[float]:
        factors: list[float] = self._load(info, info.shape, 0).flatten().tolist()
        return factors

    def _find_sources(self, tensors: Mapping[str, TensorInfo]) -> dict[str, _Source]:
        """Hugging Face name → where it lies; CheckpointError lists the tensors that no name belongs to."""
        bases = _hf_bases(self._metadata["general.architecture"], self.config["model_type"])
        sources: dict[str, _Source] = {}
        unexpected = []
        for stored_name, info in tensors.items():
            base, _, suffix = stored_name.rpartition(".")
            kind, layer = re.sub(r"^blk\.\d+\.", "blk.{i}.", base), re.match(r"blk\.(\d+)\.", base)
            if kind in bases and suffix in ("weight", "bias"):
                name = bases[kind].replace("{i}", layer[1] if layer else "") + f".{suffix}"
                transform = _TRANSFORMS.get((self.config["model_type"], kind.removeprefix("blk.{i}.")))
                sources |= {name: _Source(info, expert, transform) for name, expert in self._experts(name, info)}
            elif not (stored_name == _ROPE_FREQS and "rope_scaling" in self.config):
                unexpected.append(stored_name)
        if unexpected:
            raise CheckpointError(
                f"{self.path} holds tensors that no {self.config['model_type']} has", unexpected=unexpected
            )
        return sources

    def _experts(self, name: str, info: TensorInfo) -> Iterator[tuple[str, int | None]]:
        """The name itself, or one name for each expert of the stack that is stored under it."""
        if "{e}" not in name:
            yield name, None
            return
        num_experts = self.config["num_local_experts"]
        if len(info.shape) != 3 or info.shape[0] != num_experts:
            shape = f"{info.name} {list(info.shape)}, needs {num_experts} experts of two dimensions"
            raise CheckpointError(f"{self.path} does not fit its metadata", misshapen=[shape])
        for expert in range(num_experts):
            yield name.replace("{e}", str(expert)), expert

    def _raw(self, info: TensorInfo, shape: tuple[int, ...], index: int) -> NDArray[np.uint8]:
        """The bytes of the index-th piece of that shape."""
        block, block_bytes = gguf.GGML_QUANT_SIZES[info.type]
        num_bytes = prod(shape) // block * block_bytes
        start = self._data_offset + info.offset + index * num_bytes
        try:
            raw = np.fromfile(self.path, np.uint8, num_bytes, offset=start)
        except OSError as error:
            raise CheckpointError(f"{self.path} cannot be read: {error.strerror}") from error
        if raw.size != num_bytes:
            raise CheckpointError(f"{self.path} ends inside tensor {info.name!r}: it was changed while it was in use")
        return raw

    def _load(self, info: TensorInfo, shape: tuple[int, ...], index: int) -> Tensor:
        """The index-th piece of that shape, from its own bytes alone."""
        block, block_bytes = gguf.GGML_QUANT_SIZES[info.type]
        raw = self._raw(info, shape, index)
        if info.type in _FLOATS:
            return torch.from_numpy(raw).view(_FLOATS[info.type]).reshape(shape)
        try:
            return _dequantize(raw.reshape(-1, shape[-1] // block * block_bytes), info.type, shape)
        except NotImplementedError:
            raise CheckpointError(
                f"{self.path}: tensor {info.name!r} is of type {info.type.name}, which cannot be dequantised"
            ) from None


def _code_bits(tensors: Mapping[str, TensorInfo]) -> float:
    """Bits per number of the matrices that tokens are multiplied with, a tied head among them."""
    tables = ("position_embd.", "token_embd.") if "output.weight" in tensors else ("position_embd.",)
    sizes = [
        (prod(info.shape), BITS.get(info.type, 8.5))
        for name, info in tensors.items()
        if len(info.shape) > 1 and not name.startswith(tables)
    ]
    return sum(size * bits for size, bits in sizes) / max(sum(size for size, _ in sizes), 1)


def _say_rounded(tensors: Iterable[TensorInfo]) -> str:
    counts = Counter(info.type.name for info in tensors if info.type not in _FLOATS and info.type not in KINDS)
    if not counts:
        return ""
    found = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    return f"codes of other kinds are rounded to 8 bits: {found}; --dtype bfloat16 reads the file's values instead"


def _dequantize(rows: NDArray[np.uint8], kind: gguf.GGMLQuantizationType, shape: tuple[int, ...]) -> Tensor:
    """float32 values, some rows at a time: gguf makes several temporaries as large as what it is given."""
    values = np.empty((len(rows), shape[-1]), np.float32)
    step = max(CHUNK // shape[-1], 1)
    # Damaged scales are infinite or NaN, which numpy would warn of.
    with np.errstate(all="ignore"):
        for first in range(0, len(rows), step):
            values[first : first + step] = gguf.dequantize(rows[first : first + step], kind)
    return torch.from_numpy(values).reshape(shape)


def _hf_bases(arch: str, model_type: str) -> dict[str, str]:
    """GGUF name → Hugging Face name, both without .weight or .bias; {i} is the layer, {e} the expert."""
    number = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    names = gguf.get_tensor_name_map(number, 1)
    family = find_family({"model_type": model_type})
    bases = {}
    for pattern in family.names:
        base = family.prefix + re.sub(r"(\{p\}|\.weight|\.bias)$", "", pattern)
        # gguf's table has neither the prefix of a head beside the body nor an expert's number.
        for spelling in (base, base.removeprefix(family.prefix)):
            stored = names.get_name(spelling.replace("{i}", "0").replace(".{e}", ""))
            if stored is not None:
                bases[stored.replace("blk.0.", "blk.{i}.")] = spelling
                break
    return bases


def _transpose(tensor: Tensor, config: Mapping[str, Any]) -> Tensor:
    """[out, in] → [in, out], as GPT-2's Conv1D has it; a bias stays."""
    del config
    return tensor.t()


def _halve_heads(tensor: Tensor, num_heads: int) -> Tensor:
    """Each head's rows from pairs that rotate together, (0, 1), (2, 3), …, to all first ones, then all second ones."""
    if tensor.shape[0] % (2 * num_heads):
        return tensor  # its shape is reported as wrong by the loader
    pairs = tensor.reshape(num_heads, tensor.shape[0] // num_heads // 2, 2, *tensor.shape[1:])
    return pairs.transpose(1, 2).reshape(tensor.shape)


def _halve_q(tensor: Tensor, config: Mapping[str, Any]) -> Tensor:
    return _halve_heads(tensor, config["num_attention_heads"])


def _halve_k(tensor: Tensor, config: Mapping[str, Any]) -> Tensor:
    return _halve_heads(tensor, config["num_key_value_heads"])


def _interleave_qkv(tensor: Tensor, config: Mapping[str, Any]) -> Tensor:
    """[(q, k, v) · N · H, …] → [N · (q, k, v) · H, …]"""
    num_heads = config["num_attention_heads"]
    if tensor.shape[0] % (3 * num_heads):
        return tensor  # its shape is reported as wrong by the loader
    parts = tensor.reshape(3, num_heads, tensor.shape[0] // num_heads // 3, *tensor.shape[1:])
    return parts.transpose(0, 1).reshape(tensor.shape)


# (model_type, GGUF's name within the layer) → what undoes the converter's transform
_TRANSFORMS: dict[tuple[str, str], Transform] = {
    **{(family, "attn_q"): _halve_q for family in ("llama", "mistral", "mixtral")},
    **{(family, "attn_k"): _halve_k for family in ("llama", "mistral", "mixtral")},
    **{("gpt2", name): _transpose for name in ("attn_qkv", "attn_output", "ffn_up", "ffn_down")},
    ("gpt_neox", "attn_qkv"): _interleave_qkv,
}
