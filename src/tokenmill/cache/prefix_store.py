"""Published blocks on disk, by their chained hash: a prompt that was computed once is found after a restart.

One file for each block, in a folder for each model and setting, so that several engines and processes may use the same
directory: files are written under a temporary name and renamed, and one that has gone or is damaged counts as never
written. The files that were longest not read go first when there are too many.
"""

import hashlib
import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenmill.cache.pool import Pool
from tokenmill.cache.snapshot import read_snapshot, write_snapshot
from tokenmill.errors import SnapshotError

__all__ = ["PrefixStore"]


class PrefixStore:
    """Blocks of one pool. `whose`: what must be alike for rows to mean the same. SnapshotError for no such folder."""

    def __init__(self, folder: Path, pool: Pool, whose: Mapping[str, Any], limit_bytes: int) -> None:
        self._pool, self._limit_bytes = pool, limit_bytes
        self._size = pool.spec.block_size
        facts = json.dumps({**whose, "block_size": self._size}, sort_keys=True, default=str)
        self._root = folder.expanduser()
        self._folder = self._root / hashlib.blake2b(facts.encode(), digest_size=8).hexdigest()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SnapshotError(f"{self._folder} cannot be made: {error.strerror}") from error
        self._num_bytes = sum(size for _, size, _ in self._files())
        self._failed = False

    def load(self, digest: bytes, block: int) -> bool:
        """Fill a block of the pool with the rows of that name; False where there are none."""
        path = self._path(digest)
        if not path.exists():
            return False
        try:
            rows = read_snapshot(path).rows
            self._pool.write(self._pool.slots_of([block], self._size), rows)
            os.utime(path)  # read last: now
        except (SnapshotError, KeyError, RuntimeError, OSError):
            path.unlink(missing_ok=True)
            return False
        return True

    def save(self, digest: bytes, block: int) -> None:
        """Keep a full block. A disk that refuses is said once; the engine goes on without."""
        path = self._path(digest)
        if self._failed or path.exists():
            return
        try:
            self._num_bytes += write_snapshot(
                path, {}, self._pool.read(self._pool.slots_of([block], self._size)), sync=False
            )
        except SnapshotError as error:
            self._failed = True
            warnings.warn(f"no more blocks are kept on disk: {error}", stacklevel=2)
        if self._num_bytes > self._limit_bytes:
            self._evict()

    def _evict(self) -> None:
        """Down to nine tenths of the limit, whoever wrote them."""
        files = sorted(self._files())
        self._num_bytes = sum(size for _, size, _ in files)
        for _, size, path in files:
            if self._num_bytes <= 0.9 * self._limit_bytes:
                return
            path.unlink(missing_ok=True)
            self._num_bytes -= size

    def _files(self) -> list[tuple[float, int, Path]]:
        """When last read, size and path, of all models' blocks in the directory."""
        found = []
        for path in self._root.glob("*/*.kv"):
            try:
                status = path.stat()
            except OSError:  # another process was faster
                continue
            found.append((status.st_mtime, status.st_size, path))
        return found

    def _path(self, digest: bytes) -> Path:
        return self._folder / f"{digest.hex()}.kv"
