"""The memory and the processors that this process may still take, also as its control groups allow (Linux, versions 1
and 2).

A group lies within others, and each of them may have a limit. /proc/self/cgroup says which group the process is in,
/proc/self/mountinfo where the groups are mounted; a container may see its own group as the root, or not at all.
"""

import math
import os
import resource
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path("/")
STRICT = "2"  # of /proc/sys/vm/overcommit_memory: no more is promised than there is


def available_bytes(root: Path = ROOT) -> int:
    """Count the memory that this process can still take: what the system has free, or less where a limit is lower.

    Limits are set by its control groups, by `ulimit -v`, and by a system that promises no more than it has. root: where
    the files of the system lie.
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
    """Count the processors that this process may run on at once: its affinity, or the time that its control groups
    allow it.

    A part of a processor counts for nothing: threads that wait for each other would be stopped in turn.
    """
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:  # a system without it
        count = os.cpu_count() or 1
    allowed = allowed_processors(root)
    return count if math.isinf(allowed) else max(min(count, math.floor(allowed)), 1)


def _facts(file: Path) -> dict[str, float]:
    """Read the sizes in bytes of a file with a size in kB in each line."""
    rows = (line.split() for line in _text(file).splitlines())
    return {row[0].rstrip(":"): 1024.0 * int(row[1]) for row in rows if len(row) == 3 and row[1].isdigit()}


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError):  # there is none, or nobody may read it
        return ""


UNLIMITED = 1 << 62  # version 1 has a number of this size in the place of "max"


def allowed_memory(root: Path) -> float:
    """Count the bytes that the process may still take, or infinity. Page cache can be given back. root: "/"."""
    lowest = math.inf
    for group in _groups(root, "memory"):
        limit = _number(group / "memory.max", group / "memory.limit_in_bytes")
        if limit is not None and limit < UNLIMITED:
            lowest = min(lowest, max(limit - _used(group), 0))
    return lowest


def allowed_processors(root: Path) -> float:
    """Count the processors' worth of time that the process may use, in parts too, or infinity. root: "/"."""
    lowest = math.inf
    for group in _groups(root, "cpu"):
        words = _text(group / "cpu.max").split()
        quota = _number(group / "cpu.cfs_quota_us") if not words else int(words[0]) if words[0].isdigit() else None
        period = int(words[1]) if len(words) > 1 and words[1].isdigit() else _number(group / "cpu.cfs_period_us")
        if quota is not None and quota > 0:
            lowest = min(lowest, quota / (period or 100_000))
    return lowest


def _used(group: Path) -> int:
    """Count the bytes of a group that cannot be given back."""
    facts = dict(line.split(maxsplit=1) for line in _text(group / "memory.stat").splitlines() if " " in line)
    used = _number(group / "memory.current", group / "memory.usage_in_bytes")
    if used is None:
        return int(facts.get("anon", facts.get("total_rss", 0)))
    files = (facts.get(f"total_{kind}_file", facts.get(f"{kind}_file", 0)) for kind in ("inactive", "active"))
    return max(used - sum(map(int, files)), 0)


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of the process's group and of all groups around it, as far as they can be seen."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller not in controllers.split(",") and (number, controllers) != ("0", ""):
            continue
        for mount, top in _mounts(root, controller if controllers else "", controllers):
            below = _below(path, top)
            yield from (mount / part for part in (below, *below.parents))


def _below(path: str, top: str) -> PurePosixPath:
    """Return a group's path in a mount that shows `top` and what is in it; the mount itself for any other group."""
    found = PurePosixPath(path)
    if ".." in found.parts or not found.is_relative_to(top):
        return PurePosixPath()
    return found.relative_to(top)


def _mounts(root: Path, controller: str, controllers: str) -> list[tuple[Path, str]]:
    """List where a controller of version 1 is mounted ("": version 2), and the group that each mount shows."""
    found = []
    for line in _text(root / "proc/self/mountinfo").splitlines():
        where, _, what = line.partition(" - ")
        fields, kinds = where.split(), what.split()
        if len(fields) < 5 or len(kinds) < 3:
            continue
        is_wanted = kinds[0] == "cgroup" and controller in kinds[2].split(",") if controller else kinds[0] == "cgroup2"
        if is_wanted:
            found.append((root / fields[4].lstrip("/"), fields[3]))
    usual = root / "sys/fs/cgroup"
    return found or [(usual / name, "/") for name in {controller, controllers}]


def _number(*files: Path) -> int | None:
    """Read the number in the first of these files that has one."""
    for file in files:
        text = _text(file).strip()
        if text.removeprefix("-").isdigit():
            return int(text)
    return None
