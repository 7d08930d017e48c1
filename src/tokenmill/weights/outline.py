"""The facts that the files of a model tell where it cannot be opened: its family is not implemented, or its config or
its codes are not understood.

Nothing is computed from an outline. So every size is optional, and left out where it is no whole number.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from tokenmill.errors import CheckpointError
from tokenmill.model.families.refused import features_of_config, features_of_keys, text_of
from tokenmill.text.tokenizer import Tokenizer, read_json
from tokenmill.text.vocab import has_vocabulary, tokenizer_from_gguf
from tokenmill.weights.files import weight_files
from tokenmill.weights.gguf.header import Header, read_header, read_parts
from tokenmill.weights.plain import PlainCheckpoint
from tokenmill.weights.tensor_file import dtype_bytes

# Size → the keys that families have for it in a config.json, and llama.cpp in GGUF metadata after its architecture.
_SIZES: Mapping[str, tuple[str, ...]] = {
    "num_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "block_count"),
    "hidden_size": ("hidden_size", "n_embd", "d_model", "embedding_length"),
    "num_heads": ("num_attention_heads", "n_head", "n_heads", "attention.head_count"),
    "num_kv_heads": ("num_key_value_heads", "multi_query_group_num", "attention.head_count_kv"),
    "head_dim": ("head_dim", "kv_channels", "attention.key_length"),
    "intermediate_size": ("intermediate_size", "ffn_hidden_size", "n_inner", "feed_forward_length"),
    "num_experts": ("num_experts", "num_local_experts", "n_routed_experts", "expert_count"),
    "num_experts_per_token": ("num_experts_per_tok", "moe_topk", "top_k_experts", "expert_used_count"),
    "vocab_size": ("vocab_size", "padded_vocab_size", "n_vocab"),
    "context": ("max_position_embeddings", "n_positions", "seq_length", "max_seq_len", "context_length"),
}


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as the file has it."""

    name: str
    shape: tuple[int, ...]
    type: str
    num_bytes: int


@dataclass(frozen=True)
class Outline:
    """The facts of a model. family: the `model_type`, or llama.cpp's name of the architecture. sizes: by the names that
    `tokenmill info` has for them. tokenizer: None where the model has none, or it is not understood.
    """

    family: str
    architectures: tuple[str, ...]
    sizes: dict[str, int]
    features: tuple[str, ...]
    tensors: tuple[StoredTensor, ...]
    tokenizer: Tokenizer | None


def read_outline(path: Path) -> Outline | None:
    """Read the outline of a GGUF file, or of a directory with a config.json; None for anything else."""
    try:
        return _of_directory(path) if path.is_dir() else _of_gguf(_header(path))
    except CheckpointError:
        return None


def _of_directory(path: Path) -> Outline | None:
    if not (path / "config.json").is_file():
        return None
    config = read_json(path / "config.json")
    family, classes = config.get("model_type"), config.get("architectures")
    classes = [name for name in classes if isinstance(name, str)] if isinstance(classes, list) else []
    if not isinstance(family, str) and not classes:
        return None
    text = text_of(config)
    return Outline(
        family if isinstance(family, str) else classes[0],
        tuple(classes),
        _sizes({**config, **text}),
        features_of_config(config),
        tuple(_tensors(path)),
        _tokenizer(lambda: Tokenizer.from_directory(path)),
    )


def _header(path: Path) -> Header:
    """Read the header of a GGUF file, with the tensors of all its parts if they are there."""
    try:
        return read_parts(path)[0]
    except CheckpointError:
        return read_header(path)


def _of_gguf(header: Header) -> Outline | None:
    metadata = header.metadata
    family = metadata.get("general.architecture")
    if not isinstance(family, str):
        return None
    own = {key.removeprefix(f"{family}."): value for key, value in metadata.items() if key.startswith(f"{family}.")}
    words = metadata.get("tokenizer.ggml.tokens")
    counted = {"vocab_size": len(words)} if isinstance(words, list) else {}
    return Outline(
        family,
        (),
        {**counted, **_sizes(own)},
        features_of_keys(own),
        tuple(StoredTensor(t.name, tuple(t.shape), t.type.name, t.num_bytes) for t in header.tensors.values()),
        _tokenizer(lambda: tokenizer_from_gguf(metadata) if has_vocabulary(metadata) else None),
    )


def _sizes(values: Mapping[str, Any]) -> dict[str, int]:
    """Find the sizes that are whole numbers; the largest where a list has one for each layer."""
    found = {}
    for name, keys in _SIZES.items():
        for key in keys:
            value = values.get(key)
            numbers = value if isinstance(value, list) else [value]
            if numbers and all(type(number) is int and number >= 0 for number in numbers):
                found[name] = max(numbers)
                break
    return found


def _tensors(path: Path) -> Iterator[StoredTensor]:
    """List the tensors of a directory; none where it has no files of weights, or files of another layout."""
    try:
        files = PlainCheckpoint(path, {}, weight_files(path))
    except CheckpointError:
        return
    for name, shape in files.shapes.items():
        dtype = files.dtype_of(name)
        yield StoredTensor(name, shape, dtype, prod(shape) * dtype_bytes(dtype))


def _tokenizer(read: Callable[[], Tokenizer | None]) -> Tokenizer | None:
    try:
        return read()
    except CheckpointError:
        return None
