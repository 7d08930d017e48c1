"""Packed models whose checksums were verified, so that the next start need not compute them again.

A record of a file counts while the file is unchanged, and until the machine restarts: after a crash the checksums show
whether the file is still complete. Nothing here imports torch.
"""

import json
import os
import time
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from tokenmill.hub.download import cache_folder
from tokenmill.memory.atomic_file import writing

SETTLED_S = 1.0  # a file that was changed less than so long ago may change again within one tick of its clock
BOOT = Path("/proc/sys/kernel/random/boot_id")


def record_of(path: Path) -> Path:
    """Name the file that remembers this one."""
    name = sha256(os.fsencode(path.resolve())).hexdigest()[:16]
    return cache_folder() / "packed" / "verified" / f"{name}.json"


def is_verified(record: Path, opened: int) -> bool:
    """Tell whether this open file was verified, and note for `last_used` that it is used now."""
    try:
        if json.loads(record.read_text(encoding="utf-8")) != _facts(opened):
            return False
    except (OSError, ValueError):
        return False
    with suppress(OSError):  # the folder may be read-only
        os.utime(record)
    return True


def remember(record: Path, opened: int) -> None:
    """Remember that this open file was verified. Where the record cannot be written, it is verified again next time."""
    if time.time() - os.fstat(opened).st_ctime < SETTLED_S:
        return
    try:
        record.parent.mkdir(parents=True, exist_ok=True)
        with writing(record, sync=False) as out:
            out.write(json.dumps(_facts(opened)).encode())
    except OSError:
        return


def forget(path: Path) -> None:
    """Forget a file that is gone."""
    record_of(path).unlink(missing_ok=True)


def last_used(path: Path) -> float:
    """Find when a process began to use the file, in seconds since 1970."""
    for each in (record_of(path), path):
        try:
            return each.stat().st_mtime
        except OSError:
            continue
    return 0.0


def _facts(opened: int) -> dict[str, int | str]:
    found = os.fstat(opened)
    try:
        boot = BOOT.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        boot = ""
    return {
        "boot": boot,
        "device": found.st_dev,
        "inode": found.st_ino,
        "size": found.st_size,
        "changed": found.st_ctime_ns,
        "modified": found.st_mtime_ns,
    }
