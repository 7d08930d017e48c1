"""The facts of an adapter's files, read from their headers, without the model that they change and without torch."""

import hashlib
from collections import Counter
from math import prod
from pathlib import Path
from typing import Any

from tokenmill.errors import CheckpointError, file_errors
from tokenmill.text.tokenizer import read_json
from tokenmill.value_reader import ValueReader
from tokenmill.weights.adapters.named import weights_of
from tokenmill.weights.adapters.peft_config import CONFIG, read_peft_config
from tokenmill.weights.gguf.header import read_header
from tokenmill.weights.safetensors_file import SafetensorsFile

FACTORS = (
    ".lora_A",
    ".lora_B",
    ".lora_a",
    ".lora_b",
    ".lora_embedding_A",
    ".lora_embedding_B",
    ".lora_magnitude_vector",
)
Shapes = dict[str, tuple[int, ...]]


def is_adapter(path: Path) -> bool:
    """Tell whether there is an adapter at a path: a directory of PEFT without a model, or llama.cpp's file."""
    if path.is_dir():
        return (path / CONFIG).is_file() and not (path / "config.json").is_file()
    return path.suffix.lower() == ".gguf" and read_header(path).metadata.get("general.type") == "adapter"


def read_adapter_facts(path: Path) -> dict[str, Any]:
    """Read the format, rank and alpha, the base as the files name it, the changed modules by the last part of their
    names, the names of tensors that are replaced, and the SHA-256 of the bytes. CheckpointError as the load raises it.
    """
    found, shapes = _of_peft(path) if path.is_dir() else _of_gguf(path)
    factors = {name: shape for name, shape in shapes.items() if any(kind in name for kind in FACTORS)}
    modules = {_module(name) for name in factors}
    file = weights_of(path)
    with file_errors(file, "read"), file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    return {
        "path": str(path),
        "kind": "adapter",
        **found,
        "modules": dict(Counter(name.rpartition(".")[2] for name in sorted(modules))),
        "replaced": sorted(shapes.keys() - factors.keys()),
        "num_parameters": sum(map(prod, shapes.values())),
        "num_bytes": file.stat().st_size,
        "digest": digest,
    }


def _of_peft(path: Path) -> tuple[dict[str, Any], Shapes]:
    config = read_json(path / CONFIG)
    checked = read_peft_config(config, str(path / CONFIG))
    file = weights_of(path)
    if file.suffix != ".safetensors":
        raise CheckpointError(f"{file} is a pickle, whose tensors are not listed: save the adapter as safetensors")
    with file_errors(file, "read"):
        shapes = dict(SafetensorsFile(file).shapes)
    return {
        "format": "PEFT",
        "base": str(config.get("base_model_name_or_path") or ""),
        "rank": checked.rank,
        "alpha": checked.alpha,
        "rslora": checked.rslora,
        "dora": checked.dora,
    }, shapes


def _of_gguf(path: Path) -> tuple[dict[str, Any], Shapes]:
    header = read_header(path)
    reader = ValueReader(header.metadata, str(path), CheckpointError)
    shapes = {name: tuple(info.shape) for name, info in header.tensors.items()}
    ranks = [min(shape) for name, shape in shapes.items() if name.endswith(".lora_a")]
    return {
        "format": f"GGUF for {reader.text('general.architecture')}",
        "base": str(header.metadata.get("general.base_model.0.name") or ""),
        "rank": max(ranks, default=0),
        "alpha": reader.number("adapter.lora.alpha", 0.0, minimum=-1e9),
        "rslora": False,
        "dora": False,
    }, shapes


def _module(name: str) -> str:
    """Cut the kind of factor off the name of a tensor, and `.weight` before it."""
    at = min(name.find(kind) for kind in FACTORS if kind in name)
    return name[:at].removesuffix(".weight")
