"""Engines whose ranks are processes: their texts are those of one process, and they end together."""

import gc
import os
import signal
import subprocess
import sys
import tempfile
import threading
import weakref

import pytest
import torch

from tests.laws.test_law_14_everything import everything_at_once
from tests.marks import covering
from tests.parallel.eager_in_threads import save_with_three_kv_heads
from tests.parallel.processes import is_there, listening, wait_until
from tests.peft_adapters import save_adapter
from tests.ports import unused_port
from tests.tiny_models import HYBRIDS, prompt, save
from tokenmill import ConfigError, load
from tokenmill.bench.golden import check_text, reference_for
from tokenmill.errors import RankLost
from tokenmill.loader import ranks
from tokenmill.parallel.team import Team

SETTINGS = {"program": "eager", "threads": 1, "max_length": 96}
SCARCE = {"block_size": 4, "cache_tokens": 80, "max_sequences": 3, "max_step_tokens": 9}
GREEDY = {"max_new_tokens": 6, "ignore_eos": True}
LOOPBACK = "0100007F"


@pytest.fixture(scope="module")
def path(models):
    return save_with_three_kv_heads("llama", models)


def texts(engine, folder):
    """What an engine says with scarce blocks: a batch, a fork that is rewound, scores, and a session that it saves."""
    prompts = [prompt(12, seed=number) for number in range(6)]
    found = [done.tokens for done in engine.generate(prompts, temperature=0.8, seed=5, **GREEDY)]
    session = engine.session(prompt(20, seed=9))
    found.append(session.generate(**GREEDY).tokens)
    fork = session.fork()
    found.append(fork.generate(temperature=1.0, seed=2, **GREEDY).tokens)
    fork.rewind(10)
    fork.append([5, 6])
    found.append(fork.generate(**GREEDY).tokens)
    session.save(folder)
    found.append(session.generate(**GREEDY).tokens)
    return found, engine.score(prompt(9), [[1, 2], [3]])


@pytest.mark.slow
@pytest.mark.parametrize("family", [*HYBRIDS, "mamba2", "gemma3n_text", "gemma4_text-small"])
def test_states_and_their_snapshots_are_those_of_one_process(family, models, tmp_path):
    path, found, files = save(family, models), [], []
    for size in (1, 2):
        folder = tmp_path / f"blocks of {size}"
        engine = load(path, **SETTINGS, **SCARCE, prefix_dir=str(folder), tensor_parallel=size)
        found.append((texts(engine, tmp_path / f"{size}.kv"), engine.logits(prompt(30)).tolist()))
        engine.close()
        files.append({file.name: file.read_bytes() for file in folder.rglob("*.kv")})
    assert found[1] == found[0]
    assert files[0] and files[1] == files[0]
    for size, other in ((1, 2), (2, 1)):
        folder = tmp_path / f"blocks of {other}"
        engine = load(path, **SETTINGS, **SCARCE, prefix_dir=str(folder), tensor_parallel=size)
        assert engine.open_session(tmp_path / f"{other}.kv").generate(**GREEDY).tokens == found[0][0][0][-1]
        done = engine.generate(prompt(12), temperature=0.8, seed=5, **GREEDY)
        assert done.tokens == found[0][0][0][0]
        engine.close()


@pytest.mark.parametrize(
    ("family", "settings"),
    covering(
        [*HYBRIDS, "gemma3n_text", "gemma4_text-small"],
        [{"speculate": "suffix"}, {"async_scheduling": "on"}],
        ids=["suffix", "async"],
        marks=pytest.mark.slow,
    ),
)
def test_states_with_drafts_and_unread_tokens(family, settings, models, tmp_path):
    one = load(save(family, models), **SETTINGS, **SCARCE)
    two = load(save(family, models), **SETTINGS, **SCARCE, **settings, tensor_parallel=2)
    assert texts(two, tmp_path / "2.kv")[0] == texts(one, tmp_path / "1.kv")[0]
    two.close()


@pytest.mark.slow
def test_texts_sessions_and_stored_blocks_are_those_of_one_process(path, tmp_path):
    found = {}
    for size in (1, 2, 3):
        how = {**SETTINGS, **SCARCE, "prefix_dir": str(tmp_path / f"blocks of {size}"), "tensor_parallel": size}
        with_ranks = load(path, **how)
        found[size] = texts(with_ranks, tmp_path / f"{size}.kv"), with_ranks.logits(prompt(30)).tolist()
        with_ranks.close()
    assert found[2] == found[1] and found[3] == found[1]
    blocks = {
        size: {file.name: file.read_bytes() for file in (tmp_path / f"blocks of {size}").rglob("*.kv")}
        for size in (1, 2, 3)
    }
    assert blocks[1] and blocks[2] == blocks[1] and blocks[3] == blocks[1]
    for size in (1, 3):
        how = {**SETTINGS, **SCARCE, "prefix_dir": str(tmp_path / "blocks of 2"), "tensor_parallel": size}
        engine = load(path, **how)
        assert engine.open_session(tmp_path / "2.kv").generate(**GREEDY).tokens == found[1][0][0][-1]
        done = engine.generate(prompt(12), temperature=0.8, seed=5, **GREEDY)
        assert done.tokens == found[1][0][0][0]
        engine.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [{"speculate": "suffix"}, {"async_scheduling": "on"}, {"draft_model": "q8"}],
    ids=["suffix", "async", "draft"],
)
def test_texts_with_drafts_and_unread_tokens(settings, path, tmp_path):
    one = load(path, **SETTINGS, **SCARCE)
    two = load(path, **SETTINGS, **SCARCE, **settings, tensor_parallel=2)
    assert texts(two, tmp_path / "2.kv")[0] == texts(one, tmp_path / "1.kv")[0]
    two.close()


