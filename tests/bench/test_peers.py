"""`tokenmill bench peers`: engines in processes of their own, and what becomes of those that do not behave."""

import json
import os
import sys
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from tests.tiny_models import VOCABULARY, save
from tokenmill.bench.peers import contest as peers
from tokenmill.bench.peers import known as peer_install
from tokenmill.bench.peers import known as peer_list
from tokenmill.bench.peers.contest import Contest, Prompts
from tokenmill.bench.peers.known import PEERS, PROGRAMS, Peer, command_for
from tokenmill.bench.peers.process import PeerFailed, PeerProcess, PeerRefused
from tokenmill.bench.points import Point
from tokenmill.bench.rows import append_row, read_rows
from tokenmill.engine.outputs import hash_tokens
from tokenmill.errors import ConfigError, TokenmillError
from tokenmill.hub.progress import Silent
from tokenmill.measure import machine
from tokenmill.weights.checkpoint import open_checkpoint

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
    "keeps rows": GOOD.replace("SECONDS", "1.0").replace('"tokens": tokens', '"tokens": tokens, "prefill_tokens": 1'),
    "guesses": GOOD.replace("SECONDS", "1.0").replace(
        '"tokens": tokens', '"tokens": tokens, "drafted": 10, "accepted": 4'
    ),
    "two ways": GOOD.replace("batch):", "batch, decode_s, prefill_s):\n        self.s = decode_s, prefill_s")
    .replace("SECONDS", "self.s[0]")
    .replace('"prefill_s": 0.5', '"prefill_s": self.s[1]'),
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
        known = {label: Peer(label, "", "") for label in labels}
        if "two ways" in known:
            ways = {"first": {"decode_s": 1.0, "prefill_s": 2.0}, "second": {"decode_s": 5.0, "prefill_s": 1.0}}
            known["two ways"] = Peer("two ways", "", "", variants=ways)
        monkeypatch.setattr(peers, "PEERS", known)
        monkeypatch.setattr(peers, "command_for", lambda peer, given: script(labels[peer.name]))
        probes = iter(range(40, 1000))
        held = Contest("model", dict.fromkeys(labels), 2, "float32", lambda: float(next(probes)), Silent(), **limits)
        with held:
            held.load(points)
            firsts = count()
            return [held.rows(point, partial(prompts_of, point, firsts)) for point in points]

    def prompts_of(point, firsts):
        return [[next(firsts), 8, 9, 10] for _ in range(point.batch)]

    return make


def test_a_contest_gives_rates_and_ratios(contest):
    [[ours, slow, other]] = contest("good", "slow", "other tokens", rounds=2)
    assert ours["decode_tok_s"] == 5.0 and ours["prefill_tok_s"] == 8.0 and ours["note"] == "2 threads"
    assert slow["decode_ratio"] == slow["decode_ratio_max"] == 2.0 and slow["prefill_ratio"] == 1.0
    assert slow["same_tokens"] == 1.0 and other["same_tokens"] == pytest.approx(2 / 6)
    assert ours["hash"] == slow["hash"] != other["hash"]
    assert ours["repetitions"] == 2 and "decode_ratio" not in ours
    # The prompts of the two rounds; those of the warm-up are the first.
    assert ours["hash"] == hash_tokens([first + at for first in (1, 2) for at in range(6)])


def test_of_an_engine_that_can_be_run_in_two_ways_the_better_counts_in_each_phase(contest):
    [[ours, two]] = contest("good", "two ways", rounds=2)
    assert two["decode_tok_s"] == 5.0 and two["decode_ratio"] == 1.0
    assert two["prefill_tok_s"] == 4.0 and two["prefill_ratio"] == 2.0
    assert two["variant"] == "decode first, prefill second" and ours["variant"] is None


def test_accepted_drafts_are_counted_over_the_rounds(contest):
    [[ours, guesses]] = contest("good", "guesses", rounds=3)
    assert (guesses["drafted"], guesses["accepted"]) == (30, 12) and ours["drafted"] is None


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("short", r"\[5\] tokens instead of 6 for each of 1"),
        ("no time", "took no time"),
        ("no tokens", "without prefill_s"),
        ("keeps rows", "prefill fed 1 of 4 tokens"),
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


@pytest.mark.slow
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
    request["flash_attention"] = True
    assert process.ask(request, 30)["versions"] == {"llama.cpp": "abc (7)"}
    answer = process.ask({"op": "run", "prompts": [[1] * 50], "new": 11}, 30)
    assert (answer["prefill_s"], answer["decode_s"], answer["tokens"]) == (0.5, 1.0, None)
    with pytest.raises(PeerRefused, match=r"one sequence at a time, and .*llama-batched-bench is not there"):
        process.ask({"op": "run", "prompts": [[1], [2]], "new": 11}, 30)
    process.stop()


