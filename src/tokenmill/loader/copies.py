"""Packed copies of models in the cache folder, so that only a model's first load reads and packs its own files.

A copy's name has everything that its weights depend on: the program, dtype and scheme, which settings and the model's
config resolve to, and a digest of the model's files and the version of tokenmill. One copy serves in any dtype where
nearly all of it is the files' own codes, and its name says so. Copies that were not used for longest are deleted when
there is no room for a new one. A copy that is being read may be deleted or replaced: its readers keep the old file. A
copy has its own name inside, so that another file under that name is not taken. Other files in the folder are not
touched. Nothing here imports torch.
"""

import glob
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from itertools import chain
from math import inf
from os import stat_result
from pathlib import Path
from typing import Any, NamedTuple

from tokenmill.errors import CapacityError, CheckpointError, file_errors
from tokenmill.hub.download import cache_folder
from tokenmill.hub.names import locate
from tokenmill.memory.atomic_file import TEMPORARY
from tokenmill.memory.bounded_folder import BoundedFolder
from tokenmill.memory.disk_limit import Limit, free_disk, limit_of
from tokenmill.memory.file_lock import locked, locked_file
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.version import __version__
from tokenmill.weights.fingerprint import files_of, fingerprint
from tokenmill.weights.packed.reader import ANY_DTYPE, MAGIC, REMEDY, PackedReader, is_packed_model, read_header
from tokenmill.weights.packed.verified import forget, last_used

log = logging.getLogger(__name__)

SMALLEST = 16 << 20  # bytes of weights; smaller models load as quickly from their own files
COPIES_LIMIT = Limit(20_000, 1 / 5)  # a 7B model in 4 bits has a copy where 20 GB are free
SUFFIX = ".packed"
NAMES = re.compile(rf".+-[0-9a-f]{{16}}\{SUFFIX}")
WAIT_S = 1.0  # for another process that makes room; then no copy is kept this time


class PackedCopy(NamedTuple):
    """A copy on disk. source: the model of which it was made. used_at: in seconds since 1970."""

    path: Path
    source: str
    kind: str
    num_bytes: int
    used_at: float


def copies_folder() -> Path:
    return cache_folder() / "packed"


def copy_names(model: Path, config: EngineConfig) -> dict[str, str]:
    """Name the files that a model's copy for resolved settings may have, by the dtype inside: the one of the settings,
    or ANY_DTYPE. CheckpointError where the model cannot be read.
    """
    return _named(_stem(model), (config.program, config.dtype, config.scheme), _digest(model, config))


def _named(stem: str, kind: tuple[str, str, str], digest: str) -> dict[str, str]:
    program, dtype, scheme = kind
    return {each: f"{stem}-{program}-{each}-{scheme}-{digest}{SUFFIX}" for each in (dtype, ANY_DTYPE)}


def _last_used_copy(model: Path, config: EngineConfig) -> Path | None:
    """Find the copy for these settings that was used last; any value may stand in the place of "auto"."""
    program, dtype, scheme = (
        "*" if value == "auto" else value for value in (config.program, config.dtype, config.scheme)
    )
    names = _named(glob.escape(_stem(model)), (program, dtype, scheme), _digest(model, config)).values()
    found = chain.from_iterable(map(copies_folder().glob, names))
    return max(found, key=last_used, default=None)


def _stem(model: Path) -> str:
    return model.name.removesuffix(".gguf")


def _digest(model: Path, config: EngineConfig) -> str:
    """Compute the digest of this version and of all files of which a copy is made."""
    found, other = _state_of(model, config), None
    if config.tokenizer is not None:  # the copy contains the tokenizer of that model
        other = _state_of(locate(config.tokenizer), config)
    return sha256(repr((__version__, *found, other)).encode()).hexdigest()[:16]


def _state_of(model: Path, config: EngineConfig) -> tuple[list[tuple[str, str]], list[tuple[int, int]]]:
    """Read the digests of a model's files, and their sizes and times: digests of samples miss edits in place."""
    digests = sorted(fingerprint(model, config.fingerprint).items())
    with file_errors(model, "read"):
        files = [file.stat() for files in files_of(model).values() for file in files]
    return digests, [(file.st_size, file.st_mtime_ns) for file in files]


def start_reading(model: Path, config: EngineConfig) -> PackedReader | None:
    """Begin to read a packed model, or the packed copy of another model, if there is one.

    Where settings are "auto" the copy may be of other settings than they resolve to later, by the model's config.
    """
    if is_packed_model(model):
        return PackedReader(model)
    if not config.packed_cache:
        return None
    path = _last_used_copy(model, config)
    try:
        return None if path is None else PackedReader(path, is_copy=True)
    except CheckpointError as error:
        say_unusable(error)
        return None


