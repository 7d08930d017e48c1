"""The facts of an adapter's files, read from their headers, without the model that they change and without torch."""

import hashlib
from collections import Counter
from math import prod
from pathlib import Path
from typing import Any

from tokenmill.errors import CheckpointError, file_errors
from tokenmill.hub.weight_files import ADAPTER_CONFIG, holds_adapter
from tokenmill.text.tokenizer import read_json
from tokenmill.value_reader import ValueReader
from tokenmill.weights.adapters.named import weights_of
from tokenmill.weights.adapters.peft_config import read_peft_config
from tokenmill.weights.adapters.tensor_names import (
    REPLACED,
    Names,
    Shape,
    check_pairs,
    is_turned,
    names_of_gguf,
    names_of_peft,
)
from tokenmill.weights.gguf.header import read_header
from tokenmill.weights.safetensors_file import SafetensorsFile

Shapes = dict[str, Shape]


def is_adapter(path: Path) -> bool:
    """Tell whether there is an adapter at a path: a directory of PEFT without a model, or llama.cpp's file."""
    if path.is_dir():
        return holds_adapter([file.name for file in path.iterdir()])
    return path.suffix.lower() == ".gguf" and read_header(path).metadata.get("general.type") == "adapter"


def read_adapter_header(path: Path) -> tuple[dict[str, Any], Shapes | None]:
    """Read the format, rank and alpha, and the base as the files name it; and the shapes of the tensors, which a pickle
    does not tell. CheckpointError as the load raises it, also where a tensor lacks its other half.
    """
    return _of_peft(path) if path.is_dir() else _of_gguf(path)


def read_adapter_facts(path: Path) -> dict[str, Any]:
    """Read the facts of read_adapter_header, the changed modules by the last part of their names, the names of tensors
    that are replaced, and the SHA-256 of the bytes. CheckpointError also for a pickle.
    """
    (facts, shapes), file = read_adapter_header(path), weights_of(path)
    if shapes is None:
        raise CheckpointError(f"{file} is a pickle, whose tensors are not listed: save the adapter as safetensors")
    names = names_of_peft(shapes, str(file)) if path.is_dir() else names_of_gguf(shapes, str(file))
    changed = {module for module, kind in names.values() if kind not in REPLACED}
    with file_errors(file, "read"), file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    return {
        "path": str(path),
        "kind": "adapter",
        **facts,
        "modules": dict(Counter(module.rpartition(".")[2] for module in sorted(changed))),
        "replaced": sorted(name for name, (_, kind) in names.items() if kind in REPLACED),
        "num_parameters": sum(map(prod, shapes.values())),
        "num_bytes": file.stat().st_size,
        "digest": digest,
    }


def _of_peft(path: Path) -> tuple[dict[str, Any], Shapes | None]:
    config, file = read_json(path / ADAPTER_CONFIG), weights_of(path)
    checked = read_peft_config(config, str(path / ADAPTER_CONFIG))
    shapes: Shapes | None = None
    if file.suffix == ".safetensors":
        with file_errors(file, "read"):
            shapes = dict(SafetensorsFile(file).shapes)
        _check(names_of_peft(shapes, str(file)), shapes, file)
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
    _check(names_of_gguf(shapes, str(path)), shapes, path)
    ranks = [min(shape) for name, shape in shapes.items() if name.endswith(".lora_a")]
    return {
        "format": f"GGUF for {reader.text('general.architecture')}",
        "base": str(header.metadata.get("general.base_model.0.name") or ""),
        "rank": max(ranks, default=0),
        "alpha": reader.number("adapter.lora.alpha", 0.0, minimum=-1e9),
        "rslora": False,
        "dora": False,
    }, shapes


def _check(names: Names, shapes: Shapes, file: Path) -> None:
    """Check the pairs of factors as the load does."""
    modules: dict[str, dict[str, Shape]] = {}
    is_gguf = file.suffix.lower() == ".gguf"
    for name, place in names.items():
        shape = shapes[name]
        modules.setdefault(place[0], {})[place[1]] = shape[::-1] if is_gguf and is_turned(place, len(shape)) else shape
    check_pairs(modules, str(file), stacks=is_gguf)
