"""New model directories: safetensors files written as their tensors are made, and a directory that appears complete.

The format's own library wants a file's tensors all at once. Its files are eight bytes of header length, a JSON header
of names, types, shapes and offsets, then the data; so types and shapes must be known before the first is made.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tokenmill.errors import CapacityError, CheckpointError, ConfigError

__all__ = ["Unit", "check_new", "new_directory", "write_shards"]

_TYPE_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.uint8: "U8"}


@dataclass(frozen=True)
class Unit:
    """Tensors that are made together and stay in one file: what they will be, and how they are made."""

    specs: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
    make: Callable[[], Mapping[str, Tensor]]

    @property
    def num_bytes(self) -> int:
        """On disk."""
        return sum(dtype.itemsize * prod(shape) for dtype, shape in self.specs.values())


def check_new(path: Path) -> None:
    """ConfigError unless the directory is new or empty."""
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise ConfigError("out", str(path), "a directory that is new or empty")


@contextmanager
def new_directory(path: Path, num_bytes: int, setting: str) -> Iterator[Path]:
    """A temporary directory that gets its name when the block ends well; after an error nothing is left.

    CapacityError, which names `setting`, where the disk has no space for `num_bytes`; CheckpointError where it refuses.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(path.parent).free
        if free < num_bytes:
            raise CapacityError(f"bytes on disk for {path}", num_bytes, free, f"the output directory or the {setting}")
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}-") as temporary:
            complete = Path(temporary) / path.name
            complete.mkdir()
            yield complete
            complete.replace(path)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {error.strerror or error}") from error


def write_shards(units: Sequence[Unit], folder: Path, shard_bytes: int) -> None:
    """model.safetensors, or several with an index; each as full as it gets."""
    shards = _split(units, shard_bytes)
    if len(shards) == 1:
        _write(shards[0], folder / "model.safetensors")
        return
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        file = folder / f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        _write(shard, file)
        weight_map |= {name: file.name for unit in shard for name in unit.specs}
    index = {"metadata": {"total_size": sum(unit.num_bytes for unit in units)}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _split(units: Sequence[Unit], shard_bytes: int) -> list[list[Unit]]:
    """In order; a larger unit has a file to itself."""
    shards: list[list[Unit]] = [[]]
    space = shard_bytes
    for unit in units:
        if unit.num_bytes > space and shards[-1]:
            shards.append([])
            space = shard_bytes
        shards[-1].append(unit)
        space -= unit.num_bytes
    return shards


def _write(units: Sequence[Unit], file: Path) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for unit in units:
        for name, (dtype, shape) in unit.specs.items():
            start, end = end, end + dtype.itemsize * prod(shape)
            header[name] = {"dtype": _TYPE_NAMES[dtype], "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the data begins at a multiple of 8
    with file.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for unit in units:
            made = unit.make()
            for name, (dtype, shape) in unit.specs.items():
                tensor = made[name]
                assert (tensor.dtype, tuple(tensor.shape)) == (dtype, shape), f"{name} is not what its header says"
                out.write(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
        out.flush()
        os.fsync(out.fileno())
