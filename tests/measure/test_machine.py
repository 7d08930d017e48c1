"""The peak of a machine by its own figures."""

import json
import os
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from tokenmill.measure import machine
from tokenmill.measure.machine import Limits


def limits(float32, bfloat16, int8):
    return Limits("cpu", "a processor", 2, 2, 40.0, 30.0, 160.0, 90.0, float32, bfloat16, int8)


@pytest.mark.parametrize(
    ("dtype", "integer", "peak"),
    [("float32", False, 200), ("bfloat16", False, 400), ("float16", False, 200), ("bfloat16", True, 800)],
)
def test_the_peak_is_that_of_the_numbers(dtype, integer, peak):
    """A CPU widens float16 to float32; a GPU has instructions for it."""
    assert limits(200.0, 400.0, 800.0).flop_s(dtype, integer) == 1e9 * peak
    on_gpu = replace(limits(200.0, 400.0, 800.0), device="cuda:0")
    assert on_gpu.flop_s(dtype, integer) == 1e9 * (400 if dtype == "float16" else peak)


@pytest.mark.parametrize("int8", [2.0, None])
@pytest.mark.parametrize("integer", [False, True])
def test_a_processor_without_small_numbers_widens_them(integer, int8):
    """Measured on one without AVX-512: 175, 0.8 and 1.7, by which prefill was at 12,000 % of the floor."""
    assert limits(175.0, 1.0, int8).flop_s("bfloat16", integer) == 175e9


DEVICE = torch.device("cpu")


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """A cache folder, a clock, and a measurement that only counts."""
    monkeypatch.setenv("TOKENMILL_CACHE", str(tmp_path / "cache"))
    state = SimpleNamespace(now=1000.0, count=0, cache=tmp_path / "cache")

    def measure(device, threads):
        state.count += 1
        return replace(limits(1.0, 2.0, 3.0), threads=threads, measured_at=state.now)

    monkeypatch.setattr(machine, "measure", measure)
    monkeypatch.setattr(machine.time, "time", lambda: state.now)
    return state


def test_limits_are_measured_once_a_day(measured):
    first = machine.limits(DEVICE, 2)
    measured.now = 1000.0 + 24 * 3600 - 1
    assert machine.limits(DEVICE, 2) == first and measured.count == 1
    measured.now = 1000.0 + 24 * 3600
    assert machine.limits(DEVICE, 2).measured_at == measured.now and measured.count == 2
    measured.now -= 1  # a clock that was put back
    machine.limits(DEVICE, 2)
    assert measured.count == 3
    machine.limits(DEVICE, 2, again=True)
    machine.limits(DEVICE, 3)
    assert measured.count == 5
    assert len(list((measured.cache / "machine").iterdir())) == 2


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\xff", b"no json"])
def test_a_damaged_file_is_measured_anew(measured, content):
    machine.limits(DEVICE, 2)
    [file] = (measured.cache / "machine").iterdir()
    assert file.suffix == ".json" and len(file.stem) == 16
    good = json.loads(file.read_text())
    for bad in (content, json.dumps({**good, "more": 1}).encode(), json.dumps({**good, "measured_at": "x"}).encode()):
        file.write_bytes(bad)
        measured.count = 0
        machine.limits(DEVICE, 2)
        assert measured.count == 1
        assert json.loads(file.read_text()) == good


def test_a_cache_that_cannot_be_written_costs_a_measurement(measured):
    measured.cache.write_text("a file")
    assert machine.limits(DEVICE, 2).threads == 2
    machine.limits(DEVICE, 2)
    assert measured.count == 2


def test_a_rate_is_that_of_the_fastest_run(monkeypatch):
    """Of four runs the first does not count, though it is the fastest; the best of the others takes 0.25 s."""
    read = []
    monkeypatch.setattr(torch.Tensor, "sum", lambda self: read.append(self.nbytes))
    times = iter([0.0, 1.0, 1.5, 2.0, 2.25, 3.0, 4.0])
    monkeypatch.setattr(machine.time, "perf_counter", lambda: next(times))
    assert machine.quick_probe() == 128 * 2**20 / 0.25 / 1e9
    assert read == [128 * 2**20] * 4


def test_what_is_measured_with_how_many_threads(monkeypatch):
    """The kernels of torch are left out: what is asked for, in which order, with how many threads."""
    asked, inside = [], []

    @contextmanager
    def threads(count):
        inside.append(count)
        yield
        inside.pop()

    def best(work, device, repeats):
        asked.append((*inside, repeats))
        return 0.5

    monkeypatch.setattr(machine, "torch_threads", threads)
    monkeypatch.setattr(machine, "_best_s", best)
    monkeypatch.setattr(machine, "CACHED_BYTES", 4096)
    monkeypatch.setattr(machine, "FAR_BYTES", 8192)
    monkeypatch.setattr(machine.time, "time", lambda: 77.0)
    found = machine.measure(DEVICE, 2)
    assert asked == [(1, 32), (1, 8), (2, 8), (2, 32), (2, 4), (2, 4), (2, 4)]
    assert found == Limits(
        device="cpu",
        processor=machine.processor(),
        cores=os.cpu_count(),
        threads=2,
        read_gb_s=8192 / 0.5 / 1e9,
        read_1_thread_gb_s=8192 / 0.5 / 1e9,
        cached_read_gb_s=4096 / 0.5 / 1e9,
        cached_read_1_thread_gb_s=4096 / 0.5 / 1e9,
        float32_gflop_s=2 * 1536**3 / 0.5 / 1e9,
        bfloat16_gflop_s=2 * 1536**3 / 0.5 / 1e9,
        int8_gop_s=2 * 2048**3 / 0.5 / 1e9,
        measured_at=77.0,
    )


def test_the_processor_has_the_name_that_the_system_gives(monkeypatch, tmp_path):
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Some CPU: 4 GHz \nmodel name\t: other\n")
    monkeypatch.setattr(machine, "Path", lambda name: {"/proc/cpuinfo": tmp_path / "cpuinfo"}[name])
    assert machine.processor.__wrapped__() == "Some CPU: 4 GHz"
    (tmp_path / "cpuinfo").write_text("processor\t: 0\n")
    monkeypatch.setattr(machine.platform, "processor", lambda: "")
    monkeypatch.setattr(machine.platform, "machine", lambda: "riscv64")
    assert machine.processor.__wrapped__() == "riscv64"
    monkeypatch.setattr(machine.platform, "processor", lambda: "a name")
    (tmp_path / "cpuinfo").unlink()
    assert machine.processor.__wrapped__() == "a name"
    assert machine.instruction_sets() == torch.backends.cpu.get_cpu_capability()
