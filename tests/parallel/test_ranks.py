"""Ranks as processes: they start with a model and end with it, and one that dies ends every request with an error."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

import tokenmill
from tests.forked import in_fork
from tests.parallel.processes import PATIENCE_S, is_there, wait_until
from tests.tiny_models import prompt
from tokenmill import RankLost, TokenmillError, load
from tokenmill.kernels import native_library
from tokenmill.loader import load_model
from tokenmill.loader import ranks as loader_ranks
from tokenmill.parallel import ranks

LONG = prompt(97, seed=5)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(native_library.why_not() is not None, reason=f"the library {native_library.why_not()}"),
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="it reads /proc"),
]


def ranks_of(parent):
    """The processes that run a rank for this one."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            is_rank = ranks.MODULE.encode() in (folder / "cmdline").read_bytes().split(b"\0")
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if is_rank and int(fields[1]) == parent and fields[0] != "Z":
            found.append(int(folder.name))
    return found


def in_ranks(path, count=2, **settings):
    return load(path, program="native", dtype="float32", threads=1, tensor_parallel=count, **settings)


@pytest.fixture
def alone(llama):
    engine = load(llama, program="native", dtype="float32", threads=1)
    yield engine
    engine.close()


def test_processes_give_the_bits_of_one_and_end_with_the_engine(llama, alone):
    engine = in_ranks(llama, 3)
    assert len(ranks_of(os.getpid())) == 2
    assert torch.equal(engine.logits(LONG), alone.logits(LONG))
    prompts = [prompt(length, seed=length) for length in (3, 17, 40)]
    assert [done.tokens for done in engine.generate(prompts, max_new_tokens=20)] == [
        done.tokens for done in alone.generate(prompts, max_new_tokens=20)
    ]
    engine.close()
    assert ranks_of(os.getpid()) == []


def test_an_engine_that_nobody_holds_ends_its_ranks(llama):
    engine = in_ranks(llama)
    engine.generate(LONG, max_new_tokens=2)
    del engine
    gc.collect()
    wait_until(lambda: ranks_of(os.getpid()) == [])


def test_a_session_goes_on_under_another_number(llama, alone, tmp_path):
    wanted = alone.session(LONG)
    wanted.generate(max_new_tokens=6, temperature=0.8, seed=3)
    engine = in_ranks(llama)
    session = engine.session(LONG)
    session.generate(max_new_tokens=3, temperature=0.8, seed=3)
    session.save(tmp_path / "one.kv")
    engine.close()
    for count in (1, 3):
        other = in_ranks(llama, count)
        opened = other.open_session(tmp_path / "one.kv")
        opened.generate(max_new_tokens=3, temperature=0.8, seed=3)
        assert opened.tokens == wanted.tokens
        other.close()


@pytest.mark.parametrize("is_busy", [False, True])
def test_a_rank_that_dies_ends_every_request(is_busy, llama):
    engine = in_ranks(llama, 3, max_length=128)
    errors = []

    def generate():
        try:
            while True:
                engine.generate(LONG[:20], max_new_tokens=100, ignore_eos=True)
        except RankLost as error:
            errors.append(str(error))

    thread = threading.Thread(target=generate)
    if is_busy:
        thread.start()
        wait_until(lambda: engine.core.trackers)
    os.kill(ranks_of(os.getpid())[0], signal.SIGKILL)
    if is_busy:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
        assert "was ended by signal SIGKILL: load the model again" in errors[0]
    with pytest.raises(RankLost, match="of 3 was ended by signal SIGKILL"):
        while True:
            engine.generate(LONG, max_new_tokens=1)
    engine.close()
    assert ranks_of(os.getpid()) == []


def test_ranks_end_with_a_rank_0_that_is_killed(llama):
    code = (
        "import sys, time, tokenmill\n"
        f"engine = tokenmill.load({str(llama)!r}, program='native', threads=1, tensor_parallel=2)\n"
        "print('ready', flush=True)\n"
        "engine.generate([1, 2, 3], max_new_tokens=60, ignore_eos=True)\n"
        "time.sleep(1000)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    (rank,) = ranks_of(process.pid)
    process.kill()
    process.wait()
    process.stdout.close()
    wait_until(lambda: not is_there(rank))


def test_a_rank_that_does_not_start_is_told(llama, monkeypatch):
    monkeypatch.setattr(ranks, "MODULE", "this")
    with pytest.raises(RankLost, match="rank 1 of 2 has ended with exit code 0"):
        in_ranks(llama)


def test_a_rank_of_another_version_is_refused(llama, monkeypatch):
    monkeypatch.setattr(loader_ranks, "versions", lambda: {"tokenmill": "9.9"})
    with pytest.raises(RankLost, match=r"rank 1 of 2 says: versions: .* here and None on rank 0"):
        in_ranks(llama)
    assert ranks_of(os.getpid()) == []


def test_an_engine_that_a_forked_child_closes_goes_on_in_its_own_process(llama):
    engine = in_ranks(llama)
    wanted = engine.generate([1, 2, 3], max_new_tokens=3).tokens
    assert in_fork(engine.close) == "None"
    assert engine.generate([1, 2, 3], max_new_tokens=3).tokens == wanted
    engine.close()


def test_ranks_find_the_modules_that_rank_0_finds(llama, tmp_path):
    """Not those of the folder in which a program is now, nor of another copy that is installed."""
    code = (
        f"import os, sys; sys.path.insert(0, {str(Path(tokenmill.__file__).parents[1])!r})\n"
        "import tokenmill\n"
        f"engine = tokenmill.load({str(llama)!r}, program='native', threads=1, tensor_parallel=2)\n"
        "print(engine.generate([1, 2, 3], max_new_tokens=2).num_prompt_tokens)\n"
        "engine.close()\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode) == ("3\n", 0), done.stderr


def test_a_rank_that_ends_while_rank_0_loads_is_told(llama, monkeypatch):
    """The memory that they share is closed by then, and that is not the reason."""
    source = load_model.WeightSource
    monkeypatch.setattr(ranks, "MODULE", "this")

    def slow(*given):
        wait_until(lambda: not ranks_of(os.getpid()) and known[0].steps.descriptor < 0)
        return source(*given)

    known, start = [], ranks.OtherRanks.start
    monkeypatch.setattr(ranks.OtherRanks, "start", lambda self, told: (known.append(self), start(self, told)))
    monkeypatch.setattr(load_model, "WeightSource", slow)
    with pytest.raises(RankLost, match="rank 1 of 2 has ended with exit code 0"):
        in_ranks(llama)


def test_an_engine_whose_rank_is_stopped_in_a_step_is_closed(llama):
    engine = in_ranks(llama)
    errors = []

    def generate():
        try:
            engine.generate(LONG, max_new_tokens=30)
        except TokenmillError as error:
            errors.append(error)

    (rank,) = ranks_of(os.getpid())
    os.kill(rank, signal.SIGSTOP)
    thread = threading.Thread(target=generate)
    thread.start()
    wait_until(lambda: engine.core.step_begun_s is not None)
    engine.close()
    thread.join()
    assert errors and ranks_of(os.getpid()) == []


def test_a_load_that_waits_for_a_rank_is_interrupted(llama, monkeypatch):
    """The rank never comes, and is stopped, so that it does not notice its end either."""
    monkeypatch.setattr(ranks, "MODULE", "tests.parallel.silent_rank")

    def interrupt():
        wait_until(lambda: ranks_of(os.getpid()))
        os.kill(ranks_of(os.getpid())[0], signal.SIGSTOP)
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        in_ranks(llama)
    thread.join()
    assert ranks_of(os.getpid()) == []
