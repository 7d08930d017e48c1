"""How much memory this process can still take."""

import os
from pathlib import Path

__all__ = ["available_bytes"]


def available_bytes() -> int:
    """Memory that this process can still take: what the system has free, or its control group allows, if less."""
    free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        free = 1024 * int(_value_of(meminfo, "MemAvailable:"))
    group = Path("/sys/fs/cgroup")
    if (group / "memory.max").exists() and (limit := (group / "memory.max").read_text().strip()) != "max":
        free = min(free, int(limit) - int(_value_of(group / "memory.stat", "anon")))
    return free


def _value_of(file: Path, key: str) -> str:
    """The word after `key`, in a file of one key per line."""
    words = next(line.split() for line in file.read_text().splitlines() if line.split()[0] == key)
    return words[1]
