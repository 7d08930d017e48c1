"""Steps as events of Chrome's Trace Event Format, and merged with torch's own trace."""

import json

import pytest

from tokenmill.measure.recorder import StepRecord
from tokenmill.measure.trace import (
    FORWARD,
    PHASES,
    MemoryReading,
    as_bytes,
    kind_of,
    looks_traced,
    merge,
    phase_times,
    trace_events,
)
from tokenmill.version import __version__

PREFILL = StepRecord(10.0, 10.001, 10.003, 10.004, 10.006, 7, 1, 2, False)
DECODE = StepRecord(11.0, 11.25, 11.5, 11.75, 12.0, 3, 4, 3, True, 2)
MINE = 1 << 30  # above every process of Linux


def test_a_step_and_its_phases():
    assert (kind_of(PREFILL), kind_of(DECODE)) == ("prefill", "decode")
    assert DECODE.total_s == 1.0
    assert PHASES == ("plan", "forward", "sampling", "delivery")
    assert phase_times(DECODE) == [
        ("plan", 11.0, 11.25), ("forward", 11.25, 11.5), ("sampling", 11.5, 11.75), ("delivery", 11.75, 12.0),
    ]  # fmt: skip


def test_the_events_of_a_step():
    found = trace_events([DECODE, PREFILL], [], 9.0, shift_us=5.0)
    row = {"pid": MINE, "tid": MINE, "ph": "X"}
    args = {"step": 0, "fed": 3, "new": 4, "sequences": 3}
    assert found[:2] == [
        {"name": "process_name", "ph": "M", "pid": MINE, "args": {"name": "tokenmill"}},
        {"name": "thread_name", "ph": "M", "pid": MINE, "tid": MINE, "args": {"name": "steps"}},
    ]
    assert found[2] == {"name": "decode", "cat": "step", "ts": 2e6 + 5, "dur": 1e6, "args": args, **row}
    assert found[3:7] == [
        {"name": name, "cat": "phase", "ts": 2e6 + 5 + number * 25e4, "dur": 25e4, "args": {"step": 0}, **row}
        for number, name in enumerate(PHASES)
    ]
    assert found[7] == {"name": "tokens per step", "ph": "C", "pid": MINE, "ts": 2e6 + 5, "args": {"tokens": 3}}
    assert found[8]["name"] == "prefill" and found[8]["args"] == {"step": 1, "fed": 7, "new": 1, "sequences": 2}
    assert len(found) == 14
    assert trace_events([DECODE], [], 11.0)[2]["ts"] == 0.0


def test_phases_fill_their_step_to_the_nanosecond():
    third = StepRecord(1 / 3, 0.4000000004, 0.5000000006, 0.7, 0.9999999996, 1, 1, 1, True)
    step, *phases = trace_events([third], [], 0.0)[2:7]
    assert sum(phase["dur"] for phase in phases) == pytest.approx(step["dur"], abs=1e-9)
    assert step["ts"] == 333333.333 and step["dur"] == 666666.667


def test_counters_of_memory():
    found = trace_events([], [MemoryReading(2.0, 3_000_000, 5), MemoryReading(3.0, 1, 6, 2_500_000)], 1.0)[2:]
    assert [(one["name"], one["ts"], one["args"]) for one in found] == [
        ("resident memory, MB", 1e6, {"resident": 3.0}),
        ("cache blocks in use", 1e6, {"blocks": 5}),
        ("resident memory, MB", 2e6, {"resident": 1e-6}),
        ("cache blocks in use", 2e6, {"blocks": 6}),
        ("device memory, MB", 2e6, {"allocated": 2.5}),
    ]
    assert {(one["ph"], one["pid"]) for one in found} == {("C", MINE)}


def forward(ts, **more):
    return {"name": FORWARD, "cat": "user_annotation", "ts": ts, **more}


def test_both_traces_have_torchs_clock():
    """The forward of the first began 2,000,000 - 1,250,000 µs and of the second 1,501,000 µs before torch says."""
    torch_trace = {
        "schemaVersion": 1,
        "traceEvents": [forward(9_000_000), {"name": "aten::mm", "ts": 1}, forward(3_000_000)],
    }
    merged = merge(torch_trace, [DECODE, PREFILL], [], 10.0)
    shift = (3_000_000 - 1_250_000 + 9_000_000 - 1_000) / 2  # the median of two is their mean
    assert [one["ts"] for one in merged["traceEvents"] if one["name"] == "decode"] == [1e6 + shift]
    assert merged["traceEvents"][:3] == torch_trace["traceEvents"]
    assert (merged["schemaVersion"], merged["displayTimeUnit"]) == (1, "ms")


def test_only_forwards_of_the_cpu_count():
    other = [{"name": FORWARD, "cat": "gpu_user_annotation", "ts": 5}, {"name": "x", "cat": "user_annotation", "ts": 6}]
    merged = merge({"traceEvents": other}, [DECODE], [], 11.0)
    assert [one["ts"] for one in merged["traceEvents"] if one["name"] == "decode"] == [0.0]
    assert len(merge({}, [], [], 0.0)["traceEvents"]) == 2


def test_what_torch_allocated_becomes_a_curve():
    memory = {"name": "[memory]", "ts": 3, "args": {"Device Type": 0, "Total Allocated": 1_500_000}}
    on_gpu = {"name": "[memory]", "ts": 4, "args": {"Device Type": 1, "Device Id": 2}}
    found = merge({"traceEvents": [memory, on_gpu]}, [], [], 0.0)["traceEvents"]
    assert found[:2] == [memory, on_gpu]
    assert found[-2:] == [
        {"name": "allocated by torch on CPU, MB", "ph": "C", "pid": MINE, "ts": 3, "args": {"allocated": 1.5}},
        {"name": "allocated by torch on device 2, MB", "ph": "C", "pid": MINE, "ts": 4, "args": {"allocated": 0.0}},
    ]


def test_a_file_of_ours_is_known_by_its_beginning(tmp_path):
    content = as_bytes({"traceEvents": [1]})
    assert json.loads(content) == {"tokenmill": __version__, "traceEvents": [1]} and b" " not in content
    for name, data, expected in (
        ("ours", content, True),
        ("other", b'{"traceEvents":[]}', False),
        ("none", b"", False),
    ):
        (tmp_path / name).write_bytes(data)
        assert looks_traced(tmp_path / name) is expected
