"""`tokenmill batch`: what is said of a run, Ctrl-C, and what is refused before a model is loaded."""

import json
import signal
import threading

import pytest

from tests.batches.conftest import requests, write_lines
from tokenmill.batches.batch import BatchProgress
from tokenmill.batches.journal import Journal, journal_path
from tokenmill.batches.runner import Counts
from tokenmill.cli.batch import batch_progress, described, duration

LONG = ("--max-length", 96)


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "in.csv"
    path.write_text("id,text\n" + "".join(f"{number},w{number} w2\n" for number in range(12)))
    return path


@pytest.fixture
def lines(tmp_path):
    return write_lines(tmp_path / "in.jsonl", [*requests(6), "{broken"])


def test_a_table(tm, model, table, tmp_path):
    target = tmp_path / "new" / "out.jsonl"
    arguments = ("batch", table, "-o", target, "--model", model, "--prompt", "{text} w5", "-n", 3, *LONG)
    code, out, err = tm(*arguments, "--json")
    told = json.loads(out.splitlines()[-1])
    assert code == 0 and (told["rows"], told["computed"], told["errors"], told["completion_tokens"]) == (12, 12, 0, 36)
    assert told["output"] == str(target) and told["program"]["name"]
    assert err.splitlines()[-1].startswith(f"{target}: 12 rows · 36 prompt + 36 new tokens · ")
    rows = [json.loads(line) for line in target.read_text().splitlines()]
    code, out, _ = tm("generate", model, "-p", "w3 w2 w5", "-n", 3, "--json", *LONG)  # greedy, as by default here
    assert json.loads(out.splitlines()[-1])["text"] == rows[3]["generated_text"]
    code, out, err = tm(*arguments, "--json")
    assert code == 0 and json.loads(out.splitlines()[-1])["was_there"] and "nothing is left to do" in err
    code, out, err = tm(*arguments, "--quiet")
    assert (code, out, err) == (0, "", "")


def test_requests(tm, model, lines, tmp_path):
    code, out, err = tm("batch", lines, "-o", tmp_path / "out.jsonl", "--model", model, "--json", *LONG)
    told = json.loads(out.splitlines()[-1])
    assert code == 0 and (told["rows"], told["computed"], told["errors"]) == (7, 7, 1)
    assert "warning: line 7 is no JSON" in err and "1 with an error in it" in err


def test_shards_and_join(tm, model, table, tmp_path):
    def batch(target, *more):
        asked = ("--model", model, "--column", "text", "--temperature", 0.8, "-n", 3, *LONG, *more)
        code, _, err = tm("batch", table, "-o", target, *asked)
        assert code == 0, err
        return err

    batch(tmp_path / "whole.csv")
    for number in (1, 2):
        assert f"out-{number}-of-2.csv: 6 rows" in batch(tmp_path / "out.csv", "--shard", f"{number}/2")
    assert "12 rows of 2 shards" in batch(tmp_path / "out.csv", "--join", 2)
    assert (tmp_path / "out.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()


def test_ctrl_c_says_how_to_go_on(tm, model, table, tmp_path, monkeypatch):
    target, append, count = tmp_path / "out.csv", Journal.append, 0
    arguments = ("batch", table, "-o", target, "--model", model, "--column", "text", "-n", 3, *LONG)

    came = threading.Event()

    def handle(*_):
        came.set()
        raise KeyboardInterrupt

    def interrupted(journal, *given):
        nonlocal count
        append(journal, *given)
        count += 1
        if count == 5:
            signal.raise_signal(signal.SIGINT)
            came.wait(60)  # the main thread notices it when it next wakes, and the other rows must not be done by then

    monkeypatch.setattr(Journal, "append", interrupted)
    before = signal.signal(signal.SIGINT, handle)
    try:
        code, _, err = tm(*arguments)
    finally:
        signal.signal(signal.SIGINT, before)
    monkeypatch.undo()
    assert code == 130 and "Traceback" not in err
    assert "of 12 rows are done and kept in" in err.splitlines()[-1] and "the same command goes on" in err
    assert not target.exists() and journal_path(target).read_bytes().count(b"\n") == 1 + 5
    code, _, err = tm(*arguments)
    assert code == 0 and "12 rows · 5 known before" in err and not journal_path(target).exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--prompt {tekst}", "the input has no column 'tekst'; its columns are 'id', 'text'"),
        ("--prompt none", "--prompt"),
        ("--prompt {text} --column text", "--column = 'text' is not allowed: only without --prompt"),
        ("--column text --system hello", "only together with --chat"),
        ("--column text --strict", "--strict = True is not allowed: only without --prompt and --column"),
        ("--column text --shard 3/2", "shard = '3/2' (set in --shard) is not allowed: i/n"),
        ("--column text --shard 1/2 --join 2", "--shard = '1/2' is not allowed: without --join"),
        ("--column text --join 2", "there is no "),
        ("--column text --seed -1", "seed"),
        ("", "ends with .jsonl"),
        ("--temperature 1", "a request of a batch has settings of its own"),
    ],
)
def test_what_is_refused(refused, table, tmp_path, options, message):
    assert message in refused("batch", table, "-o", tmp_path / "out.csv", *options.split(), "--model", "no-such-model")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["in.csv"]


@pytest.mark.parametrize(
    ("name", "target", "message"),
    [
        ("missing.jsonl", "out.jsonl", "No such file"),
        ("in.txt", "out.jsonl", "input = "),
        (".", "out.jsonl", "input = "),
        ("in.csv", "out.txt", "output = "),
        ("in.csv", "in.csv", "is the input"),
        ("in.csv", "in.csv/out.csv", "Not a directory"),
        ("in.csv", "-", "nothing of it can go to stdout"),
    ],
)
def test_files_that_are_refused(refused, table, tmp_path, monkeypatch, name, target, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.txt").write_text("x")
    assert message in refused("batch", name, "-o", target, "--column", "text", "--model", "no-such-model")


def test_lines_without_requests(refused, tmp_path):
    path = write_lines(tmp_path / "in.jsonl", [{"text": "w1"}])
    err = refused("batch", path, "-o", tmp_path / "out.jsonl", "--model", "no-such-model")
    assert "no line has 'custom_id'" in err and "with prompt or column" in err
    path.write_text("")
    assert "has no rows" in refused("batch", path, "-o", tmp_path / "out.jsonl")
    path = write_lines(path, [*requests(3), *requests(1)])
    assert "lines 1 and 4 have the same custom_id" in refused("batch", path, "-o", tmp_path / "out.jsonl")


def test_progress(capsys, monkeypatch):
    counts = Counts(rows=10, tokens=500)
    assert described(BatchProgress(100, 20, counts), 5.0) == "20 of 100 rows, 100 tokens/s, about 40 s left"
    assert described(BatchProgress(100, 20, Counts()), 5.0) == "20 of 100 rows, 0 tokens/s"
    assert [duration(each) for each in (7, 600, 20_000)] == ["7 s", "10 min", "5 h 33 min"]
    monkeypatch.setattr("tokenmill.cli.batch.LINE_S", 0.0)
    noted = []
    with batch_progress(noted.append) as told:
        told(BatchProgress(100, 20, counts))
    assert len(noted) == 1 and "20 of 100 rows" in capsys.readouterr().err
