"""Processes as the system shows them: which are there, and where they listen."""

import time
from pathlib import Path

PATIENCE_S = 60.0  # far beyond what is promised: no test depends on the speed of the machine


def is_there(pid):
    """Whether it runs: one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the second where it goes between opening and reading
        return False


def wait_until(condition):
    """Wait until a function returns something true; how long that took, in seconds."""
    begun_s = time.monotonic()
    while not condition():
        assert time.monotonic() < begun_s + PATIENCE_S, "it has not come"
        time.sleep(0.01)
    return time.monotonic() - begun_s


def listening(pid):
    """The addresses at which a process listens, in the hexadecimal form of /proc/net."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            inodes.add(str(link.readlink()))
        except OSError:
            continue
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                found.append(fields[1].partition(":")[0])
    return found
