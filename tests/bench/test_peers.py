"""`tokenmill bench peers`: engines in processes of their own, and what becomes of those that do not behave."""

import json
import os
import sys
from pathlib import Path

import pytest

from tests.tiny_models import save
from tokenmill.bench.peers import contest as peers
from tokenmill.bench.peers import install as peer_install
from tokenmill.bench.peers import known as peer_list
from tokenmill.bench.peers.contest import Contest
from tokenmill.bench.peers.known import PEERS, PROGRAMS, Peer, command_for
from tokenmill.bench.peers.process import PeerFailed, PeerProcess, PeerRefused
from tokenmill.bench.points import Point
from tokenmill.bench.rows import append_row, read_rows
from tokenmill.cli.main import main
from tokenmill.errors import ConfigError, TokenmillError
from tokenmill.hub.progress import Silent
from tokenmill.measure import machine

HEAD = f"import sys, time; sys.path.insert(0, {str(PROGRAMS)!r})\nimport wire\n"
GOOD = """
class Fake:
    def load(self, model, threads, dtype, max_length, batch):
        print("a library that talks")
        return {"versions": {"fake": "1"}, "note": f"{threads} threads"}
    def run(self, prompts, new):
        tokens = [[prompt[0] + at for at in range(new)] for prompt in prompts]
        return {"prefill_s": 0.5, "decode_s": SECONDS, "total_s": 0.5 + SECONDS, "tokens": tokens}
wire.serve(Fake())
"""
FAKES = {
    "good": GOOD.replace("SECONDS", "1.0"),
    "slow": GOOD.replace("SECONDS", "2.0"),
    "other tokens": GOOD.replace("SECONDS", "1.0").replace("+ at for", "+ at + at // 2 for"),
    "short": GOOD.replace("SECONDS", "1.0").replace("range(new)", "range(new - 1)"),
    "no time": GOOD.replace("SECONDS", "0.0"),
    "no tokens": GOOD.replace("SECONDS", "1.0").replace('"tokens": tokens', '"text": "?"'),
    "refuses load": GOOD.replace('print("a library that talks")', 'raise ValueError("reads .gguf files only")'),
    "refuses batches": GOOD.replace("SECONDS", "1.0").replace(
        "tokens = [[", "assert not prompts[1:], 'one at a time'\n        tokens = [["
    ),
    "crashes": "raise SystemExit('no module named fake')",
    "crashes later": GOOD.replace("tokens = [[", "import os; os.kill(os.getpid(), 11)\n        tokens = [["),
    "hangs": GOOD.replace("tokens = [[", "time.sleep(600)\n        tokens = [["),
    "hangs with a child": """import subprocess
alive = open(sys.argv[0] + ".alive", "w")
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], stdout=alive)
wire.answers.write('{"ok": true}\\n'); wire.answers.flush(); time.sleep(600)
""",
    "garbage": "sys.stdin.readline(); wire.answers.write('hello\\n'); wire.answers.flush(); time.sleep(600)",
    "list": "sys.stdin.readline(); wire.answers.write('[1]\\n'); wire.answers.flush(); time.sleep(600)",
    "endless": "wire.answers.write('x' * 200)\nwire.answers.flush()\nsys.stdin.readline(); time.sleep(600)",
}


POINT = Point(4, 6)


@pytest.fixture
def script(tmp_path):
    def write(name):
        file = tmp_path / f"{name.replace(' ', '_')}.py"
        file.write_text(HEAD + FAKES[name])
        return [sys.executable, str(file)]

    return write


@pytest.fixture
def contest(script, monkeypatch):
    """A contest of fakes; the first is ours."""
    monkeypatch.setattr(peers, "PAUSE_S", 0.0)

    def make(*names, points=(POINT,), **limits):
        labels = {"tokenmill" if at == 0 else name: name for at, name in enumerate(names)}
        monkeypatch.setattr(peers, "PEERS", {label: Peer(label, "", "") for label in labels})
        monkeypatch.setattr(peers, "command_for", lambda peer, given: script(labels[peer.name]))
        probes = iter(range(40, 1000))
        held = Contest("model", dict.fromkeys(labels), 2, "float32", lambda: float(next(probes)), Silent(), **limits)
        with held:
            held.load(points)
            return [held.rows(point, [[7 + at, 8, 9, 10] for at in range(point.batch)]) for point in points]

    return make


