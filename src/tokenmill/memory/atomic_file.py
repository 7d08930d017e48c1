"""Atomic file writes, and headers with a checksum. Nothing here imports torch."""

import json
import os
import re
import sys
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from errno import EINVAL, ENOTDIR
from pathlib import Path
from typing import Any, BinaryIO

TEMPORARY = re.compile(r"\.(.+)\.\d+-[0-9a-f]{8}")
"""The names that `beside` gives."""


def beside(path: Path) -> Path:
    """Make a temporary name in the same directory that no other process uses; renaming stays within one file system."""
    return path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}")


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, unless they are there; "Not a directory" where one of them is a file."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(ENOTDIR, os.strerror(ENOTDIR), str(folder)) from None


def refuse_other(path: Path) -> None:
    """Raise OSError for what is no regular file: renaming would put a file in the place of a device."""
    if path.exists() and not path.is_file():
        raise OSError(EINVAL, "it is no regular file", str(path))


@contextmanager
def writing(path: Path, sync: bool = True) -> Iterator[BinaryIO]:
    """Open a file under a temporary name, synced and renamed at the end: a reader sees the old file or the new one."""
    refuse_other(path)
    temporary = beside(path)
    try:
        with temporary.open("xb") as out:
            yield out
            out.flush()
            if sync:
                os.fsync(out.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def seal(facts: Mapping[str, Any], version: int) -> str:
    """Write a header as JSON, with its version, this machine's byte order, and a checksum over all of it."""
    plain = json.loads(json.dumps({**facts, "format": version, "byteorder": sys.byteorder}))  # as it will be read
    return json.dumps({"facts": plain, "checksum": checksum_of(plain)})


def unseal(text: str | bytes, version: int, *older: int) -> dict[str, Any]:
    """Return the facts that `seal` was given; ValueError says what is wrong with the text. older: also read."""
    try:
        document = json.loads(text)
        facts: dict[str, Any] = dict(document["facts"])
        sound = checksum_of(facts) == document["checksum"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"is cut or damaged: its header cannot be read ({error})") from error
    if not sound:
        raise ValueError("is damaged: its header does not match its checksum")
    for name, read in (("format", (version, *older)), ("byteorder", (sys.byteorder,))):
        if facts.get(name) not in read:
            raise ValueError(f"has {name} {facts.get(name)!r}, and this tokenmill reads {read[0]!r}")
    return facts


def checksum_of(facts: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(facts, sort_keys=True).encode())
