"""A GGUF file as a checkpoint, with llama.cpp's names of tensors, and a config in the words of Hugging Face."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
from numpy.typing import NDArray

from tokenmill.errors import CheckpointError, file_errors
from tokenmill.model.config import ModelConfig
from tokenmill.model.families import Family, in_gguf, read_config
from tokenmill.model.families.mixers_of import mixer_of
from tokenmill.model.families.mtp import MTP_STORED, NEXTN, has_mtp_alone
from tokenmill.model.mixers.latent import LatentBlock
from tokenmill.model.per_layer import CODED
from tokenmill.registry import TENSOR_READERS, lookup
from tokenmill.settings.recommended import Recommended
from tokenmill.text.tokenizer import Tokenizer
from tokenmill.text.vocab import has_vocabulary, tokenizer_from_gguf
from tokenmill.value_reader import brief
from tokenmill.weights.generation import defaults_of_gguf
from tokenmill.weights.gguf.config import ROPE_FREQS, listed, read_gguf_config
from tokenmill.weights.gguf.header import BITS, COMPACT_BITS, FLOATS, KINDS, TensorInfo, read_header, read_parts
from tokenmill.weights.heads import rows_by_head
from tokenmill.weights.names import inputs_as_stored, is_further, is_ignored, is_unread, known, num_stacked
from tokenmill.weights.plain import Checkpoint

MAX_HEAD = 1 << 16  # entries of a head, far above any
IN_METADATA = "[{i}]"  # ends the names of weights that are a list in the metadata, of one number for each layer
ONE_ROW = (".ffn_gate_inp_shexp.weight", ".exp_probs_b.bias")  # written as vectors, and as matrices of one row

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from tokenmill.quant.stored import Stored


_ROPES = {"rope_scaling", "rope_parameters"}  # of which one says what the divisors of frequencies mean


def is_mtp_alone(path: Path) -> bool:
    """Tell whether a file has the layer that predicts further tokens alone."""
    return has_mtp_alone(read_header(path).tensors)


class GGUFCheckpoint(Checkpoint):
    """A GGUF file. metadata: its keys and values. infos: where each tensor lies. numbers: the weights that stand in the
    metadata. Both by their names. largest_type: llama.cpp's name of the type of tensors that takes most bytes.
    """

    in_gguf = True

    def __init__(self, path: Path, part: str = "") -> None:
        header, self._parts = read_parts(path)
        self.path, self.metadata = path, header.metadata
        self.num_bytes = sum(info.num_bytes for info in header.tensors.values())
        self.largest_type = _largest_type(header.tensors.values())
        found = {name: header.tensors[name] for name in listed(header)}
        if wide := [name for name, info in found.items() if prod(info.shape) > MAX_HEAD]:
            raise CheckpointError(
                f"{path}: {wide[0]} has {prod(found[wide[0]].shape)} numbers, more than a head can have"
            )
        lists = {name: gguf.dequantize(self.raw(info), info.type).flatten().tolist() for name, info in found.items()}
        if has_mtp_alone(header.tensors) and not part:
            what = "the layer that predicts further tokens alone: give it as draft_model, beside its model"
            raise CheckpointError(f"{path} holds {what}")
        self.config = read_gguf_config(path, header, lists)
        self.rounded = _describe_rounding(header.tensors.values())
        if any(info.type not in FLOATS for info in header.tensors.values()):
            self.config["stored_as_codes"] = _code_bits(header.tensors, BITS)
            self.config["stored_as_compact_codes"] = _code_bits(header.tensors, COMPACT_BITS)
        if (table := header.tensors.get("token_embd.weight")) is not None and table.type in KINDS:
            self.config["embedding_as_codes"] = BITS.get(table.type, 8.5)
        self.config["model_type"] += part
        family = in_gguf(self.config["model_type"], header.tensors)
        if family.mtp is not None and any(name.endswith(NEXTN) for name in header.tensors):
            self.config[MTP_STORED] = True
        self.infos = self._find_infos(family, header.tensors)
        self.numbers = self._find_numbers(family)
        self.shapes = {name: info.shape for name, info in self.infos.items()} | dict.fromkeys(self.numbers, (1,))
        self.config.update(inputs_as_stored(self))

    def _find_numbers(self, family: Family) -> dict[str, float]:
        """Find the weights that stand in the metadata, a number for each layer, by their names."""
        found: dict[str, float] = {}
        for pattern in (name for name in family.names if name.endswith(IN_METADATA)):
            key = pattern.removesuffix(IN_METADATA)
            values = self.metadata.get(key, [])
            if not isinstance(values, list) or not all(isinstance(value, float) for value in values):
                raise CheckpointError(f"{self.path}: {key} is {brief(values)}, and must be a list of numbers")
            found |= {f"{key}[{layer}]": value for layer, value in enumerate(values)}
        return found

    def dtype_of(self, name: str) -> str:
        return "float32" if name in self.numbers else FLOATS.get(self.infos[name].type, "float32")

    def read(self, name: str, dtype: "torch.dtype | None" = None, rows: range | None = None) -> "Tensor":
        """Read one tensor, which may be a view that is not contiguous."""
        tensor: Tensor = lookup(TENSOR_READERS, "gguf", "model").read(self, name, dtype, rows)
        return tensor

    def read_codes(self, name: str, rows: range | None = None) -> "Stored | None":
        stored: Stored | None = lookup(TENSOR_READERS, "gguf", "model").read_codes(self, name, rows)
        return stored

    def mapped_as(self, name: str) -> str:
        kind = self.infos[name].type
        return FLOATS.get(kind) or (kind.name if kind.name in CODED else "")

    def mapped(self, name: str) -> "Tensor":
        found: Tensor = lookup(TENSOR_READERS, "gguf", "model").mapped(self, name)
        return found

    def tokenizer(self) -> Tokenizer | None:
        return _tokenizer(self.metadata)

    @staticmethod
    def tokenizer_of(path: Path) -> Tokenizer | None:
        """Read the tokenizer alone, of a file that need not hold a model."""
        header, _ = read_parts(path)
        return _tokenizer(header.metadata)

    def generation_defaults(self) -> Recommended:
        return defaults_of_gguf(self.path, self.metadata)

    def _find_infos(self, family: Family, tensors: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
        """Find where each tensor lies, each expert of a stack by itself; CheckpointError lists tensors that no such
        model has.
        """
        names, model = known(family), read_config(self.config)
        infos, unexpected = dict[str, TensorInfo](), []
        for name, stored in tensors.items():
            match, is_row = names.fullmatch(name), name.endswith(ONE_ROW) and stored.shape[0] == 1
            info = replace(stored, shape=stored.shape[1:]) if is_row else stored
            if is_further(family, model, name) or is_unread(family, model, name):
                continue
            if match is not None:
                infos |= self._unstacked(info, model) if match["stack"] else {name: info}
            elif not is_ignored(family, name) or (name == ROPE_FREQS and not _ROPES & self.config.keys()):
                unexpected.append(name)
        if unexpected:
            model_type = self.config["model_type"]
            raise CheckpointError(f"{self.path} holds tensors that no {model_type} has", unexpected=unexpected)
        return infos

    def _unstacked(self, info: TensorInfo, model: ModelConfig) -> dict[str, TensorInfo]:
        """Split a stack of experts, heads or other matrices into one tensor for each, by name."""
        if info.name.endswith("attn_kv_b.weight"):
            return self._by_heads(info, model)
        of_heads = info.name.endswith(("attn_k_b.weight", "attn_v_b.weight"))
        count, what = (model.num_heads, "heads") if of_heads else (num_stacked(model), "matrices")
        if info.shape[0] != count:
            what = "experts" if "_exps." in info.name else what
            shape = f"{info.name} {list(info.shape)}, needs {count} {what}"
            raise CheckpointError(f"{self.path} does not fit its metadata", misshapen=[shape])
        size = info.num_bytes // count
        places = {f"{info.name}[{i}]": info.offset + i * size for i in range(count)}
        return {
            name: replace(info, shape=info.shape[1:], offset=offset, num_bytes=size) for name, offset in places.items()
        }

    def _by_heads(self, info: TensorInfo, model: ModelConfig) -> dict[str, TensorInfo]:
        """Split the matrix of the keys and values of all heads into one tensor for each, by name."""
        block = mixer_of(model, LatentBlock)
        assert block is not None, "latent attention alone has such a tensor"
        rows = rows_by_head(info.name, block)
        wanted = (max(each.stop for each in rows.values()), block.latent_dim)
        if info.shape != wanted:
            shape = f"{info.name} {list(info.shape)} where {list(wanted)} goes"
            raise CheckpointError(f"{self.path} does not fit its metadata", misshapen=[shape])
        return {name: info.stretch(each) for name, each in rows.items()}

    def mapped_bytes(self, info: TensorInfo) -> NDArray[np.uint8]:
        """Map the bytes of a tensor, row by row: [rows, bytes of a row]."""
        path, data_offset = self._parts[info.part]
        rows = prod(info.shape[:-1])
        try:
            with file_errors(path, "read"):  # mode "c", since torch takes no arrays that cannot be written
                return np.memmap(path, np.uint8, "c", data_offset + info.offset, (rows, info.num_bytes // rows))
        except ValueError:
            what = f"ends inside tensor {info.name!r}: it was changed while it was in use"
            raise CheckpointError(f"{path} {what}") from None

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


def is_number(name: str) -> bool:
    """Tell whether a weight of that name stands in the metadata."""
    return name.endswith("]") and not name.startswith("blk.") and ".weight[" not in name


def _code_bits(tensors: Mapping[str, TensorInfo], of_type: Mapping[Any, float]) -> float:
    """Count the bits per number of the matrices that tokens are multiplied with, a tied head among them."""
    tables = ("position_embd.", "token_embd.") if "output.weight" in tensors else ("position_embd.",)
    matrices = [info for name, info in tensors.items() if len(info.shape) > 1 and not name.startswith(tables)]
    bits = sum(prod(info.shape) * of_type.get(info.type, 8.5) for info in matrices)
    return bits / max(sum(prod(info.shape) for info in matrices), 1)


def _largest_type(tensors: Iterable[TensorInfo]) -> str:
    """Find the type that takes the most bytes of a file; "" for a file without tensors."""
    counts = Counter[str]()
    for info in tensors:
        counts[info.type.name] += info.num_bytes
    return counts.most_common(1)[0][0] if counts else ""


def _describe_rounding(tensors: Iterable[TensorInfo]) -> str:
    counts = Counter(info.type.name for info in tensors if info.type not in FLOATS and info.type not in KINDS)
    if not counts:
        return ""
    found = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    return f"codes of other kinds are rounded to 8 bits: {found}; --scheme dense reads the file's values instead"