@pytest.mark.long
def test_everything_at_once(path, tmp_path):
    everything_at_once(path, {"program": "eager", "tensor_parallel": 2}, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("family", HYBRIDS)
def test_everything_at_once_with_states(family, models, tmp_path):
    everything_at_once(save(family, models), {"program": "eager", "tensor_parallel": 2}, tmp_path)


def pids(engine):
    """Those of the ranks that were started."""
    return engine.core.loaded.program.pids


@pytest.mark.slow
def test_they_listen_on_loopback_alone_and_end_with_the_engine(path):
    engine = load(path, **SETTINGS, tensor_parallel=2)
    (other,) = pids(engine)
    assert {*listening(os.getpid()), *listening(other)} <= {LOOPBACK}
    assert os.getsid(other) != os.getsid(0)  # so that Ctrl-C on a terminal is for rank 0 alone
    engine.close()
    assert not is_there(other)
    engine = load(path, **SETTINGS, tensor_parallel=2)
    (other,) = pids(engine)
    del engine
    wait_until(lambda: not is_there(other))


@pytest.mark.slow
def test_a_group_ends_with_its_engine_and_not_in_the_thread_of_a_channel(path, monkeypatch):
    """Such a thread may hold the team until the interpreter ends, and torch's group would then abort the process."""
    teams, make = [], Team.__init__
    monkeypatch.setattr(Team, "__init__", lambda self, meeting: (teams.append(self), make(self, meeting))[1])
    engine = load(path, **SETTINGS, tensor_parallel=2)
    group = weakref.ref(teams[0].group)
    assert group() is not None
    engine.close()
    del engine
    gc.collect()
    assert group() is None


@pytest.mark.slow
def test_a_rank_that_is_killed_ends_the_group_with_one_error(path):
    engine = load(path, **SETTINGS, tensor_parallel=3)
    first, second = pids(engine)
    os.kill(second, signal.SIGSTOP)  # so that a step waits for it
    errors = []

    def generate():
        try:
            engine.generate(prompt(9), **GREEDY)
        except RankLost as error:
            errors.append(str(error))

    thread = threading.Thread(target=generate)
    thread.start()
    wait_until(lambda: engine.core.step_begun_s is not None)
    os.kill(second, signal.SIGKILL)
    wait_until(lambda: errors and not is_there(first) and not is_there(second))
    thread.join()
    lost = f"rank 2 (process {second}) of tensor_parallel = 3 was lost: it was killed by signal 9"
    assert errors == [f"{lost}; the model must be loaded again"]
    with pytest.raises(RankLost, match=r"rank 2 .* was lost"):
        engine.generate(prompt(9), **GREEDY)
    engine.close()


@pytest.mark.slow
def test_what_ranks_met_in_is_not_kept(path, tmp_path, monkeypatch):
    """So that nothing of it stays after kill -9."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    engine = load(path, tensor_parallel=2, **SETTINGS)
    assert list(tmp_path.iterdir()) == []
    assert engine.generate(prompt(9), **GREEDY).tokens
    engine.close()


@pytest.mark.slow
def test_ranks_end_when_rank_0_is_killed(path):
    program = (
        "import sys, time, tokenmill\n"
        f"engine = tokenmill.load({str(path)!r}, tensor_parallel=3, **{SETTINGS!r})\n"
        "print(*engine.core.loaded.program.pids, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        others = [int(pid) for pid in process.stdout.readline().split()]
        assert len(others) == 2 and all(map(is_there, others))
        process.kill()
    wait_until(lambda: not any(map(is_there, others)))


@pytest.mark.slow
def test_ranks_end_with_rank_0_though_it_has_forked(path):
    program = (
        "import os, sys, time, tokenmill\n"
        f"engine = tokenmill.load({str(path)!r}, tensor_parallel=2, **{SETTINGS!r})\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    time.sleep(600)\n"
        "print(child, *engine.core.loaded.program.pids, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        child, other = (int(pid) for pid in process.stdout.readline().split())
        process.kill()
        wait_until(lambda: not is_there(other))
        assert is_there(child)
        os.kill(child, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "kind", "said"),
    [
        ("ends", RankLost, r"rank 1 \(process \d+\) of tensor_parallel = 2 was lost: it ended with exit code 3"),
        ("has no weights", RankLost, r"rank 1 .* was lost: .*llama-three: the disk of this rank is gone; the model"),
        ("tokenmill's version", ConfigError, r"tokenmill's version = '.*' \(set in rank 0\) is not allowed: the same "
         r"on every rank, and it is 'another' on rank 1 \(tensor_parallel = 2\)"),
        ("torch's version", ConfigError, r"torch's version = .* and it is 'another' on rank 1"),
        ("the model's weights", ConfigError, r"the model's weights = .* and it is 'another' on rank 1"),
    ],
)  # fmt: skip
def test_a_rank_that_does_not_come_or_is_another(how, kind, said, path, monkeypatch):
    monkeypatch.setattr(ranks, "MODULE", "tests.parallel.other_rank")
    monkeypatch.setenv("TOKENMILL_TEST_RANK", how)
    with pytest.raises(kind, match=said):
        load(path, **SETTINGS, tensor_parallel=2)


@pytest.mark.slow
def test_a_rank_that_is_killed_before_it_has_come(path, monkeypatch):
    monkeypatch.setattr(ranks, "MODULE", "tests.parallel.other_rank")
    monkeypatch.setenv("TOKENMILL_TEST_RANK", "waits")
    started, start = [], ranks.start_ranks

    def start_and_kill(*given):
        meeting = start(*given)
        started.extend(process.pid for process in meeting.processes)
        os.kill(started[0], signal.SIGKILL)
        return meeting

    monkeypatch.setattr(ranks, "start_ranks", start_and_kill)
    with pytest.raises(RankLost, match=r"rank 1 .* was lost: it was killed by signal 9"):
        load(path, **SETTINGS, tensor_parallel=3)
    wait_until(lambda: not any(map(is_there, started)))


def said(*arguments, torchrun=False):
    """What `generate` does, in one process or in two that torchrun starts."""
    starts = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"] if torchrun else []
    command = [sys.executable, *starts, "-m", "tokenmill", "generate", *arguments, "--tokens", "5,6,7", "-n", "8"]
    command += ["--program", "eager", "--ignore-eos"]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.slow
def test_torchrun_starts_them_as_well(path):
    done = said(path, "-tp", "2", torchrun=True)
    assert not done.returncode and done.stdout == said(path).stdout
    refused = said(path, "-tp", "3", torchrun=True)
    assert refused.returncode and "because torchrun has started so many processes" in refused.stderr


@pytest.mark.slow
def test_an_adapter_in_ranks_of_torchrun(models, tmp_path):
    save_adapter("llama", tmp_path)
    path, alone = save("llama", models), said(save("llama", models))
    done = said(path, "--adapter", tmp_path, "-tp", "2", torchrun=True)
    assert not done.returncode and done.stdout == said(path, "--adapter", tmp_path).stdout != alone.stdout


@pytest.mark.long
@pytest.mark.model
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("settings", [{}, {"dtype": "bfloat16", "scheme": "dense"}, {"scheme": "q8"}], ids=str)
def test_the_real_model_has_the_bits_of_one_process(settings, size, real_model):
    """Nine heads over three kv heads: two ranks have two and one of those."""
    how = {"program": "eager", "threads": 1, "max_length": 256, "dtype": "float32", **settings}
    one, ranks_of_it = load(real_model, **how), load(real_model, **how, tensor_parallel=size)
    tokens = one.encode("Why is the sky blue? Explain it to a child in simple words, with an example.")
    assert torch.equal(ranks_of_it.logits(tokens), one.logits(tokens))
    prompts = [tokens, "Once upon a time", "def fibonacci(n):"]
    found = [[done.tokens for done in engine.generate(prompts, max_new_tokens=8)] for engine in (one, ranks_of_it)]
    assert found[0] == found[1]
    ranks_of_it.close()


@pytest.mark.long
@pytest.mark.model
def test_the_golden_texts(real_model):
    engine = load(real_model, program="eager", tensor_parallel=2, dtype="float32")
    assert check_text(engine, reference_for(real_model)).startswith("8 texts")
    engine.close()


@pytest.mark.slow
def test_ranks_with_other_settings_are_named(path):
    """Two processes as torchrun starts them, of which one has another setting."""
    port = unused_port()
    command = [sys.executable, "-m", "tokenmill", "generate", str(path), "--tokens", "5", "--program", "eager"]
    ends = []
    for rank, dtype in enumerate(("float32", "bfloat16")):
        place = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        ends.append(
            subprocess.Popen(
                [*command, "-tp", "2", "--threads", "1", "--dtype", dtype],
                env={**os.environ, **place},
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    said = [process.communicate(timeout=300)[1] for process in ends]
    assert ends[0].returncode == 2
    assert "dtype = 'float32'" in said[0] and "and it is 'bfloat16' on rank 1" in said[0]
    assert "error" not in said[1].lower()
