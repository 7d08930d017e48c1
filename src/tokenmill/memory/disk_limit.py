"""Limits on how much of a disk the files of one kind may take, where the user has not said it: a share of what is
free.
"""

import shutil
from pathlib import Path
from typing import NamedTuple

MB = 1_000_000
LEAST_MB = 100  # whatever is free: a full disk is told when a file is written, and no load fails for it


class Limit(NamedTuple):
    """A default limit. most_mb: whatever is free. share: of the free bytes."""

    most_mb: int
    share: float


def limit_of(given_mb: int | None, default: Limit, free_bytes: int) -> int:
    """Return the limit in bytes: the given one, or the default's for this many free bytes."""
    if given_mb is not None:
        return given_mb * MB
    return int(min(default.most_mb * MB, max(LEAST_MB * MB, default.share * free_bytes)))


def free_disk(folder: Path) -> int:
    """Count the free bytes where a folder lies, or will lie once made; 0 where the system does not tell."""
    try:
        there = next(each for each in (folder, *folder.absolute().parents) if each.exists())
        return shutil.disk_usage(there).free
    except OSError:
        return 0
