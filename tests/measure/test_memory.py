"""Memory as the system counts it against memory as the engine does."""

import json
import subprocess
import sys

import pytest

from tokenmill.measure import memory
from tokenmill.measure.memory import peak_bytes, reset_peak, resident_bytes

COUNT = """
import json, sys, torch, tokenmill, tokenmill.engine.load

def resident():
    lines = [line for line in open("/proc/self/status") if line.startswith(("RssAnon", "RssFile"))]
    return sum(1024 * int(line.split()[1]) for line in lines)

torch.randn(500, 500) @ torch.randn(500, 500)
before = resident()
how = {"dtype": "float32", "scheme": "dense", "max_length": 2048, "packed_cache": sys.argv[2] == "copy"}
engine = tokenmill.load(sys.argv[1], **how)
engine.generate("A", max_new_tokens=2)
print(json.dumps({"grown": resident() - before, **engine.memory}))
"""
FIRST = 40_000_000  # what malloc keeps of the thread that read ahead (23 MB) and Python of the parsed header (14 MB)


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize("source", ["file", "copy"])
def test_what_the_engine_counts_is_what_the_system_counts(real_model, source):
    """Weights and cache within 5 %: neither the source nor what was read of it stays beside them.

    Only a process that has read a GGUF file keeps some memory, which is free for what comes later.
    """
    command = [sys.executable, "-c", COUNT, str(real_model), source]
    for _ in range(2 if source == "copy" else 1):  # the first makes the copy
        out = subprocess.run(command, capture_output=True, text=True, check=True)
        figures = json.loads(out.stdout)
        expected = figures["weights_bytes"] + figures["cache_bytes"]
    assert 0.95 * expected < figures["grown"] < 1.05 * expected + (FIRST if source == "file" else 0), figures


def test_the_peak_begins_anew():
    block = bytearray(64 * 2**20)
    block[::4096] = b"x" * len(block[::4096])
    resident = resident_bytes()
    high = peak_bytes()
    assert high >= resident >= len(block)
    del block
    if not reset_peak():
        pytest.skip("this system keeps the peak for ever")
    assert peak_bytes() < high


STATUS = "Name:\tmill\nVmHWM:\t    2000 kB\nVmRSS:\t    1000 kB\n"


@pytest.fixture
def system(tmp_path, monkeypatch):
    """Files of the system that hold what a test writes into them; none at first."""
    monkeypatch.setattr(memory, "_STATUS", tmp_path / "status")
    monkeypatch.setattr(memory, "_CLEAR", tmp_path / "clear_refs")
    monkeypatch.setattr(memory.resource, "getrusage", lambda who: {memory.resource.RUSAGE_SELF: Usage}[who])
    return tmp_path


class Usage:
    ru_maxrss = 3000


def test_the_systems_figures_in_bytes(system):
    (system / "status").write_text(STATUS)
    assert (resident_bytes(), peak_bytes()) == (1000 * 1024, 2000 * 1024)
    (system / "status").write_text("Name:\tmill\n")
    assert (resident_bytes(), peak_bytes()) == (3000 * 1024, 3000 * 1024)


@pytest.mark.parametrize(("platform", "unit"), [("linux", 1024), ("darwin", 1)])
def test_a_system_without_those_files(system, monkeypatch, platform, unit):
    monkeypatch.setattr(memory.sys, "platform", platform)
    assert (resident_bytes(), peak_bytes()) == (3000 * unit, 3000 * unit)


def test_the_peak_is_restarted_by_a_5(system):
    assert reset_peak() is True
    assert (system / "clear_refs").read_text() == "5"
    (system / "clear_refs").unlink()
    (system / "clear_refs").mkdir()
    assert reset_peak() is False
