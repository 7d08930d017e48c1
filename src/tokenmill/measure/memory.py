"""Resident memory of this process and its peak, as the system counts it."""

import resource
import sys
from pathlib import Path

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def resident_bytes() -> int:
    """Resident memory of this process now; its peak where the system does not report the current value."""
    return _status("VmRSS:") or peak_bytes()


def peak_bytes() -> int:
    """Peak resident memory since the start of the process, or since `reset_peak`."""
    # The kernel counts ru_maxrss in kB, on macOS in bytes.
    ever = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return _status("VmHWM:") or ever


def reset_peak() -> bool:
    """Restart the peak from the current resident memory; False where the system does not support that."""
    try:
        _CLEAR.write_text("5")  # see proc(5): resets the peak resident set size
    except OSError:
        return False
    return True


def _status(key: str) -> int:
    if not _STATUS.exists():
        return 0
    line = next((line for line in _STATUS.read_text().splitlines() if line.startswith(key)), "")
    return 1024 * int(line.split()[1]) if line else 0