def test_a_contest_gives_rates_and_ratios(contest):
    [[ours, slow, other]] = contest("good", "slow", "other tokens", rounds=2)
    assert ours["decode_tok_s"] == 5.0 and ours["prefill_tok_s"] == 8.0 and ours["note"] == "2 threads"
    assert slow["decode_ratio"] == slow["decode_ratio_max"] == 2.0 and slow["prefill_ratio"] == 1.0
    assert slow["same_tokens"] == 1.0 and other["same_tokens"] == pytest.approx(2 / 6)
    assert ours["hash"] == slow["hash"] != other["hash"]
    assert ours["repetitions"] == 2 and "decode_ratio" not in ours


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("short", r"\[5\] tokens instead of 6 for each of 1"),
        ("no time", "took no time"),
        ("no tokens", "without prefill_s"),
        ("refuses load", "reads .gguf files only"),
        ("crashes", "exit code 1: no module named fake"),
        ("crashes later", r"signal 11 \(Segmentation fault\)"),
        ("garbage", "'hello', which is no answer"),
        ("list", "which is no answer"),
    ],
)
def test_one_that_misbehaves_is_marked_and_the_others_go_on(contest, name, says):
    [[ours, bad, last]] = contest("good", name, "slow", rounds=1)
    assert ours["status"] == last["status"] == "ok" and last["decode_ratio"] == 2.0
    assert bad["status"] == "failed"
    with pytest.raises(AssertionError, match=says):
        raise AssertionError(bad["reason"])


def test_one_that_hangs_is_marked(contest):
    [[bad]] = contest("hangs", rounds=1, run_limit_s=0.1)
    assert (bad["status"], bad["reason"]) == ("failed", "no answer to run within 0.1 s")


def test_a_process_that_is_killed_takes_its_children_with_it(script):
    command = script("hangs with a child")
    os.mkfifo(f"{command[1]}.alive")
    process = PeerProcess(command, 1)
    with Path(f"{command[1]}.alive").open() as alive:
        assert process.ask({"op": "load"}, 600) == {}
        process.kill()
        assert alive.read() == ""  # which waits until both that write to it are gone


def test_a_refusal_is_of_one_point_only(contest):
    points = (Point(4, 6, batch=2), Point(4, 6))
    [[_, refused], [_, fine]] = contest("good", "refuses batches", points=points, rounds=1)
    assert refused["status"] == "refused" and "one at a time" in refused["reason"]
    assert fine["status"] == "ok" and fine["decode_ratio"] == 1.0


def test_rows_of_a_contest_go_through_files(contest, tmp_path):
    [rows] = contest("good", "crashes", rounds=1)
    for name in ("rows.jsonl", "rows.csv"):
        for row in rows:
            append_row(tmp_path / name, row)
        assert [row["decode_tok_s"] if row["status"] == "ok" else None for row in read_rows([tmp_path / name])] == [
            5,
            None,
        ]


def test_a_program_that_cannot_be_started():
    with pytest.raises(PeerFailed, match="cannot be started: No such file"):
        PeerProcess(["/nowhere/python", "x.py"], 1)


def test_a_process_says_no_and_listens_on(script):
    process = PeerProcess(script("refuses load"), 1)
    for _ in range(2):
        with pytest.raises(PeerRefused, match=r"ValueError: reads \.gguf"):
            process.ask({"op": "load", "model": "", "threads": 1, "dtype": "", "max_length": 1, "batch": 1}, 600)
    process.stop()
    process.stop()


def test_a_process_that_talks_without_end_is_not_read_without_end(script, monkeypatch):
    monkeypatch.setattr("tokenmill.bench.peers.process.LONGEST_ANSWER", 100)
    process = PeerProcess(script("endless"), 1)
    with pytest.raises(PeerFailed, match="does not stop talking"):
        process.ask({"op": "load"}, 600)
    process.kill()


def test_where_a_peer_is_looked_for(monkeypatch, tmp_path):
    monkeypatch.setenv("TOKENMILL_CACHE", str(tmp_path))
    absent = Peer("absent", "", "absent.py", "no_such_package")
    assert command_for(absent, None) is None
    python = tmp_path / "peers" / "absent" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    assert command_for(absent, None) == [str(python), str(PROGRAMS / "absent.py")]
    assert command_for(absent, sys.executable)[0] == sys.executable
    with pytest.raises(ConfigError, match=r"--peer.*absent=/nowhere.*a Python interpreter that has it"):
        command_for(absent, "/nowhere")
    with pytest.raises(ConfigError, match="the path of a llama-bench binary"):
        command_for(PEERS["llama-bench"], "/nowhere")
    assert command_for(PEERS["llama-bench"], None) is None


