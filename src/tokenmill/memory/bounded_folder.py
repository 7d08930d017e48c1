"""Files that several engines and processes keep below one directory, together at most so many bytes.

Who writes holds the directory's lock, and the lock's file says how many bytes there are, so that a write need not look
at all files. They are counted anew where that is unknown and where there seems to be no room.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from stat import S_ISREG
from typing import IO, NamedTuple

from tokenmill.memory.file_lock import NO_LOCKS, locked_file

__all__ = ["BoundedFolder"]

WAIT_S = 0.1  # for another process that writes; then a file is left out, which whoever needs it computes again
FULL = 0.9  # of the limit is left where files must go, so that they need not be looked at for each new one


class _File(NamedTuple):
    used_at: int
    num_bytes: int
    path: Path


class BoundedFolder:
    """lock: the name of the lock in the directory, that of this kind of files alone. pattern: names of the files.

    is_own: whether a store of this kind has written a regular file of such a name; no other is counted or deleted.
    """

    def __init__(self, root: Path, lock: str, pattern: str, is_own: Callable[[Path], bool], limit_bytes: int) -> None:
        self._root, self._lock, self._pattern = root, root / lock, pattern
        self._is_own, self._limit_bytes = is_own, limit_bytes

    def recount(self) -> None:
        """Forget how many bytes there are, since anybody may have put files there. OSError as `add`."""
        with locked_file(self._lock) as lock:
            if lock is not None:
                _note(lock, None)

    def add(self, num_bytes: int, write: Callable[[], object]) -> bool:
        """Have `write` add a file of so many bytes, after those that were not used for longest have made room for it.

        False where there is no room, or where another process holds the lock for too long. OSError where the directory
        cannot be written.
        """
        try:
            with locked_file(self._lock, WAIT_S) as lock:
                return lock is not None and self._add(num_bytes, write, lock)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
        return self._add(num_bytes, write, None)  # the directory's own word is its files

    def _add(self, num_bytes: int, write: Callable[[], object], lock: IO[bytes] | None) -> bool:
        there = None if lock is None else _noted(lock)
        if there is None or there + num_bytes > self._limit_bytes:
            there = self._make_room(num_bytes)
        has_room = there + num_bytes <= self._limit_bytes
        # Before the file is there: who is killed in between has counted too many, which is found out.
        _note(lock, there + num_bytes * has_room)
        if has_room:
            try:
                write()
            except Exception:
                _note(lock, there)
                raise
        return has_room

    def _make_room(self, num_bytes: int) -> int:
        """Delete files if there is no room for so many bytes; the bytes of those that are left."""
        files = sorted(self._files())
        there = sum(file.num_bytes for file in files)
        if there + num_bytes <= self._limit_bytes:
            return there
        for file in files:
            if there + num_bytes <= FULL * self._limit_bytes:
                break
            try:
                file.path.unlink(missing_ok=True)
            except OSError:  # which is still there
                continue
            there -= file.num_bytes
        return there

    def _files(self) -> Iterator[_File]:
        for path in self._root.glob(self._pattern):
            with suppress(OSError):  # it is gone, or nobody may read it
                status = path.lstat()
                if S_ISREG(status.st_mode) and self._is_own(path):
                    yield _File(status.st_mtime_ns, status.st_size, path)


def _noted(lock: IO[bytes]) -> int | None:
    """How many bytes there are, if the lock's file says it."""
    lock.seek(0)
    text = lock.read(20)
    return int(text) if text.isdigit() else None


def _note(lock: IO[bytes] | None, num_bytes: int | None) -> None:
    if lock is not None:
        lock.truncate(0)
        lock.write(b"" if num_bytes is None else b"%d" % num_bytes)
        lock.flush()
