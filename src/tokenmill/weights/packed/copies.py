"""Packed copies of models in the cache folder, so that only a model's first load reads and packs its own files.

A copy's name is a digest of what its weights depend on: the model's files, the version of tokenmill, and the settings
by which they were packed. Copies that were not used for longest are deleted when there is no room for a new one. A
copy that is being read may be deleted or replaced: its readers keep the old file. Nothing here imports torch.
"""

import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from tokenmill.config import EngineConfig
from tokenmill.errors import CapacityError, CheckpointError, file_errors
from tokenmill.hub.download import cache_folder
from tokenmill.memory.file_lock import locked
from tokenmill.version import __version__
from tokenmill.weights.fingerprint import files_of, fingerprint
from tokenmill.weights.packed.reader import REMEDY, PackedReader, is_packed_model, read_header
from tokenmill.weights.packed.verified import forget, last_used

__all__ = [
    "Copy",
    "copies",
    "copies_folder",
    "copy_name",
    "delete_copy",
    "delete_leftovers",
    "make_room",
    "say_unusable",
    "start_reading",
    "without_remedy",
    "writing_copy",
]

log = logging.getLogger(__name__)

SMALLEST = 16 << 20  # bytes of weights; smaller models load as quickly from their own files
SUFFIX = ".packed"


class Copy(NamedTuple):
    """A copy on disk. source: the model that it was made of. used_at: in seconds since 1970."""

    path: Path
    source: str
    kind: str
    num_bytes: int
    used_at: float


def copies_folder() -> Path:
    return cache_folder() / "packed"


def copy_name(model: Path, config: EngineConfig) -> str:
    """The file name of a model's copy for these settings; CheckpointError where the model cannot be read."""
    digests = sorted(fingerprint(model, config.fingerprint).items())
    with file_errors(model, "read"):
        files = [file.stat() for files in files_of(model).values() for file in files]
    sizes = [(file.st_size, file.st_mtime_ns) for file in files]  # digests of samples miss what is edited in place
    what = repr((__version__, digests, sizes, config.program, config.dtype, config.scheme))
    return f"{model.name.removesuffix('.gguf')}-{sha256(what.encode()).hexdigest()[:16]}{SUFFIX}"


def start_reading(model: Path, config: EngineConfig) -> PackedReader | None:
    """Begins to read a packed model, or the packed copy of another model, if there is one."""
    if is_packed_model(model):
        return PackedReader(model)
    if not config.packed_cache:
        return None
    path = copies_folder() / copy_name(model, config)
    try:
        return PackedReader(path) if path.is_file() else None
    except CheckpointError as error:
        say_unusable(error)
        return None


def say_unusable(error: CheckpointError) -> None:
    """The model's own files serve in the place of a copy."""
    log.warning("%s; the model's own files are read, and another copy is made", without_remedy(error))


def without_remedy(error: CheckpointError) -> str:
    """What is wrong with a copy, without the advice to make it again, since that happens by itself."""
    return str(error).removesuffix(f"; {REMEDY}").removesuffix(": make it again").removesuffix("; make it again")


def make_room(num_bytes: int, limit_bytes: int) -> None:
    """Delete copies that were not used for longest until one of this size fits. CapacityError where it cannot."""
    if num_bytes > limit_bytes:
        what, setting = "packed_limit for a packed copy", "packed_limit"
        raise CapacityError(what, num_bytes, limit_bytes, setting, in_bytes=True)
    found = sorted(copies(), key=lambda copy: -copy.used_at)
    total = num_bytes + sum(copy.num_bytes for copy in found)
    free = shutil.disk_usage(copies_folder()).free
    while found and (total > limit_bytes or free < num_bytes):
        oldest = found.pop()
        delete_copy(oldest.path)
        total, free = total - oldest.num_bytes, shutil.disk_usage(copies_folder()).free
    if free < num_bytes:
        raise CapacityError("disk space for a packed copy", num_bytes, free, "TOKENMILL_CACHE", in_bytes=True)


@contextmanager
def writing_copy(path: Path) -> Iterator[bool]:
    """Inside, this process alone writes that copy; False if another one does. What killed ones left is deleted."""
    path.parent.mkdir(parents=True, exist_ok=True)
    delete_leftovers()
    with locked(_lock_of(path)) as is_alone:
        yield is_alone


def delete_leftovers() -> None:
    """Delete what processes have written of copies before they were killed."""
    for left in copies_folder().glob(f".*{SUFFIX}.*-*"):
        name = left.name[1 : left.name.rindex(SUFFIX)] + SUFFIX
        with suppress(OSError), locked(_lock_of(left.with_name(name))) as is_dead:
            if is_dead:
                left.unlink(missing_ok=True)


def copies() -> list[Copy]:
    """All copies that are there, also of other versions."""
    found = []
    for path in sorted(file for file in copies_folder().glob(f"*{SUFFIX}") if file.is_file()):
        try:
            facts, _ = read_header(path)
            source, kind = facts["source"], f"{facts['program']} {facts['dtype']} {facts['scheme']}"
        except CheckpointError:  # of another version, or damaged
            source, kind = "", "unknown"
        try:
            found.append(Copy(path, source, kind, path.stat().st_size, last_used(path)))
        except FileNotFoundError:  # another process deleted it
            continue
    return found


def delete_copy(path: Path) -> None:
    path.unlink(missing_ok=True)
    forget(path)
    with suppress(OSError), locked(_lock_of(path)) as is_alone:
        if is_alone:
            _lock_of(path).unlink(missing_ok=True)


def _lock_of(path: Path) -> Path:
    """The file of the lock that the writer of a copy has."""
    return path.with_name(f".{path.name}.lock")
