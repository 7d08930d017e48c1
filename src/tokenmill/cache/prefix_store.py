"""Published blocks on disk, by their chained hash: a prompt that was computed once is found after a restart.

One file for each block, in a folder for each compatibility header. Several engines and processes may use the same
directory: a file that is gone or damaged counts as never written. The least recently used files are deleted when the
directory is over its limit. A directory that can be read but not written serves what it holds.
"""

import hashlib
import json
import os
import warnings
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from tokenmill.cache.pool import Pool
from tokenmill.cache.snapshot import read_snapshot, write_bytes
from tokenmill.errors import SnapshotError
from tokenmill.memory.atomic_file import remove_leftovers
from tokenmill.schedule.sequence import RowSource
from tokenmill.value_reader import brief

__all__ = ["PrefixStore"]

LAYOUT, NAME = 2, "rows"  # one tensor of bytes: with one for each layer, reading and writing took 3 times as long


class PrefixStore:
    """Blocks of one pool. header: fields that must be equal for rows to be shared. SnapshotError without a folder."""

    def __init__(self, folder: Path, pool: Pool, header: Mapping[str, Any], limit_bytes: int) -> None:
        self._pool, self._limit_bytes = pool, limit_bytes
        self._size = pool.spec.block_size
        facts = json.dumps({**header, "block_size": self._size, "layout": LAYOUT}, sort_keys=True, default=str)
        self._root = folder
        self._folder = self._root / hashlib.blake2b(facts.encode(), digest_size=8).hexdigest()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if not self._root.is_dir():  # neither written nor read
                raise SnapshotError(f"{self._folder} cannot be made: {error.strerror}") from error
        self._failed = not os.access(self._folder, os.W_OK)
        self._damaged: set[bytes] = set()
        remove_leftovers(self._root, ".kv")
        self._num_bytes = sum(size for _, size, _ in self._files())

    def find(self, digest: bytes) -> RowSource | None:
        """What reads the rows of that block, or None if there is no file of it."""
        return partial(self.read, digest) if digest not in self._damaged and self._path(digest).is_file() else None

    def read(self, digest: bytes, first: int, last: int) -> Mapping[str, Tensor]:
        """Rows [first, last) of a block. SnapshotError where the file is gone or damaged, which `save` mends."""
        path = self._path(digest)
        try:
            found = read_snapshot(path).rows
            if list(found) != [NAME]:
                raise SnapshotError(f"{path} is damaged: it should hold {NAME!r}, and holds {brief(list(found))}")
            rows = self._pool.split(path, found[NAME])
        except SnapshotError:
            self._damaged.add(digest)
            raise
        with suppress(OSError):
            os.utime(path)  # the time of the last read decides what is deleted
        return {name: tensor[first:last] for name, tensor in rows.items()}

    def save(self, digest: bytes, block: int) -> None:
        """Write a full block, unless it is there. If the disk refuses, warn once and write no more blocks.

        A folder or a pipe in the place of the file is none of the disk's: only that block is not written.
        """
        if self._failed or self.find(digest) or _is_other(self._path(digest)):
            return
        try:
            self._num_bytes += write_bytes(self._path(digest), NAME, self._pool.block_bytes(block))
            self._damaged.discard(digest)
        except SnapshotError as error:
            self._failed = True
            warnings.warn(f"no more blocks are kept on disk: {error}", stacklevel=2)
        if self._num_bytes > self._limit_bytes:
            self._evict()

    def _evict(self) -> None:
        """Down to nine tenths of the limit, whichever engine wrote the files."""
        files = sorted(self._files())
        self._num_bytes = sum(size for _, size, _ in files)
        for _, size, path in files:
            if self._num_bytes <= 0.9 * self._limit_bytes:
                return
            with suppress(OSError):
                path.unlink(missing_ok=True)
            self._num_bytes -= size

    def _files(self) -> list[tuple[float, int, Path]]:
        """When last read, size and path, of all models' blocks in the directory."""
        found = []
        for path in self._root.glob("*/*.kv"):
            with suppress(OSError):  # another process was faster
                status = path.stat()
                found.append((status.st_mtime, status.st_size, path))
        return found

    def _path(self, digest: bytes) -> Path:
        return self._folder / f"{digest.hex()}.kv"


def _is_other(path: Path) -> bool:
    """Whether something lies there that is no regular file."""
    return path.exists() and not path.is_file()
