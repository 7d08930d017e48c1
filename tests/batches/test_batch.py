"""The output is a function of input, model and settings: broken off anywhere, in any window, divided among shards."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.batches.conftest import NAME, SETTINGS, lines_task, requests, run, table_task, write_lines
from tokenmill import load
from tokenmill.batches.batch import How, OutputTaken, opened
from tokenmill.batches.journal import Journal, NotWritten, journal_path
from tokenmill.batches.output import Shard, join
from tokenmill.batches.scan import scan
from tokenmill.errors import RequestError, TokenmillError

ROOT = Path(__file__).parents[2]


@pytest.fixture
def source(tmp_path):
    return write_lines(tmp_path / "in.jsonl", requests(30))


@pytest.fixture
def whole(engine, source, tmp_path):
    """The output of an undisturbed run."""
    summary = run(engine, source, target := tmp_path / "whole.jsonl", lines_task())
    assert (summary.num_rows, summary.num_computed, summary.num_errors) == (30, 30, 0)
    return target.read_bytes()


def test_the_order_is_that_of_the_input(whole):
    assert [json.loads(line)["custom_id"] for line in whole.splitlines()] == [f"row-{number}" for number in range(30)]


@pytest.mark.parametrize("how", [{"window": 1}, {"window": 7}, {"most": 1}])
def test_how_rows_are_queued_changes_nothing(engine, source, whole, tmp_path, how):
    run(engine, source, tmp_path / "out.jsonl", lines_task(), **how)
    assert (tmp_path / "out.jsonl").read_bytes() == whole


def test_how_they_are_computed_changes_nothing(chat_model, source, whole, tmp_path):
    """One after the other, without a prefix cache and without drafts. The block size is part of no key either."""
    settings = SETTINGS | {"max_sequences": 1, "prefix_cache": False, "speculate": "off", "block_size": 16}
    with load(chat_model, **settings) as quiet:
        run(quiet, source, tmp_path / "out.jsonl", lines_task())
    assert (tmp_path / "out.jsonl").read_bytes() == whole


@pytest.mark.parametrize("after", [0, 1, 13, 29])
def test_stopped_after_some_rows(engine, source, whole, tmp_path, after):
    target, stop = tmp_path / "out.jsonl", threading.Event()

    def told(progress):
        if progress.counts.rows >= after:
            stop.set()

    first = run(engine, source, target, lines_task(), stop=stop, told=told)
    assert not first.is_whole and not target.exists() and journal_path(target).exists()
    second = run(engine, source, target, lines_task())
    assert second.num_computed == 30 - first.num_computed and first.num_computed >= after
    assert target.read_bytes() == whole and not journal_path(target).exists()


def test_finished_is_finished(engine, source, whole, tmp_path):
    summary = run(engine, source, tmp_path / "whole.jsonl", lines_task())
    assert summary.was_there and summary.num_computed == 0
    assert sorted(each.name for each in tmp_path.iterdir()) == ["in.jsonl", "whole.jsonl"]


def test_killed_between_the_output_and_the_end_of_its_journal(engine, source, whole, tmp_path, monkeypatch):
    target = tmp_path / "out.jsonl"
    monkeypatch.setattr(Journal, "remove", lambda _: None)
    run(engine, source, target, lines_task())
    assert journal_path(target).exists() and target.read_bytes() == whole
    monkeypatch.undo()
    assert run(engine, source, target, lines_task()).was_there
    assert not journal_path(target).exists()


@pytest.mark.parametrize("count", [1, 2, 3, pytest.param(31, marks=pytest.mark.slow)])
def test_shards_joined_are_the_undivided_run(engine, source, whole, tmp_path, count):
    target = tmp_path / "out.jsonl"
    for number in range(1, count + 1):
        if number <= 30:
            run(engine, source, target, lines_task(), Shard(number, count))
    if count == 31:  # the last one has no row
        for _ in range(2):
            assert run(engine, source, target, lines_task(), Shard(31, 31)).num_rows == 0
    if count > 1:
        join(scan(source, "custom_id"), target, count, lines_task(), lambda _: None)
    assert target.read_bytes() == whole


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_tables_joined_are_the_undivided_run(engine, tmp_path, suffix):
    source = write_lines(tmp_path / "in.jsonl", [{"id": number, "text": f"w{number}"} for number in range(20)])
    run(engine, source, tmp_path / f"whole.{suffix}", table_task(n=2, logprobs=1))
    for number in (2, 3, 1):
        run(engine, source, tmp_path / f"out.{suffix}", table_task(n=2, logprobs=1), Shard(number, 3))
    join(scan(source), tmp_path / f"out.{suffix}", 3, table_task(n=2, logprobs=1), lambda _: None)
    assert (tmp_path / f"out.{suffix}").read_bytes() == (tmp_path / f"whole.{suffix}").read_bytes()


def test_shards_that_do_not_fit_together(engine, source, tmp_path):
    target = tmp_path / "out.jsonl"
    index = scan(source, "custom_id")
    with pytest.raises(RequestError, match=r"there is no .*out-1-of-2.jsonl, .*out-2-of-2.jsonl"):
        join(index, target, 2, lines_task(), lambda _: None)
    run(engine, source, target, lines_task(), Shard(1, 2))
    run(engine, source, target, lines_task(seed=5), Shard(2, 2))
    with pytest.raises(RequestError, match="different models, versions or settings"):
        join(index, target, 2, lines_task(), lambda _: None)
    (tmp_path / "out-2-of-2.jsonl").write_bytes((tmp_path / "out-1-of-2.jsonl").read_bytes())
    with pytest.raises(RequestError, match="its rows do not match"):
        join(index, target, 2, lines_task(), lambda _: None)
    assert not target.exists()


def test_equal_rows_are_computed_once(engine, tmp_path):
    source = write_lines(tmp_path / "in.jsonl", [{"text": f"w{number % 3}"} for number in range(12)])
    summary = run(engine, source, tmp_path / "out.jsonl", table_task())
    assert (summary.num_rows, summary.num_computed) == (12, 3)
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_bytes().splitlines()]
    assert [row["generated_text"] for row in rows] == [rows[number % 3]["generated_text"] for number in range(12)]


def test_an_edited_input_keeps_what_is_done(engine, source, tmp_path):
    """A row that was mended or added is computed, the others are not, wherever they stand now."""
    target, stop = tmp_path / "out.jsonl", threading.Event()
    stop_after = lambda progress: progress.counts.rows >= 20 and stop.set()  # noqa: E731
    first = run(engine, source, target, lines_task(), stop=stop, told=stop_after)
    lines = list(requests(31))[::-1]
    write_lines(source, lines)
    second = run(engine, source, target, lines_task())
    assert second.num_computed == 31 - first.num_computed
    write_lines(other := tmp_path / "other.jsonl", lines)
    run(engine, other, tmp_path / "alone.jsonl", lines_task())
    assert target.read_bytes() == (tmp_path / "alone.jsonl").read_bytes()


@pytest.mark.parametrize("is_deleted", [False, True])
def test_an_input_that_is_cut_while_rows_are_computed(engine, tmp_path, is_deleted):
    """Its rows are all read by then, and the output would lack those at its end."""
    lines = [f"w{number}\n" for number in range(8)]
    source, target = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_text("".join(["text\n", *lines]))

    def cut(progress):
        if progress.num_done == 4:
            source.unlink() if is_deleted else source.write_text("".join(["text\n", *lines[:6]]))

    said = "cannot be read: No such file" if is_deleted else "it had 8 rows, and has 6"
    with pytest.raises(RequestError, match=said):
        run(engine, source, target, table_task(), told=cut)
    assert not target.exists()
    source.write_text("".join(["text\n", *lines]))
    assert run(engine, source, target, table_task()).num_computed == 0


def test_outputs_that_are_refused(engine, source, whole, tmp_path):
    target = tmp_path / "whole.jsonl"
    with pytest.raises(RequestError, match="another model or other settings: give another output"):
        run(engine, source, target, lines_task(seed=1))
    other = write_lines(tmp_path / "other.jsonl", requests(29))
    with pytest.raises(RequestError, match="its rows do not match"):
        run(engine, other, target, lines_task())
    (tmp_path / "letter.jsonl").write_text("Dear Sir\n")
    for name in ("letter.jsonl", "empty.jsonl", "in.jsonl"):
        (tmp_path / "empty.jsonl").write_text("")
        before = (tmp_path / name).read_bytes()
        with pytest.raises(RequestError):
            run(engine, source, tmp_path / name, lines_task())
        assert (tmp_path / name).read_bytes() == before
    assert target.read_bytes() == whole and not list(tmp_path.glob("*.journal"))


def test_an_output_that_is_a_link(engine, source, whole, tmp_path):
    (tmp_path / "disk").mkdir()
    link, real = tmp_path / "link.jsonl", tmp_path / "disk" / "real.jsonl"
    link.symlink_to(real)
    assert run(engine, source, link, lines_task()).is_whole and run(engine, source, link, lines_task()).was_there
    assert link.is_symlink() and real.read_bytes() == whole


def test_a_journal_of_other_settings_is_refused_and_kept(engine, source, tmp_path):
    target, stop = tmp_path / "out.jsonl", threading.Event()
    run(engine, source, target, lines_task(), stop=stop, told=lambda progress: progress.counts.rows > 3 and stop.set())
    before = journal_path(target).read_bytes()
    with pytest.raises(RequestError, match=r"other settings .*seed was null, now 4.*delete it to begin anew"):
        run(engine, source, target, lines_task(seed=4))
    assert journal_path(target).read_bytes() == before


def test_two_at_once(engine, source, tmp_path):
    target = tmp_path / "out.jsonl"
    with opened(source, target, lines_task()), pytest.raises(OutputTaken, match="another process writes"):
        run(engine, source, target, lines_task())
    assert not journal_path(target).exists()
    run(engine, source, target, lines_task())


@pytest.mark.parametrize("room", [0, 3000])
def test_a_full_disk(engine, source, whole, tmp_path, monkeypatch, room):
    """One error, with the way out; what is in the journal is found again."""
    target, left, write = tmp_path / "out.jsonl", [room], os.write

    def limited(number, data):
        taken = min(len(data), left[0])
        left[0] -= taken
        if not taken:
            raise OSError(28, "No space left on device")
        return write(number, data[:taken])  # a part of a record, as a full disk takes it

    monkeypatch.setattr("tokenmill.batches.journal.os.write", limited)
    with pytest.raises(NotWritten, match=r"No space left on device.*make room and give the same command again"):
        run(engine, source, target, lines_task())
    monkeypatch.undo()
    assert engine.core.call(lambda: engine.core.scheduler.idle)
    done = max(journal_path(target).read_bytes().count(b"\n") - 1, 0) if journal_path(target).exists() else 0
    assert run(engine, source, target, lines_task()).num_computed == 30 - done
    assert target.read_bytes() == whole


def test_an_output_that_finds_no_room(engine, source, whole, tmp_path, monkeypatch):
    target = tmp_path / "out.jsonl"

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tokenmill.batches.output.writing", full)
    with pytest.raises(TokenmillError, match="No space left on device"):
        run(engine, source, target, lines_task())
    assert not target.exists() and sorted(each.name for each in tmp_path.iterdir()) == [
        "in.jsonl",
        "out.jsonl.journal",
        "whole.jsonl",
    ]
    monkeypatch.undo()
    assert run(engine, source, target, lines_task()).num_computed == 0
    assert target.read_bytes() == whole


def test_an_input_that_changes_while_it_is_read(engine, source, tmp_path):
    with opened(source, tmp_path / "out.jsonl", lines_task()) as batch:
        write_lines(source, list(requests(30))[::-1])
        with pytest.raises(RequestError, match="was changed while it was read"):
            batch.run(engine.core, How())


def test_rows_that_begin_alike_follow_each_other(engine, tmp_path, monkeypatch):
    texts = [f"w{number % 3} w{number % 2} w{number}" for number in range(24)]
    source = write_lines(tmp_path / "in.jsonl", [{"text": text} for text in texts])
    queued, submit = [], engine.core.submit
    monkeypatch.setattr(
        engine.core, "submit", lambda request: (queued.append(request.sequences[0].tokens[:]), submit(request))
    )
    run(engine, source, tmp_path / "out.jsonl", table_task("{text}", max_new_tokens=1), window=12)
    tokens = list(map(engine.encode, texts))
    assert queued == sorted(tokens[:12]) + sorted(tokens[12:])


def test_memory_does_not_grow_with_the_rows(engine, tmp_path):
    """While rows are computed, at most a window and what runs is held, and two numbers for each row."""
    from tokenmill.batches.runner import BatchRunner

    source = write_lines(
        tmp_path / "in.jsonl", [{"text": f"w{number % 200} w{number // 200}"} for number in range(300)]
    )
    most = 0
    with opened(source, tmp_path / "out.jsonl", table_task(max_new_tokens=1)) as batch:
        note = BatchRunner._note

        def noted(runner, *given):
            nonlocal most
            most = max(most, len(runner._ready) + len(runner._running))
            note(runner, *given)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(BatchRunner, "_note", noted)
            batch.run(engine.core, How(window=20))
        assert batch.index.digests.nbytes + batch.index.places.nbytes == 16 * 300
    assert most <= 20 + 2 * SETTINGS["max_sequences"]


PROGRAM = """
import os, signal, sys
from pathlib import Path
from tests.batches.conftest import SETTINGS, lines_task, run
from tokenmill import load
from tokenmill.batches.journal import Journal

