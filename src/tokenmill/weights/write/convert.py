"""Any checkpoint, written out as a directory in Hugging Face layout.

Tensors are read, cast and written one at a time, so memory holds one of them. The directory appears under its name only
when it is whole. The safetensors format is written here because its library wants a file's tensors all at once:
eight bytes of header length, a JSON header of names, types, shapes and offsets, then the numbers.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import torch

from tokenmill.config import DTYPES
from tokenmill.errors import CapacityError, CheckpointError, ConfigError
from tokenmill.hub.download import Progress
from tokenmill.model.families import find_family, read_config
from tokenmill.text.tokenizer import Tokenizer
from tokenmill.weights.checkpoint import Checkpoint
from tokenmill.weights.names import is_ignored

__all__ = ["SHARD_BYTES", "convert", "write_settings"]

SHARD_BYTES = 5_000_000_000  # as transformers splits them

_TYPE_NAMES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
_SETTINGS = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)

Shapes = Mapping[str, tuple[int, ...]]


def convert(
    checkpoint: Checkpoint, out_dir: Path, dtype: str, progress: Progress, shard_bytes: int = SHARD_BYTES
) -> Path:
    """Write config, weights, tokenizer and generation config to `out_dir`, which must be new or empty.

    dtype: a name in DTYPES, or "auto" for the checkpoint's own. Buffers that are no weights are left out. Raises
    CapacityError when the disk has no room and CheckpointError when writing fails; then nothing is left behind.
    """
    model = read_config(checkpoint.config)
    dtype = model.dtype if dtype == "auto" else dtype
    if dtype not in DTYPES:
        raise ConfigError("dtype", dtype, f"use one of auto, {', '.join(DTYPES)}")
    if out_dir.exists() and not (out_dir.is_dir() and not any(out_dir.iterdir())):
        raise ConfigError("out", str(out_dir), "a directory that is new or empty")
    family = find_family(checkpoint.config)
    shapes = {
        name: shape
        for name, shape in checkpoint.shapes.items()
        if not is_ignored(family, name.removeprefix(family.prefix))
    }
    try:
        out_dir.parent.mkdir(parents=True, exist_ok=True)
        _expect_room(out_dir, sum(map(prod, shapes.values())) * DTYPES[dtype])
        with tempfile.TemporaryDirectory(dir=out_dir.parent, prefix=f".{out_dir.name}-") as temporary:
            whole = Path(temporary) / out_dir.name
            whole.mkdir()
            _write_weights(checkpoint, shapes, whole, dtype, progress, shard_bytes)
            write_settings(checkpoint, whole, dtype, progress)
            whole.replace(out_dir)
    except OSError as error:
        raise CheckpointError(f"{out_dir} cannot be written: {error.strerror or error}") from error
    return out_dir


def _expect_room(out_dir: Path, needed: int) -> None:
    free = shutil.disk_usage(out_dir.parent).free
    if free < needed:
        raise CapacityError(f"bytes on disk for {out_dir}", needed, free, "the output directory or the dtype")


def _write_weights(
    checkpoint: Checkpoint, shapes: Shapes, path: Path, dtype: str, progress: Progress, shard_bytes: int
) -> None:
    shards = _split(shapes, DTYPES[dtype], shard_bytes)
    if len(shards) == 1:
        _write_shard(checkpoint, shards[0], path / "model.safetensors", dtype, progress)
        return
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        file = path / f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        _write_shard(checkpoint, shard, file, dtype, progress)
        weight_map |= dict.fromkeys(shard, file.name)
    total = sum(map(prod, shapes.values())) * DTYPES[dtype]
    _write_json(path / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map})


def _split(shapes: Shapes, itemsize: int, shard_bytes: int) -> list[Shapes]:
    """In the checkpoint's order, each shard as full as it gets; a larger tensor has one to itself."""
    shards: list[dict[str, tuple[int, ...]]] = [{}]
    room = shard_bytes
    for name, shape in shapes.items():
        size = prod(shape) * itemsize
        if size > room and shards[-1]:
            shards.append({})
            room = shard_bytes
        shards[-1][name] = shape
        room -= size
    return [*shards]


def _write_shard(checkpoint: Checkpoint, shapes: Shapes, file: Path, dtype: str, progress: Progress) -> None:
    progress.stage(f"writing {file.name}")
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in shapes.items():
        start, end = end, end + prod(shape) * DTYPES[dtype]
        header[name] = {"dtype": _TYPE_NAMES[dtype], "shape": list(shape), "data_offsets": [start, end]}  # type: ignore[dict-item]
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the numbers begin at a multiple of 8
    with file.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for done, name in enumerate(shapes, 1):
            tensor = checkpoint.read(name)
            if not tensor.is_floating_point():
                raise CheckpointError(
                    f"{name} holds {tensor.dtype}: quantised exports of this kind cannot be converted"
                )
            tensor = tensor.to(getattr(torch, dtype)).contiguous()
            out.write(tensor.view(-1).view(torch.uint8).numpy().data)
            progress.advance(done, len(shapes))
        out.flush()
        os.fsync(out.fileno())


def write_settings(checkpoint: Checkpoint, path: Path, dtype: str, progress: Progress) -> None:
    """config.json, and the tokenizer: a directory's own files as they are, a GGUF's made from its metadata."""
    progress.stage("writing config and tokenizer")
    config = {key: value for key, value in checkpoint.config.items() if key not in ("dtype", "stored_as_codes")}
    _write_json(path / "config.json", config | {"torch_dtype": dtype})
    if checkpoint.path.is_dir():
        for name in _SETTINGS:
            if (checkpoint.path / name).is_file():
                shutil.copyfile(checkpoint.path / name, path / name)
        return
    tokenizer = checkpoint.tokenizer()
    if tokenizer is not None:
        _write_tokenizer(tokenizer, path, read_config(checkpoint.config).context)


def _write_tokenizer(tokenizer: Tokenizer, path: Path, context: int) -> None:
    tokenizer.backend.save(str(path / "tokenizer.json"))
    # Whether a BOS is added is said by the post-processor in tokenizer.json.
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": context, **tokenizer.special_texts}
    settings["clean_up_tokenization_spaces"] = False
    if tokenizer.chat_template is not None:
        settings["chat_template"] = tokenizer.chat_template
    _write_json(path / "tokenizer_config.json", settings)
    stops = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": list(tokenizer.eos_token_ids)}
    _write_json(
        path / "generation_config.json", {key: value for key, value in stops.items() if value not in (None, [])}
    )


def _write_json(file: Path, value: Any) -> None:
    file.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
