"""Steps as a trace file that chrome://tracing and Perfetto (ui.perfetto.dev) open.

The format is Chrome's Trace Event Format, JSON: an event of kind X has a begin and a duration in microseconds, C is a
counter, M names a row. Times are rounded to whole nanoseconds before they are subtracted, so that the phases of a step
fill it exactly. With torch's own trace at hand both are merged, on torch's clock: the forward of every step stands in
both, and their distance is the distance of the clocks.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from tokenmill.measure.recorder import StepRecord
from tokenmill.version import __version__

MARK = "tokenmill"
PHASES = ("plan", "forward", "sampling", "delivery")
FORWARD = "tokenmill forward"  # what the forward is called in torch's trace
# Above the largest id that Linux gives a process (2 ** 22): a row of its own beside the rows of torch's trace.
_PROCESS = _STEPS = 2**30


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """One reading after a step: resident memory of the process, cache blocks in use, bytes of torch's device."""

    at_s: float
    resident_bytes: int
    blocks_in_use: int
    device_bytes: int | None = None


def kind_of(step: StepRecord) -> str:
    """Return "decode", or "prefill" for every step that feeds some of a prompt, alone or beside other texts."""
    return "decode" if step.is_decode else "prefill"


def phase_times(step: StepRecord) -> list[tuple[str, float, float]]:
    """Return name, begin and end of each phase, in seconds; together they are the step."""
    marks = (step.begun_s, step.planned_s, step.ran_s, step.sampled_s, step.ended_s)
    return list(zip(PHASES, marks, marks[1:], strict=False))


def trace_events(
    steps: Sequence[StepRecord], memory: Sequence[MemoryReading], start_s: float, shift_us: float = 0.0
) -> list[dict[str, Any]]:
    """Make the events of all steps, times counted from `start_s` and then moved by `shift_us`."""

    def at(time_s: float) -> int:
        return round((time_s - start_s) * 1e9)

    def event(name: str, kind: str, begin_s: float, end_s: float, **more: Any) -> dict[str, Any]:
        begin, duration = at(begin_s), at(end_s) - at(begin_s)
        where = {"pid": _PROCESS, "tid": _STEPS, "ts": begin / 1e3 + shift_us, "dur": duration / 1e3}
        return {"name": name, "cat": kind, "ph": "X", **where, "args": more}

    def counter(name: str, time_s: float, **values: float) -> dict[str, Any]:
        return {"name": name, "ph": "C", "pid": _PROCESS, "ts": at(time_s) / 1e3 + shift_us, "args": values}

    events: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", "pid": _PROCESS, "args": {"name": "tokenmill"}},
        {"name": "thread_name", "ph": "M", "pid": _PROCESS, "tid": _STEPS, "args": {"name": "steps"}},
    ]
    for number, step in enumerate(steps):
        about = {"step": number, "fed": step.num_tokens, "new": step.num_new, "sequences": step.num_sequences}
        events.append(event(kind_of(step), "step", step.begun_s, step.ended_s, **about))
        events += [event(name, "phase", begin, end, step=number) for name, begin, end in phase_times(step)]
        events.append(counter("tokens per step", step.begun_s, tokens=step.num_tokens))
    for reading in memory:
        events.append(counter("resident memory, MB", reading.at_s, resident=reading.resident_bytes / 1e6))
        events.append(counter("cache blocks in use", reading.at_s, blocks=reading.blocks_in_use))
        if reading.device_bytes is not None:
            events.append(counter("device memory, MB", reading.at_s, allocated=reading.device_bytes / 1e6))
    return events


def merge(
    torch_trace: dict[str, Any], steps: Sequence[StepRecord], memory: Sequence[MemoryReading], start_s: float
) -> dict[str, Any]:
    """Merge the steps into torch's trace, with a counter of what torch's allocator held."""
    events = list(torch_trace.get("traceEvents", []))
    forwards = sorted(one["ts"] for one in events if one.get("name") == FORWARD and one.get("cat") == "user_annotation")
    pairs = zip(forwards, steps, strict=False)
    shift_us = median([ts - (step.planned_s - start_s) * 1e6 for ts, step in pairs] or [0.0])
    events += trace_events(steps, memory, start_s, shift_us)
    events += [_allocated(one) for one in events if one.get("name") == "[memory]"]
    return {**torch_trace, "traceEvents": events, "displayTimeUnit": "ms"}


def _allocated(event: Mapping[str, Any]) -> dict[str, Any]:
    """Make a counter of an allocation, which torch notes as an instant: it becomes a curve."""
    values = event["args"]
    device = "CPU" if values.get("Device Type") == 0 else f"device {values.get('Device Id')}"
    name = f"allocated by torch on {device}, MB"
    total = values.get("Total Allocated", 0) / 1e6
    return {"name": name, "ph": "C", "pid": _PROCESS, "ts": event["ts"], "args": {"allocated": total}}


def as_bytes(document: Mapping[str, Any]) -> bytes:
    """Write the file's content. Viewers pass over keys that they do not know."""
    return json.dumps({MARK: __version__, **document}, separators=(",", ":")).encode()


def looks_traced(path: Path) -> bool:
    """Tell whether a file begins as ours do."""
    with path.open("rb") as file:
        return file.read(20).startswith(f'{{"{MARK}":'.encode())