source, target, model, left, torn = *map(Path, sys.argv[1:4]), int(sys.argv[4]), int(sys.argv[5])
append = Journal.append

def killed(journal, *given):
    global left
    append(journal, *given)
    left -= 1
    if left == 0:
        if torn:  # a record of which the kernel got a part
            os.write(journal._file.fileno(), b"0badc0de 00112233445566")
        os.kill(os.getpid(), signal.SIGKILL)

Journal.append = killed
run(load(str(model), **SETTINGS), source, target, lines_task())
"""


def killed_after(count, source, target, model, torn=0):
    """Run a batch in a process that kills itself when it has noted so many answers."""
    arguments = [sys.executable, "-c", PROGRAM, *map(str, (source, target, model, count, torn))]
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode in (-signal.SIGKILL, 0), done.stderr
    return done.returncode == 0


@pytest.mark.slow
def test_killed(engine, chat_model, source, whole, tmp_path):
    target = tmp_path / "out.jsonl"
    for count, torn in ((1, 0), (7, 1), (4, 1)):
        assert not killed_after(count, source, target, chat_model, torn)
    last = run(engine, source, target, lines_task())
    assert last.num_computed == 30 - 12
    assert target.read_bytes() == whole


@pytest.mark.long
def test_two_thousand_rows_killed_five_times(engine, chat_model, tmp_path):
    source = write_lines(tmp_path / "in.jsonl", requests(2000))
    run(engine, source, whole := tmp_path / "whole.jsonl", lines_task())
    target, done = tmp_path / "out.jsonl", 0
    for count in np.random.default_rng(39).integers(1, 380, 5).tolist():
        assert not killed_after(count, source, target, chat_model, count % 2)
        done += count
    assert run(engine, source, target, lines_task()).num_computed == 2000 - done
    assert target.read_bytes() == whole.read_bytes()
    assert NAME in target.read_text()
