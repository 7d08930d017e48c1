"""The memory and the processors that this process may still take."""

import math
import os
import resource
from pathlib import Path

from tokenmill.memory.control_group import allowed_memory, allowed_processors

ROOT = Path("/")
STRICT = "2"  # of /proc/sys/vm/overcommit_memory: no more is promised than there is


def available_bytes(root: Path = ROOT) -> int:
    """Memory that this process can still take: what the system has free, or less where a limit is lower.

    Limits are those of its control groups, of `ulimit -v`, and of a system that promises no more than it has. root:
    where the files of the system lie.
    """
    free = float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    facts = _facts(root / "proc/meminfo")
    free = facts.get("MemAvailable", free)
    if _text(root / "proc/sys/vm/overcommit_memory").strip() == STRICT and "CommitLimit" in facts:
        free = min(free, facts["CommitLimit"] - facts.get("Committed_AS", 0))
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        free = min(free, limit - _facts(root / "proc/self/status").get("VmSize", 0))
    return int(max(min(free, allowed_memory(root)), 0))


def available_processors(root: Path = ROOT) -> int:
    """Processors that this process may run on at once: its affinity, or the time that its control groups allow it.

    Of a part of a processor nothing is gained: threads that wait for each other would be stopped in turn.
    """
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:  # a system without it
        count = os.cpu_count() or 1
    allowed = allowed_processors(root)
    return count if math.isinf(allowed) else max(min(count, math.floor(allowed)), 1)


def _facts(file: Path) -> dict[str, float]:
    """The sizes in bytes of a file with a size in kB in each line."""
    rows = (line.split() for line in _text(file).splitlines())
    return {row[0].rstrip(":"): 1024.0 * int(row[1]) for row in rows if len(row) == 3 and row[1].isdigit()}


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""
