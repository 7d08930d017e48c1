"""The memory nodes of this machine: processors reach the memory of their own node in less time than other memory."""

import os
from contextlib import suppress
from pathlib import Path

FOLDER = Path("/sys/devices/system/node")


def memory_nodes() -> list[list[int]]:
    """List the usable processors of each node that has any. Empty where the system does not say."""
    if not hasattr(os, "sched_getaffinity"):
        return []
    usable, found = os.sched_getaffinity(0), []
    folders = [each for each in FOLDER.glob("node*") if each.name[4:].isdecimal()]
    for folder in sorted(folders, key=lambda each: int(each.name[4:])):
        with suppress(OSError, ValueError):
            processors = [each for each in _numbers((folder / "cpulist").read_text()) if each in usable]
            if processors:
                found.append(processors)
    return found


def _numbers(text: str) -> list[int]:
    """Read a list as Linux writes it: "0-3,8"."""
    found = list[int]()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found
