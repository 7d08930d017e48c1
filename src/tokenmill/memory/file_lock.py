"""A lock that processes share by a file. The kernel releases it when its holder dies."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from errno import ENOLCK, ENOSYS, EOPNOTSUPP
from pathlib import Path
from typing import IO

RETRY_S = 0.001
NO_LOCKS = (ENOLCK, ENOSYS, EOPNOTSUPP)
"""The errors of file systems that have no locks."""


@contextmanager
def locked(file: Path) -> Iterator[bool]:
    """Try for the lock, and say whether this process has it as long as this context lasts; it does not wait for another
    to let go.

    Who has the lock may delete the file. FileNotFoundError where its folder is gone.
    """
    with locked_file(file) as lock:
        yield lock is not None


@contextmanager
def locked_file(file: Path, wait_s: float = 0.0) -> Iterator[IO[bytes] | None]:
    """Lock as `locked` does, and give the open file, or None if another holds the lock for longer than `wait_s`.

    What the file holds is left as it is. OSError, one of NO_LOCKS, where the file system has none.
    """
    give_up_at = time.monotonic() + wait_s
    while True:
        with file.open("a+b") as lock:  # which waits for nobody, whatever the file is
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= give_up_at:
                    yield None
                    return
                time.sleep(RETRY_S)
                continue
            if not _is_there(file, lock):  # who had it before has deleted it meanwhile, and others take a new one
                continue
            try:
                yield lock
            finally:
                fcntl.flock(lock, fcntl.LOCK_UN)  # closing is not enough where a child was forked meanwhile
            return


def _is_there(file: Path, lock: IO[bytes]) -> bool:
    """Tell whether the open file is still the one of that name."""
    try:
        return os.path.samestat(file.stat(), os.fstat(lock.fileno()))
    except FileNotFoundError:
        return False
