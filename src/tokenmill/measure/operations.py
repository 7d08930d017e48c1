"""The costliest operations of a run by torch's profiler, and torch's own trace.

On a CPU an operation's time is its own, without the time of the operations it calls; what a library runs inside an
operation (oneDNN, a native program) is part of it. With a GPU the kernels that ran there are listed instead. Watching
costs time for every operation, so the figures of a watched run are shares, not speeds.
"""

import json
import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from tokenmill.measure.trace import FORWARD


@dataclass(frozen=True, slots=True)
class Operation:
    """All calls of one operation or kernel; `share` is of the time of all of them."""

    name: str
    calls: int
    total_ms: float
    share: float


class Watch:
    """A context that runs torch.profiler. `enter_forward` and `leave_forward` leave a mark in its trace."""

    def __init__(self, device: torch.device) -> None:
        # Torch's profiler speaks on stderr of every stage it goes through; what it logs is numbered below 6.
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")
        kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
        # One cycle and no schedule: without acc_events torch warns that cycles are cleared.
        self._profiler: Any = profile(activities=kinds, profile_memory=True, acc_events=True)
        self._forward: Any = None

    def __enter__(self) -> "Watch":
        self._profiler.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.leave_forward()
        self._profiler.__exit__(kind, error, traceback)

    def enter_forward(self) -> None:
        """Note that the forward begins."""
        self._forward = record_function(FORWARD)
        self._forward.__enter__()

    def leave_forward(self) -> None:
        """Note that the forward ends; it need not have begun."""
        if self._forward is not None:
            self._forward.__exit__(None, None, None)
            self._forward = None

    def operations(self, num: int) -> list[Operation]:
        """Return the costliest operations, the worst first."""
        return costliest(self._profiler.key_averages(), num)

    def trace(self) -> dict[str, Any]:
        """Return torch's own trace as a document."""
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "torch.json"
            self._profiler.export_chrome_trace(str(path))
            # Names of kernels may hold control characters, which strict JSON forbids.
            document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8", errors="replace"), strict=False)
        return document


def costliest(events: Iterable[Any], num: int) -> list[Operation]:
    """Choose the costliest of torch's averages. Kernels of a GPU where there are any, else operations of the CPU."""
    found = [event for event in events if not event.is_user_annotation and event.key != FORWARD]
    on_device = [event for event in found if event.device_type.name != "CPU" and event.self_device_time_total > 0]
    times = {True: "self_device_time_total", False: "self_cpu_time_total"}[bool(on_device)]
    costs = [(getattr(event, times) / 1e3, event) for event in on_device or found]
    total_ms = sum(cost for cost, _ in costs) or 1.0
    costs.sort(key=lambda pair: -pair[0])
    return [Operation(event.key, event.count, cost, cost / total_ms) for cost, event in costs[:num]]
