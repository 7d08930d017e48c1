"""A lock that processes share by a file. The kernel releases it when its holder dies."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

__all__ = ["locked"]


@contextmanager
def locked(file: Path) -> Iterator[bool]:
    """Whether this process has the lock, for as long as this context lasts; it does not wait for another to let go.

    Who has the lock may delete the file. FileNotFoundError where its folder is gone.
    """
    while True:
        with file.open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            if not _is_there(file, lock):  # who had it before has deleted it meanwhile, and others take a new one
                continue
            yield True
            return


def _is_there(file: Path, lock: TextIO) -> bool:
    """Whether the open file is still the one of that name."""
    try:
        return os.path.samestat(file.stat(), os.fstat(lock.fileno()))
    except FileNotFoundError:
        return False
