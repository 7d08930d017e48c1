"""K and V rows on disk, in token order: a safetensors file with a compatibility header, which header.py reads.

Nothing here knows blocks, engines or text. Reading copies the rows and then compares them with their checksum: the rows
stay as they are if the file is overwritten or cut later.
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialise
from torch import Tensor

from tokenmill.cache.header import FORMAT, KEY, read_facts
from tokenmill.errors import SnapshotError
from tokenmill.memory.atomic_file import seal, writing
from tokenmill.memory.interrupts import held_interrupts
from tokenmill.value_reader import brief


class Snapshot(NamedTuple):
    """The content of a file: the header, and rows: name → [T, …], one entry per layer and row kind."""

    facts: dict[str, Any]
    rows: Mapping[str, Tensor]


def write_snapshot(path: Path, facts: Mapping[str, Any], rows: Mapping[str, Tensor], sync: bool = True) -> int:
    """Write, sync, rename; return the size in bytes. SnapshotError if the system refuses; an earlier file stays.

    Without `sync` a power cut may leave a file that its checksum refuses.
    """
    tensors = {name: tensor.contiguous() for name, tensor in rows.items()}
    try:
        text = seal({**facts, "data_checksum": _checksum(tensors)}, FORMAT)
        with writing(path, sync) as out:
            out.write(serialise(tensors, metadata={KEY: text}))
            return out.tell()
    except (
        OSError,
        TypeError,
        ValueError,
        RecursionError,
    ) as error:  # or facts that JSON cannot hold
        raise SnapshotError(f"{path} cannot be written: {getattr(error, 'strerror', error)}") from error


def serialise_bytes(facts: Mapping[str, Any], name: str, parts: Sequence[Any]) -> list[Any]:
    """Make the buffers that are a file when they follow each other: facts, and `parts`, as one tensor of bytes.

    It copies nothing in memory, where fresh pages cost more than writing does; so it makes the file's header itself.
    The header begins with FRONT and the facts in their order.
    """
    count = sum(part.nbytes for part in parts)
    checksum = _checksum_of(name, torch.uint8, [count])
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    entry = {"dtype": "U8", "shape": [count], "data_offsets": [0, count]}
    text = seal({**facts, "data_checksum": checksum}, FORMAT)
    head = json.dumps({"__metadata__": {KEY: text}, name: entry}).encode()
    head += b" " * (-len(head) % 8)
    return [len(head).to_bytes(8, "little") + head, *parts]


def write_buffers(path: Path, buffers: Sequence[Any]) -> None:
    """Write the buffers of `serialise_bytes`, without sync, and rename. SnapshotError as write_snapshot."""
    try:
        with writing(path, sync=False) as out:
            for buffer in buffers:
                out.write(buffer)
    except OSError as error:
        raise SnapshotError(f"{path} cannot be written: {error.strerror}") from error


def read_snapshot(path: Path) -> Snapshot:
    """Read and check a file; its rows are copies. SnapshotError, by field, for a damaged or foreign file."""
    facts = read_facts(path)
    try:
        with held_interrupts(), safe_open(path, framework="pt") as opened:
            rows = {name: opened.get_tensor(name).clone() for name in opened.keys()}  # noqa: SIM118  (not a dict)
    except (SafetensorError, OSError) as error:
        raise SnapshotError(f"{path} is damaged: {brief(str(error))}") from error
    if _checksum(rows) != facts.get("data_checksum"):
        raise SnapshotError(f"{path} is damaged: its data does not match data_checksum")
    return Snapshot(facts, rows)


def _checksum(tensors: Mapping[str, Tensor]) -> int:
    """Sum over names, types, shapes and bytes, in the order of the names."""
    total = 0
    for name in sorted(tensors):
        tensor = tensors[name]
        total = _checksum_of(name, tensor.dtype, list(tensor.shape), total)
        total = zlib.crc32(tensor.contiguous().view(-1).view(torch.uint8).numpy().data, total)
    return total


def _checksum_of(name: str, dtype: torch.dtype, shape: list[int], before: int = 0) -> int:
    return zlib.crc32(f"{name} {dtype} {shape}".encode(), before)
