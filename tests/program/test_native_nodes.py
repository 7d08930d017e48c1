"""Threads on two simulated memory nodes: the same bits, each thread on its node, and nothing taken across."""

import os
import subprocess
from pathlib import Path

import hatch_build
import pytest
import torch

from tests.gguf_files import KIND, write_codes
from tests.marks import covering
from tests.tiny_models import prompt, save
from tokenmill import load
from tokenmill.kernels import native_library
from tokenmill.program.native import program

LONG = prompt(97, seed=5)
HERE = Path(__file__).parent

pytestmark = [
    pytest.mark.skipif(native_library.why_not() is not None, reason=f"the library {native_library.why_not()}"),
    pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="only Linux has these functions"),
]


@pytest.fixture
def two_nodes(monkeypatch):
    """Each with one processor of this machine, or both with the only one."""
    usable = sorted(os.sched_getaffinity(0))
    nodes = [[usable[0]], [usable[-1]]]
    monkeypatch.setattr(program, "memory_nodes", lambda: nodes)
    return nodes


@pytest.mark.parametrize(
    ("family", "scheme"), covering(["llama", "mixtral", "gpt2", "glm4_moe"], ["dense", "q4"], ["llama"])
)
def test_the_same_bits(family, scheme, models, monkeypatch, request):
    path, settings = save(family, models), {"program": "native", "dtype": "float32", "scheme": scheme}
    alone = load(path, threads=1, **settings).logits(LONG)
    request.getfixturevalue("two_nodes")
    for threads in (2, 3, 4):
        engine = load(path, threads=threads, **settings)
        assert torch.equal(engine.logits(LONG), alone)
        assert torch.equal(engine.logits(LONG[:3]), alone[:3])
        engine.close()


def test_a_tied_head_in_codes_is_looked_up_where_it_was_moved(tmp_path, request):
    """Tokens are looked up in the units of the head."""
    path = write_codes(tmp_path / "x.gguf", "llama-wide-tied", [KIND.Q8_0])
    how = {"program": "native", "threads": 2, "packed_cache": False}
    alone = load(path, **how).logits([1, 2, 3, 200])
    request.getfixturevalue("two_nodes")
    moved = load(path, **how)
    ops = moved.core.loaded.program.ops.array
    assert ops[0].num_units == ops[-1].num_units > 0
    assert torch.equal(moved.logits([1, 2, 3, 200]), alone)


def test_the_callers_processors_stay(two_nodes, llama):
    before = os.sched_getaffinity(0)
    engine = load(llama, program="native", threads=2)
    engine.generate(LONG, max_new_tokens=3)
    assert os.sched_getaffinity(0) == before
    engine.close()


@pytest.mark.compiler
def test_a_queue_is_taken_from_by_threads_of_its_node_alone(tmp_path):
    binary = tmp_path / "queues"
    source = HERE / "native_queues.cpp"
    subprocess.run([*hatch_build.compiler(), *hatch_build.FLAGS, str(source), "-o", str(binary)], check=True)
    assert subprocess.run([binary], capture_output=True, text=True, check=True).stdout == "ok\n"