def test_every_peer_has_its_program():
    for peer in PEERS.values():
        text = (PROGRAMS / peer.program).read_text()
        assert "wire.serve(" in text and text.startswith('"""')


def test_an_installation_that_fails_leaves_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("TOKENMILL_CACHE", str(tmp_path))
    broken = Peer("broken", "", "x.py", pip=(("no-such-command",),))
    with pytest.raises(TokenmillError, match="see pip's message above"):
        peer_install.install(broken, False, Silent())
    assert not peer_list.environment(broken).exists()
    with pytest.raises(TokenmillError, match="tokenmill has no environment to install"):
        peer_install.install(PEERS["tokenmill"], False, Silent())


def test_llama_bench_is_driven_by_its_reports(tmp_path):
    """A stand-in with the interface of the binary: JSON on stdout, figures by its arguments."""
    binary = tmp_path / "llama-bench"
    report = '[{"build_commit": "abc", "build_number": 7, "model_type": "llama Q4", "cpu_info": "a cpu", "avg_ts": %s}]'
    binary.write_text(
        f"#!/bin/sh\ncase \"$*\" in *'-n 0'*) echo '{report % 100.0}';; *) echo '{report % 10.0}';; esac\n"
    )
    binary.chmod(0o755)
    process = PeerProcess(command_for(PEERS["llama-bench"], str(binary)), 1)
    request = {"op": "load", "model": "m.gguf", "threads": 1, "dtype": "", "max_length": 1, "batch": 1}
    assert process.ask(request, 30)["versions"] == {"llama.cpp": "abc (7)"}
    answer = process.ask({"op": "run", "prompts": [[1] * 50], "new": 11}, 30)
    assert (answer["prefill_s"], answer["decode_s"], answer["tokens"]) == (0.5, 1.0, None)
    with pytest.raises(PeerRefused, match="one sequence at a time"):
        process.ask({"op": "run", "prompts": [[1], [2]], "new": 11}, 30)
    process.stop()


# ---- the command


@pytest.fixture
def tm(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("TOKENMILL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(machine, "PROBE_BYTES", 2**20)

    def run(*arguments):
        capsys.readouterr()
        code = main(["bench", *(str(argument) for argument in arguments)])
        return code, *capsys.readouterr()

    return run


@pytest.mark.slow
def test_ours_and_transformers_say_the_same_in_processes_of_their_own(tm, tmp_path):
    path = save("llama", tmp_path)
    sizes = ("--prompt", 8, "--new", 4, "--batch", 2, "--rounds", 1, "--threads", 1, "--dtype", "float32")
    code, out, err = tm("peers", path, "--only", "transformers,vllm", *sizes, "--json")
    assert code == 0, err
    ours, theirs, absent = json.loads(out)["rows"]
    assert ours["label"] == "tokenmill" and ours["status"] == theirs["status"] == "ok"
    assert theirs["same_tokens"] == 1.0 and theirs["hash"] == ours["hash"]
    assert "float32" in ours["note"] and "attention" in theirs["note"]
    assert absent["status"] == "absent" and "tokenmill bench install-peer vllm" in err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--only", "pytorch"), "no peer 'pytorch': there are tokenmill, transformers"),
        (("--peer", "vllm"), "--peer = 'vllm' is not allowed: NAME=PATH"),
        (("--batch", "0"), "--batch = '0' is not allowed: integers of at least 1"),
        (("--peer", "vllm=/nowhere"), "--peer = 'vllm=/nowhere' is not allowed: the path of a Python interpreter"),
    ],
)
def test_wrong_words_are_named(tm, tmp_path, arguments, says):
    code, _, err = tm("peers", save("llama", tmp_path), *arguments)
    assert code == 2 and says in " ".join(err.split())


def test_an_unknown_peer_is_not_installed(tm):
    code, _, err = tm("install-peer", "pytorch")
    assert code == 2 and "there are tokenmill, transformers" in err
