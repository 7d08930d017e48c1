"""Files of several engines and processes in one directory: their own names, a limit on their size, leftovers.

Only files that a store of this kind has written are counted and deleted: they have its names, and begin as its files
do. The least recently used go first. Files that a killed process did not finish are deleted later.
"""

import os
import re
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from math import inf
from os import stat_result
from pathlib import Path
from stat import S_ISREG
from typing import IO, NamedTuple

from tokenmill.errors import TokenmillError
from tokenmill.memory.atomic_file import TEMPORARY, beside, seal, unseal
from tokenmill.memory.file_lock import NO_LOCKS, locked_file

WAIT_S = 0.1  # for another process that writes; then a file is left out, which whoever needs it computes again
FULL = 0.9  # of the limit is left where small files must go, so that they need not be looked at for each new one
LEFT_S = 3600.0  # nobody writes one file for so long


class File(NamedTuple):
    """A file of the folder. used_at: in seconds since 1970."""

    used_at: float
    path: Path
    num_bytes: int


class BoundedFolder:
    """A folder with a limit. names: of the files, as paths below root. is_own: whether a file of such a name begins as
    the files that are written.

    what: the files, for the warning that no more are kept. lock: the name of a file in root. A subclass may know better
    when a file was used, whether its writer is dead, and what goes with it.
    """

    def __init__(
        self,
        root: Path,
        what: str,
        names: re.Pattern[str],
        is_own: Callable[[Path], bool],
        limit_bytes: float = inf,
        lock: str = ".lock",
        in_folders: bool = False,
    ) -> None:
        self.root, self.can_write = root, True
        self._what, self._names, self._is_own = what, names, is_own
        self._limit, self._lock = limit_bytes, root / lock
        self._pattern = "*/*" if in_folders else "*"

    def is_named(self, path: Path) -> bool:
        """Tell whether a file of this kind may have this path."""
        return self._names.fullmatch(path.relative_to(self.root).as_posix()) is not None

    def used_at(self, path: Path, status: stat_result) -> float:
        """Return when the file was used last, in seconds since 1970."""
        return status.st_mtime

    def is_left(self, path: Path, status: stat_result) -> bool:
        """Tell whether the process that was writing this temporary file is dead."""
        return time.time() - status.st_mtime > LEFT_S

    def delete(self, path: Path) -> None:
        """Delete a file; OSError."""
        path.unlink(missing_ok=True)

    def files(self) -> list[File]:
        """List the files that are complete, the least recently used first."""
        return sorted(self._own(is_begun=False), key=lambda file: (file.used_at, file.path.name))

    def begun(self) -> list[File]:
        """List the temporary files, which are being written, or were."""
        return list(self._own(is_begun=True))

    def remove_leftovers(self) -> None:
        """Delete what killed processes have begun."""
        for file in self.begun():
            with suppress(OSError):  # another process was faster
                if self.is_left(file.path, file.path.lstat()):
                    file.path.unlink()

    def make_room(self, num_bytes: int = 0, has_space: Callable[[], bool] = lambda: True, leave: float = 1.0) -> int:
        """Delete files, the least recently used first, so that so many bytes fit within the limit.

        leave: of the limit, where files must go. has_space: files are also deleted while this is false. Nothing is
        deleted where that cannot make room. The bytes of those that are left.
        """
        files, begun = self.files(), sum(file.num_bytes for file in self.begun())
        there = begun + sum(file.num_bytes for file in files)
        if num_bytes and begun + num_bytes > self._limit:
            return there
        wanted = self._limit if there + num_bytes <= self._limit else leave * self._limit
        for file in files:
            if there + num_bytes <= wanted and has_space():
                break
            with suppress(OSError):  # it is still there
                self.delete(file.path)
                there -= file.num_bytes
        return there

    def recount(self) -> None:
        """Forget how many bytes there are, since anybody may have put files there."""
        with suppress(OSError), locked_file(self._lock) as lock:  # `add` says the error
            _write_count(lock, None)

    def add(self, num_bytes: int, write: Callable[[], object]) -> bool:
        """Have `write` add a small file of so many bytes, after others have made room for it.

        The lock's file says how many bytes there are. They are counted where that is unknown, and where there seems to
        be no room. False where there is none, where another process holds the lock for too long, or where the directory
        cannot be written, see `stop`.
        """
        if not self.can_write:
            return False
        try:
            try:
                with locked_file(self._lock, WAIT_S) as lock:
                    return lock is not None and self._add(num_bytes, write, lock)
            except OSError as error:
                if error.errno not in NO_LOCKS:
                    raise
            return self._add(num_bytes, write, None)  # nothing says how many bytes there are
        except (OSError, TokenmillError) as error:
            self.stop(error)
        return False

    def stop(self, error: Exception) -> None:
        """Write no more from now on, and say why. This is called once at most."""
        self.can_write = False
        reason = getattr(error, "strerror", None) or error
        warnings.warn(f"no more {self._what} are kept in {self.root}: {reason}", stacklevel=3)

    def _add(self, num_bytes: int, write: Callable[[], object], lock: IO[bytes] | None) -> bool:
        there = None if lock is None else _read_count(lock)
        if there is None or there + num_bytes > self._limit:
            there = self.make_room(num_bytes, leave=FULL)
        has_room = there + num_bytes <= self._limit
        # Before the file is there: who is killed in between has counted too many, which is found out.
        _write_count(lock, there + num_bytes * has_room)
        if has_room:
            try:
                write()
            except Exception:
                _write_count(lock, there)
                raise
        return has_room

    def _own(self, is_begun: bool) -> Iterator[File]:
        """Yield the files that a store of this kind has written: with is_begun temporary ones, else the others."""
        for path in self.root.glob(self._pattern):
            temporary = TEMPORARY.fullmatch(path.name)
            final = path.with_name(temporary[1]) if temporary else path
            if (temporary is not None) == is_begun and self.is_named(final):
                with suppress(OSError):  # it is gone, or nobody may read it
                    status = path.lstat()
                    is_new = is_begun and not status.st_size
                    if S_ISREG(status.st_mode) and (is_new or self._is_own(path)):
                        yield File(self.used_at(path, status), path, status.st_size)