def test_ik_llama_is_repacked_and_several_sequences_are_left_to_its_batched_bench(tmp_path):
    """ik_llama.cpp has other words for generation behind a prompt than llama.cpp; both print the same table."""
    report = '{"build_commit": "abc", "build_number": 7, "model_type": "llama Q4", "cpu_info": "a cpu", "avg_ts": 10.0}'
    binary, batched = tmp_path / "llama-bench", tmp_path / "llama-batched-bench"
    binary.write_text(f"#!/bin/sh\necho \"$*\" >> {tmp_path}/said\necho '[{report}]'\n")
    table = "|    50 |     11 |    2 |    122 |    0.500 |   200.00 |    1.100 |    20.00 |    1.600 |    76.25 |"
    batched.write_text(f"#!/bin/sh\necho \"$*\" >> {tmp_path}/said\necho '{table}' >&2\n")
    for file in (binary, batched):
        file.chmod(0o755)
    process = PeerProcess(command_for(PEERS["ik_llama.cpp"], str(binary)), 1)
    request = {"op": "load", "model": "m.gguf", "threads": 1, "dtype": "", "max_length": 1, "batch": 1}
    options = PEERS["ik_llama.cpp"].variants["no flash attention, repacked"]
    assert process.ask({**request, **options}, 30)["versions"] == {"ik_llama.cpp": "abc (7)"}
    assert process.ask({"op": "run", "prompts": [[1] * 50], "new": 11}, 30)["decode_s"] == 1.0
    both = process.ask({"op": "run", "prompts": [[1] * 50] * 2, "new": 11}, 30)
    assert both["prefill_s"] == 0.5 and both["decode_s"] == pytest.approx(1.0)
    process.stop()
    said = (tmp_path / "said").read_text().splitlines()
    assert all("-fa 0 -rtr 1" in line for line in said[:3]) and "-p 0 -n 0 -gp 50,11" in said[2]
    assert "-fa off" in said[3] and said[3].endswith("-npp 50 -ntg 11 -npl 2 -rtr")


# ---- the command


@pytest.fixture
def tm(tm, tmp_path, monkeypatch):
    monkeypatch.setenv("TOKENMILL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(machine, "PROBE_BYTES", 2**20)
    return partial(tm, "bench")


@pytest.mark.slow
def test_ours_and_transformers_say_the_same_in_processes_of_their_own(tm, tmp_path):
    path = save("llama", tmp_path)
    sizes = ("--prompt", 8, "--new", 4, "--batch", 2, "--rounds", 1, "--threads", 1, "--dtype", "float32")
    code, out, err = tm("peers", path, "--only", "transformers,xllamacpp", *sizes, "--json")
    assert code == 0, err
    rows = {row["label"]: row for row in json.loads(out)["rows"]}
    ours, theirs, absent = rows["tokenmill"], rows["transformers"], rows["xllamacpp"]
    assert ours["status"] == theirs["status"] == "ok"
    assert theirs["same_tokens"] == 1.0 and theirs["hash"] == ours["hash"]
    assert "float32" in ours["note"] and "attention" in theirs["note"]
    assert absent["status"] == "absent" and "tokenmill bench install-peer xllamacpp" in err
    if "program native" in ours["note"]:
        guessing = rows["tokenmill-speculation"]
        assert "speculate multi_step" in ours["note"] and "speculate adaptive" in guessing["note"]
        assert guessing["same_tokens"] == 1.0 and guessing["hash"] == ours["hash"]
        assert guessing["drafted"] is not None and "decode_ratio" not in guessing


@pytest.mark.slow
def test_ours_computes_a_prompt_that_it_has_seen(tmp_path):
    """Long enough for blocks that a prefix cache would have kept."""
    process = PeerProcess(command_for(PEERS["tokenmill"], None), 1)
    request = {"model": save("llama", tmp_path), "threads": 1, "dtype": "float32", "max_length": 100, "batch": 1}
    process.ask({"op": "load", **request, "model": str(request["model"]), "block_size": 16}, 300)
    answers = [process.ask({"op": "run", "prompts": [list(range(1, 81))], "new": 4}, 300) for _ in range(2)]
    process.stop()
    assert [answer["prefill_tokens"] for answer in answers] == [80, 80]


def test_prompts_never_come_twice_and_do_not_go_around(tmp_path):
    prompts = Prompts(open_checkpoint(save("llama", tmp_path)), VOCABULARY, 3 * 4 * 50)
    taken = [tuple(prompt) for _ in range(3) for prompt in prompts.take(50, 4)]
    assert len(set(taken)) == 12 and all(len(prompt) == 50 for prompt in taken)


@pytest.mark.slow
def test_more_prompts_than_there_is_text_are_refused_before_anything_runs(tm):
    code, _, err = tm("peers", "--only", "tokenmill", "--batch", 16, "--prompt", 2000)
    assert code == 2 and "--prompt" in err and "192,000 tokens" in err and "--rounds" in err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--only", "pytorch"), "no peer 'pytorch': there are tokenmill, tokenmill-speculation, transformers"),
        (("--peer", "openvino"), "--peer = 'openvino' is not allowed: NAME=PATH"),
        (("--batch", "0"), "--batch = '0' is not allowed: integers of at least 1"),
        (
            ("--peer", "openvino=/nowhere"),
            "--peer = 'openvino=/nowhere' is not allowed: the path of a Python interpreter",
        ),
    ],
)
def test_wrong_words_are_named(tm, tmp_path, arguments, says):
    code, _, err = tm("peers", save("llama", tmp_path), *arguments)
    assert code == 2 and says in " ".join(err.split())


def test_an_unknown_peer_is_not_installed(tm):
    code, _, err = tm("install-peer", "pytorch")
    assert code == 2 and "there are tokenmill, tokenmill-speculation, transformers" in err