def say_unusable(error: CheckpointError) -> None:
    """Warn that the model's own files serve in the place of a copy."""
    log.warning("%s; the model's own files are read, and another copy is made", without_remedy(error))


def without_remedy(error: CheckpointError) -> str:
    """Say what is wrong with a copy, without the advice to make it again, since that happens by itself."""
    return str(error).removesuffix(f"; {REMEDY}").removesuffix(": make it again").removesuffix("; make it again")


class CopiesFolder(BoundedFolder):
    """The packed copies of all models. The writer of a copy has a lock for it, since writing takes minutes."""

    def __init__(self, limit_bytes: float = inf) -> None:
        super().__init__(copies_folder(), "packed copies", NAMES, _is_own, limit_bytes)

    def used_at(self, path: Path, status: stat_result) -> float:
        """Look up when a copy was used. The file's own time must stay, or the copy would have to be verified again."""
        return last_used(path)

    def is_left(self, path: Path, status: stat_result) -> bool:
        found = TEMPORARY.fullmatch(path.name)
        assert found, "a temporary name"
        with locked(_lock_of(path.with_name(found[1]))) as is_dead:
            return is_dead

    def delete(self, path: Path) -> None:
        delete_copy(path)


def copies_limit(limit_mb: int | None) -> int:
    """Compute the bytes that all copies may take, by the setting packed_limit or else by the disk."""
    if limit_mb is not None:
        return limit_of(limit_mb, COPIES_LIMIT, 0)
    taken = sum(file.num_bytes for file in CopiesFolder().files())
    return limit_of(None, COPIES_LIMIT, free_disk(copies_folder()) + taken)


@contextmanager
def room_for_copy(num_bytes: int, limit_bytes: int) -> Iterator[bool]:
    """Let this process alone begin a copy of so many bytes inside the context; False if another process begins one.

    Copies that were not used for longest are deleted before. CapacityError where there is no room.
    """
    with locked_file(copies_folder() / ".room.lock", WAIT_S) as lock:
        if lock is not None:
            make_room(num_bytes, limit_bytes)
        yield lock is not None


def make_room(num_bytes: int, limit_bytes: int) -> None:
    """Delete copies that were not used for longest until one of this size fits. CapacityError where it cannot."""
    folder = CopiesFolder(limit_bytes)
    there = folder.make_room(num_bytes, lambda: _free() >= num_bytes)
    if there + num_bytes > limit_bytes:
        available = limit_bytes - sum(file.num_bytes for file in folder.begun())
        what, setting = "packed_limit for a packed copy", "packed_limit"
        raise CapacityError(what, num_bytes, max(available, 0), setting, in_bytes=True)
    if (free := _free()) < num_bytes:
        raise CapacityError("disk space for a packed copy", num_bytes, free, "TOKENMILL_CACHE", in_bytes=True)


def _free() -> int:
    return free_disk(copies_folder())


@contextmanager
def writing_copy(path: Path) -> Iterator[bool]:
    """Let this process alone write that copy inside the context, without leftovers; False if another one does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    CopiesFolder().remove_leftovers()
    with locked(_lock_of(path)) as is_alone:
        try:
            yield is_alone
        finally:
            if is_alone and not path.exists():  # the copy has the other name, or there is none
                _lock_of(path).unlink(missing_ok=True)


def copies() -> list[PackedCopy]:
    """List all copies, also of other versions, by name; other packed models in the folder are left out."""
    found = []
    for used_at, path, num_bytes in sorted(CopiesFolder().files(), key=lambda file: file.path):
        facts = _facts(path)
        source = facts.get("source", "")
        kind = f"{facts['program']} {facts['dtype']} {facts['scheme']}" if facts else "unknown"
        found.append(PackedCopy(path, source, kind, num_bytes, used_at))
    return found


def _facts(path: Path) -> dict[str, Any]:
    """Read what a packed model says of itself; nothing if it is of another version, or damaged."""
    try:
        return read_header(path)[0]
    except CheckpointError:
        return {}


def _is_own(path: Path) -> bool:
    """Say whether a file begins as a copy, at any stage of writing it; other packed models lie there too."""
    try:
        with path.open("rb") as opened:
            begin = opened.read(len(MAGIC))
    except OSError:
        return False
    if path.name.startswith("."):
        return begin in (MAGIC, bytes(len(MAGIC)))
    return begin == MAGIC and _facts(path).get("copy", path.name) is not None


def delete_copy(path: Path) -> None:
    """Delete a copy and the notes about it; OSError."""
    path.unlink(missing_ok=True)
    forget(path)
    with suppress(OSError), locked(_lock_of(path)) as is_alone:
        if is_alone:
            _lock_of(path).unlink(missing_ok=True)


def _lock_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.lock")
