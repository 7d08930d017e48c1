"""The process is not ours: an engine leaves torch's threads as it found them, and refuses its use in a forked child."""

import os
import subprocess
import sys
import threading

import pytest
import torch

from tests.empty import check_empty
from tests.forked import in_fork
from tests.marks import needs_native
from tests.tiny_models import prompt
from tokenmill.engine.load import load
from tokenmill.settings.sampling_params import SamplingParams

START = prompt(30, seed=8)
PLAIN = SamplingParams(max_new_tokens=4, ignore_eos=True)


@pytest.fixture(autouse=True)
def own_threads():
    """As many as no engine here has."""
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(2)


@pytest.mark.parametrize("program", [pytest.param("native", marks=needs_native), "eager"])
@pytest.mark.parametrize("settings", [{}, {"draft_model": "q8"}, {"scheme": "q8"}], ids=str)
def test_torch_has_the_threads_that_it_had(program, settings, llama, tmp_path):
    engine = load(llama, program=program, dtype="float32", threads=1, max_length=64, **settings)
    assert torch.get_num_threads() == 3
    with engine.session(START) as session:
        session.generate(params=PLAIN)
        session.save(tmp_path / "x.kv")
    engine.open_session(tmp_path / "x.kv").close()
    engine.logits(START)
    engine.score(START, [[1, 2]])
    assert torch.get_num_threads() == 3
    engine.close()
    assert torch.get_num_threads() == 3
    with pytest.raises(Exception, match="max_length"):
        load(llama, threads=1, max_length=10_000)
    assert torch.get_num_threads() == 3


def test_an_earlier_load_sets_no_default(llama):
    wanted = load(llama, dtype="float32").config.threads
    load(llama, dtype="float32", threads=1)
    assert load(llama, dtype="float32").config.threads == wanted


def test_rows_are_labelled_with_the_threads_that_compute_them(llama, tmp_path):
    """And so no engine with other threads takes them from the directory, whatever the process computes in."""
    for threads in (2, 1):
        torch.set_num_threads(threads)
        made = [load(llama, program="eager", dtype="float32", threads=count, prefix_dir=tmp_path) for count in (1, 2)]
        builds = [engine.core.loaded.compatibility["build"] for engine in made]
        assert [build.split(" on ")[1] for build in builds] == ["1 threads", "2 threads"]
    made[1].generate(prompt(70, seed=9), PLAIN)
    folders = {path.parent for path in tmp_path.glob("*/*.kv")}
    made[0].generate(prompt(70, seed=9), PLAIN)
    assert len({path.parent for path in tmp_path.glob("*/*.kv")} - folders) == 1


def test_rows_are_labelled_with_the_instruction_sets_that_compute_them(llama, monkeypatch):
    """Another processor, or this one with fewer, may add in another order."""
    builds = []
    for allowed in ("", "AVX2"):
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", allowed)  # oneDNN itself has read it before
        builds.append(load(llama, program="eager", dtype="float32").core.loaded.compatibility["build"])
    assert torch.backends.cpu.get_cpu_capability() in builds[0] and builds[0] != builds[1]


PROGRAMS = [{"program": "eager", "threads": 2}, pytest.param({"threads": 2}, marks=needs_native)]


@pytest.mark.parametrize("how", PROGRAMS, ids=str)
def test_an_engine_refuses_its_use_in_a_forked_child(how, llama):
    """It is forked while another thread generates. Nothing hangs in the child, and the parent goes on."""
    engine = load(llama, dtype="float32", max_sequences=2, max_length=64, **how)
    wanted, running, over = engine.generate(START, PLAIN).tokens, threading.Event(), threading.Event()
    session, stream = engine.session(START), engine.stream(START, PLAIN)
    tokens = next(stream).tokens

    def others():
        while not over.is_set():
            engine.generate(START, PLAIN)
            running.set()

    thread = threading.Thread(target=others)
    thread.start()
    running.wait()
    said = (
        f"this engine was loaded in process {os.getpid()}, and this is a forked child of it: "
        "load the model in the child, or start the child with spawn or exec"
    )
    for use in (
        lambda: engine.generate(START, PLAIN),
        lambda: next(stream),
        lambda: engine.session(START).generate(params=PLAIN),
        lambda: session.generate(params=PLAIN),
        lambda: session.save("x.kv"),
        lambda: engine.logits(START),
        lambda: engine.score(START, [[1, 2]]),
        engine.core.step,
        lambda: engine.core.watch(lambda: None, print),
    ):
        assert in_fork(use) == f"RequestError({said!r})"
    over.set()
    thread.join()
    assert tokens + sum((piece.tokens for piece in stream), ()) == wanted
    assert session.generate(params=PLAIN).tokens == wanted
    session.close()
    check_empty(engine.core)


@pytest.mark.parametrize("how", PROGRAMS, ids=str)
def test_a_model_may_be_loaded_in_a_forked_child(how, llama):
    wanted = load(llama, dtype="float32", **how).generate(START, PLAIN).tokens
    assert in_fork(lambda: load(llama, dtype="float32", **how).generate(START, PLAIN).tokens) == repr(wanted)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, marks=needs_native),
        pytest.param({"program": "eager"}, marks=pytest.mark.slow),
        pytest.param({"program": "eager", "tensor_parallel": 2}, marks=pytest.mark.slow),
        pytest.param({"program": "native", "tensor_parallel": 2}, marks=[pytest.mark.slow, needs_native]),
    ],
    ids=str,
)
def test_a_child_that_only_exits_leaves_nothing_broken(settings, llama, tmp_path):
    """It leaves the contexts of its parent's engine and session, and the interpreter takes itself apart."""
    settings = {"dtype": "float32", "threads": 1, "max_length": 64, "suffix_dir": str(tmp_path), **settings}
    code = f"""
import os, pathlib, sys, tokenmill
with tokenmill.load({str(llama)!r}, **{settings!r}) as engine, engine.session({START!r}) as session:
    wanted = engine.generate({START!r}, max_new_tokens=20, ignore_eos=True).tokens
    session.generate(max_new_tokens=2)
    if not (child := os.fork()):
        sys.exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert not list(pathlib.Path({str(tmp_path)!r}).rglob("*.texts"))
    assert engine.generate({START!r}, max_new_tokens=20, ignore_eos=True).tokens == wanted
    session.generate(max_new_tokens=2)
"""
    quiet = ["-W", "ignore:This process:DeprecationWarning"]  # from Python 3.12 on, of every fork beside threads
    command = [sys.executable, *quiet, "-c", code]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    assert list(tmp_path.rglob("*.texts"))
