"""Packed models whose checksums were verified, so that the next start need not compute them again.

A record of a file counts while the file is unchanged. It is written twice: as soon as the file is verified, and again
when the system has written the file to the disk. The first counts until the machine restarts, since after a crash only
the checksums show whether the file is complete. Nothing here imports torch.
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
ANY = "any"  # in the place of a boot: the file was on the disk


def record_of(path: Path) -> Path:
    """Name the file that remembers this one."""
    name = sha256(os.fsencode(path.resolve())).hexdigest()[:16]
    return cache_folder() / "packed" / "verified" / f"{name}.json"


def is_verified(record: Path, opened: int) -> bool:
    """Tell whether this open file was verified, and note for `last_used` that it is used now."""
    try:
        known, facts = json.loads(record.read_text(encoding="utf-8")), facts_of(opened)
        if known not in (facts, {**facts, "boot": ANY}):
            return False
    except (OSError, ValueError, RecursionError):
        return False
    with suppress(OSError):  # the folder may be read-only
        os.utime(record)
    return True


def remember(record: Path, opened: int, before: dict[str, int | str]) -> None:
    """Remember that this open file was verified. before: what facts_of said when that began: a file that has changed
    since, or whose record cannot be written, is verified again next time.
    """
    if facts_of(opened) != before or time.time() - os.fstat(opened).st_ctime < SETTLED_S:
        return
    with suppress(OSError):
        record.parent.mkdir(parents=True, exist_ok=True)
        _write(record, before)


def settle(record: Path, opened: int, verified: dict[str, int | str]) -> None:
    """Have the system write a file that is verified to the disk, and remember that, too. It may take seconds.

    verified: what facts_of said of the file.
    """
    with suppress(OSError):
        os.fsync(opened)  # mostly nothing is left to write
        if is_verified(record, opened) and facts_of(opened) == verified:
            _write(record, {**verified, "boot": ANY})


def _write(record: Path, facts: dict[str, int | str]) -> None:
    with writing(record, sync=False) as out:
        out.write(json.dumps(facts).encode())


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


def facts_of(opened: int) -> dict[str, int | str]:
    """Describe an open file: place, size and times, and the boot of the machine."""
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