def _read_count(lock: IO[bytes]) -> int | None:
    """Read the number of bytes in the folder, if the lock's file says it."""
    lock.seek(0)
    text = lock.read(20)
    return int(text) if text.isdigit() else None


def _write_count(lock: IO[bytes] | None, num_bytes: int | None) -> None:
    if lock is not None:
        lock.truncate(0)
        lock.write(b"" if num_bytes is None else b"%d" % num_bytes)
        lock.flush()


MARK, FORMAT = ".tokenmill", 1


class MarkedFolder(BoundedFolder):
    """A folder of unfinished work, without limit: a file in it says what it is for, and no other folder is deleted.
    what: its purpose, as its mark says. names: of the files that belong to it.
    """

    def __init__(self, root: Path, what: str, names: re.Pattern[str]) -> None:
        super().__init__(root, what, names, lambda _: self.is_marked())

    def make(self) -> None:
        """Make the folder with its mark, at once. Leaves alone whatever has that name already; OSError."""
        if os.path.lexists(self.root):
            return
        new = beside(self.root)
        new.mkdir()
        try:
            (new / MARK).write_text(seal({"folder": self._what}, FORMAT), encoding="utf-8")
            new.rename(self.root)
        except OSError:
            (new / MARK).unlink(missing_ok=True)
            new.rmdir()
            if not os.path.lexists(self.root):  # otherwise another process was faster
                raise

    def is_marked(self) -> bool:
        """Tell whether `make` has made the folder, for the same."""
        try:
            return unseal((self.root / MARK).read_bytes(), FORMAT).get("folder") == self._what
        except (OSError, ValueError):
            return False

    def remove(self) -> list[str]:
        """Delete the folder's own files, and the folder unless something else is in it; return the names of that."""
        if not self.is_marked():
            return []
        for file in [*self.files(), *self.begun()]:
            file.path.unlink(missing_ok=True)
        others = sorted(path.name for path in self.root.iterdir() if path.name != MARK)
        if not others:
            (self.root / MARK).unlink(missing_ok=True)
            self.root.rmdir()
        return others
