"""K and V rows on disk, in token order: a safetensors file with a compatibility header.

Nothing here knows blocks, engines or text. Reading copies the rows and then compares them with their checksum: a file
that is overwritten or cut later changes nothing of what was read. If all fields of the header but the DESCRIPTIVE ones
are equal, the rows were computed as this engine computes, and may be shared with other texts. If only the fields of
MEANING are equal, a session may still be opened; its rows are then never shared.
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

from tokenmill.errors import SnapshotError
from tokenmill.memory.atomic_file import seal, unseal, writing
from tokenmill.memory.interrupts import held_interrupts
from tokenmill.value_reader import brief

__all__ = [
    "FORMAT",
    "FRONT",
    "SERIALISED",
    "Snapshot",
    "begins_with",
    "check_compatible",
    "read_facts",
    "read_snapshot",
    "serialise_bytes",
    "shared_fields",
    "write_buffers",
    "write_snapshot",
]

FORMAT = 2
KEY = "tokenmill"  # in the file's metadata: our header, in JSON
FRONT = json.dumps({"__metadata__": {KEY: '{"facts": {'}})[:-3].encode()
"""What lies between the length of a file's header and its facts, where `serialise_bytes` has made the file."""
SERIALISED = b'{"__metadata__":{"tokenmill":'
"""The same where `write_snapshot` has made it: safetensors writes no spaces."""

# Fields of the header: not compared; required to be equal; allowed to differ with `convert`, which may change the text.
DESCRIPTIVE = ("model", "versions")
MEANING = ("fingerprint", "shape", "rope", "cache_format")
PRECISION = ("dtype", "scheme")


class Snapshot(NamedTuple):
    """What a file holds: the header, and rows: name → [T, …], one entry per layer and row kind, T positions each."""

    facts: dict[str, Any]
    rows: Mapping[str, Tensor]


def write_snapshot(path: Path, facts: Mapping[str, Any], rows: Mapping[str, Tensor], sync: bool = True) -> int:
    """Write, sync, rename; the size in bytes. SnapshotError if the system refuses; an earlier file stays.

    Without `sync` a power cut may leave a file that its checksum refuses.
    """
    tensors = {name: tensor.contiguous() for name, tensor in rows.items()}
    try:
        text = seal({**facts, "data_checksum": _checksum(tensors)}, FORMAT)
        with writing(path, sync) as out:
            out.write(serialise(tensors, metadata={KEY: text}))
            return out.tell()
    except (OSError, TypeError, ValueError, RecursionError) as error:  # the last three: facts that JSON cannot hold
        raise SnapshotError(f"{path} cannot be written: {getattr(error, 'strerror', error)}") from error


def serialise_bytes(facts: Mapping[str, Any], name: str, parts: Sequence[Any]) -> list[Any]:
    """Buffers that make a file which follow each other: facts, and `parts`, buffers too, as one tensor of bytes.

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
    """Write and rename, without `sync`, what `serialise_bytes` gave. SnapshotError as write_snapshot."""
    try:
        with writing(path, sync=False) as out:
            for buffer in buffers:
                out.write(buffer)
    except OSError as error:
        raise SnapshotError(f"{path} cannot be written: {error.strerror}") from error


def begins_with(path: Path, *fronts: bytes) -> bool:
    """Whether one of these follows the length of the header: the file is ours then, even if it is cut or damaged."""
    try:
        if not path.is_file():  # a pipe would be waited for
            return False
        with path.open("rb") as opened:
            return opened.read(8 + max(map(len, fronts)))[8:].startswith(fronts)
    except OSError:
        return False


def read_snapshot(path: Path) -> Snapshot:
    """Read and check a file; its rows are copies. SnapshotError, by field, for what is wrong."""
    facts = read_facts(path)
    try:
        with held_interrupts(), safe_open(path, framework="pt") as opened:
            rows = {name: opened.get_tensor(name).clone() for name in opened.keys()}  # noqa: SIM118  (not a dict)
    except (SafetensorError, OSError) as error:
        raise SnapshotError(f"{path} is damaged: {brief(str(error))}") from error
    if _checksum(rows) != facts.get("data_checksum"):
        raise SnapshotError(f"{path} is damaged: its data does not match data_checksum")
    return Snapshot(facts, rows)


def read_facts(path: Path) -> dict[str, Any]:
    """The header alone, checked."""
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise SnapshotError(f"{path} is a {'directory' if path.is_dir() else 'device or a pipe'}, not a snapshot")
    try:
        with held_interrupts(), safe_open(path, framework="pt") as opened:
            text = (opened.metadata() or {}).get(KEY)
    except FileNotFoundError as error:
        raise SnapshotError(f"{path} does not exist") from error
    except (SafetensorError, OSError) as error:
        raise SnapshotError(f"{path} is no saved cache, or is damaged: {brief(str(error))}") from error
    if text is None:
        raise SnapshotError(f"{path} is a safetensors file, but no saved cache: it has no {KEY!r} header")
    try:
        return unseal(text, FORMAT)
    except ValueError as error:
        raise SnapshotError(f"{path} {error}") from error


def _checksum(tensors: Mapping[str, Tensor]) -> int:
    """Over names, types, shapes and bytes, in the order of the names."""
    total = 0
    for name in sorted(tensors):
        tensor = tensors[name]
        total = _checksum_of(name, tensor.dtype, list(tensor.shape), total)
        total = zlib.crc32(tensor.contiguous().view(-1).view(torch.uint8).numpy().data, total)
    return total


def _checksum_of(name: str, dtype: torch.dtype, shape: list[int], before: int = 0) -> int:
    return zlib.crc32(f"{name} {dtype} {shape}".encode(), before)


def shared_fields(header: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that must all be equal before rows may be shared."""
    return {name: value for name, value in header.items() if name not in DESCRIPTIVE}


def check_compatible(path: Path, theirs: Mapping[str, Any], ours: Mapping[str, Any], convert: bool) -> bool:
    """Whether rows with the header `theirs` may be shared; SnapshotError, by field, where they cannot even be used."""
    for name in MEANING:
        if theirs[name] != ours[name]:
            raise SnapshotError(f"{path} is of another model or setting: {_difference(name, theirs[name], ours[name])}")
    for name in PRECISION:
        if theirs[name] != ours[name] and not convert:
            raise SnapshotError(
                f"{path} has {name} {brief(theirs[name])} and this engine {ours[name]!r}: the text would not be the "
                f"same; load the model with {name}={brief(theirs[name])}, or open it with convert=True"
            )
    return all(theirs.get(name) == value for name, value in shared_fields(ours).items())


def _difference(name: str, theirs: object, ours: object) -> str:
    if isinstance(theirs, dict) and isinstance(ours, dict):
        parts = [
            f"{brief(key)[1:-1]} {brief(theirs.get(key))}, here {ours.get(key)!r}"
            for key in {**theirs, **ours}
            if theirs.get(key) != ours.get(key)
        ]
        return f"{name}: {'; '.join(parts[:20])}"
    return f"{name} is {brief(theirs)}, here {ours!r}"
