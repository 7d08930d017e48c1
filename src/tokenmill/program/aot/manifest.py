"""The manifest of an AOT package: what its code was compiled for, its files and their digests, compared field by field.

manifest.json      the fields, the files and their digests, sealed by a checksum
layer-one-0.pt2 …  the compiled parts: machine code, so load only packages that you made
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenmill.errors import PackageMismatch
from tokenmill.memory.atomic_file import seal, unseal

MANIFEST, FORMAT = "manifest.json", 1
REMEDY = "make it again with `tokenmill compile`, or load without it"


def check_folder(folder: Path) -> None:
    """Raise PackageMismatch for a directory or file that is no package, or holds other files too."""
    if not folder.exists():
        return
    try:
        known = {MANIFEST, *read_manifest(folder)["files"]}
    except (PackageMismatch, KeyError, TypeError) as error:
        raise PackageMismatch(f"{folder} is there and is no AOT package: it is not overwritten ({error})") from None
    if others := sorted(path.name for path in folder.iterdir() if path.name not in known):
        raise PackageMismatch(f"{folder} holds {others[0]}, which is no part of the AOT package: it is not overwritten")


def write_manifest(folder: Path, facts: Mapping[str, Any]) -> int:
    """Write the manifest of a package whose compiled parts are in `folder`; return the size of the parts in bytes."""
    paths = sorted(folder.iterdir())
    num_bytes = sum(path.stat().st_size for path in paths)
    files = {path.name: file_digest(path) for path in paths}
    (folder / MANIFEST).write_text(seal({**facts, "num_bytes": num_bytes, "files": files}, FORMAT), encoding="utf-8")
    return num_bytes


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read the facts of a package. PackageMismatch if it is no AOT package, damaged, or of another version."""
    path = folder / MANIFEST
    try:
        return unseal(path.read_bytes(), FORMAT)
    except OSError as error:
        raise PackageMismatch(f"{folder} is no AOT package: {path.name}: {error.strerror}") from error
    except ValueError as error:
        raise PackageMismatch(f"{path} {error}; {REMEDY}") from error


def file_digest(path: Path) -> str:
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
