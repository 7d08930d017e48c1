"""Sessions: the same text however often it was stopped, saved, forked and taken back."""

import errno
import gc
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.empty import check_empty
from tests.integrity import check_scheduler
from tests.tiny_models import prompt, save
from tokenmill.cache import snapshot as module
from tokenmill.cache.header import KEY, read_facts
from tokenmill.cache.session_file import SavedSession
from tokenmill.cache.snapshot import read_snapshot
from tokenmill.cli.main import main
from tokenmill.engine.load import load
from tokenmill.engine.requests import Request
from tokenmill.engine.scoring import last_logits
from tokenmill.engine.session import Session
from tokenmill.errors import CapacityError, RequestError, SnapshotError, TokenmillError
from tokenmill.memory import atomic_file as whole_file
from tokenmill.settings.sampling_params import SamplingParams

START = prompt(20, seed=3)
ROOT = Path(__file__).parents[2]


SETTINGS = {"dtype": "float32", "max_length": 96, "block_size": 8, "max_sequences": 3, "threads": 1}


def engine_for(path, **how):
    return load(path, **{**SETTINGS, **how})


@pytest.fixture
def shared(engine_of, llama):
    """Gives the engine that tests of refusals share."""
    return lambda **how: engine_of(llama, **{**SETTINGS, **how})


def test_threads_that_ask_one_session_at_once_are_told_that_it_answers(llama):
    engine, told = engine_for(llama), []

    def ask():
        barrier.wait()
        try:
            session.generate(max_new_tokens=3, ignore_eos=True)
        except RequestError as error:
            told.append(str(error))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(20):
            told.clear()
            session, barrier = engine.session(START), threading.Barrier(3)
            threads = [threading.Thread(target=ask, daemon=True) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
                assert not thread.is_alive()
            assert len(session) == len(START) + 3 * (3 - len(told))
            session.close()
    finally:
        sys.setswitchinterval(interval)
    check_empty(engine.core)  # what any round had left would be there still


@pytest.mark.parametrize("place", ["a", 1.5, None, -1, 21, True, np.array([3]), torch.tensor(1.5), np.True_])
def test_a_place_that_is_none_is_refused_and_changes_nothing(place, shared):
    engine = shared()
    with engine.session(START) as session:
        wanted = session.generate(max_new_tokens=3, ignore_eos=True).tokens
        session.rewind(len(START))
        for change in (session.rewind, lambda place: session.edit(place, [1])):
            with pytest.raises(RequestError, match="this session has"):
                change(place)
        assert session.generate(max_new_tokens=3, ignore_eos=True).tokens == wanted


def test_a_place_may_be_a_number_of_numpy_or_torch(shared):
    with shared().session(START) as session:
        session.rewind(np.int64(15))
        assert session.tokens == tuple(START[:15])
        session.edit(torch.tensor(4), np.array(START[4:9]))
        assert session.tokens == tuple(START[:9])
        session.revise(torch.tensor(START))
        assert session.tokens == tuple(START)
        for wrong in ("w5", None, {3}, [1.5]):
            with pytest.raises(RequestError, match="token id"):
                session.revise(wrong)


@pytest.mark.parametrize("wrong", ["x\0y", "x" * 5000, "\ud800", "~nobody-of-that-name/x", None, 5, b"x"])
def test_a_path_that_no_file_can_have_is_refused(wrong, shared):
    engine = shared()
    for call in (engine.open_session, engine.session(START).save):
        with pytest.raises(SnapshotError, match="cannot be used: "):
            call(wrong)


def test_a_path_may_begin_with_the_home_directory(shared, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    engine = shared()
    engine.session(START).save("~/x.kv")
    assert (tmp_path / "x.kv").is_file()
    assert engine.open_session("~/x.kv").tokens == tuple(START)


@pytest.mark.parametrize("wrong", [None, [1], {"a": object()}, {"a": {1}}, {(1, 2): 3}])
def test_notes_that_no_file_can_hold_are_refused_when_they_are_saved(wrong, shared, tmp_path):
    with shared().session(START) as session:
        session.notes = wrong
        with pytest.raises(TokenmillError, match=r"notes = |cannot be written: .*JSON|keys must be"):
            session.save(tmp_path / "x.kv")
    assert not list(tmp_path.iterdir())


def test_a_file_that_changes_after_it_was_opened_changes_no_text(llama, tmp_path):
    engine, path = engine_for(llama, prefix_cache=False), tmp_path / "x.kv"
    wanted = engine.generate(START, max_new_tokens=5, ignore_eos=True).tokens
    engine.session(prompt(20, seed=4)).save(path)
    other = path.read_bytes()
    engine.session(START).save(path)
    session = engine.open_session(path)
    with path.open("r+b") as file:  # in place, as `cp` does
        file.write(other)
    with session.fork() as fork:
        assert fork.generate(max_new_tokens=5, ignore_eos=True).tokens == wanted
    path.write_bytes(b"")  # a mapping of it would end the process here
    assert session.generate(max_new_tokens=5, ignore_eos=True).tokens == wanted


@pytest.mark.parametrize("penalty", ["presence_penalty", "frequency_penalty", "repetition_penalty"])
def test_penalties_count_what_earlier_calls_answered(penalty, llama, tmp_path):
    engine = engine_for(llama)
    settings = {penalty: 1.9, "ignore_eos": True}
    wanted = engine.generate(START, max_new_tokens=24, **settings).tokens
    assert wanted != engine.generate(START, max_new_tokens=24, ignore_eos=True).tokens
    with engine.session(START) as session:
        first = session.generate(max_new_tokens=9, **settings).tokens
        session.save(tmp_path / "x.kv")
        with pytest.raises(RequestError):
            session.generate(prompt(90, seed=1))
        second = session.fork().generate(max_new_tokens=5).tokens
        assert first + second + engine.generate(START, max_new_tokens=24, **settings).tokens[14:] == wanted
        assert first + session.generate(max_new_tokens=15).tokens == wanted
    with engine.open_session(tmp_path / "x.kv") as session:
        assert first + session.generate(max_new_tokens=5).tokens + session.generate(max_new_tokens=10).tokens == wanted
        session.append(wanted[:3])  # what is given counts only where it repeats
        again = engine.generate(list(session.tokens), max_new_tokens=5, **settings).tokens
        assert session.generate(max_new_tokens=5).tokens == again


@pytest.mark.parametrize("cache_format", ["dense", "int8"])
@pytest.mark.parametrize(("program", "dtype"), [("eager", "float32"), ("auto", "bfloat16")])
def test_rows_are_those_that_were_saved(cache_format, program, dtype, llama, tmp_path):
    engine = engine_for(llama, cache_format=cache_format, program=program, dtype=dtype)
    session = engine.session(START)
    session.save(tmp_path / "x.kv")
    rows = read_snapshot(tmp_path / "x.kv").rows
    spec = engine.core.loaded.pool.spec
    assert sum(tensor.nbytes for tensor in rows.values()) == spec.bytes_per_token * (len(START) - 1)
    other = engine_for(llama, cache_format=cache_format, program=program, dtype=dtype, block_size=3)
    other.open_session(tmp_path / "x.kv").save(tmp_path / "y.kv")
    again = read_snapshot(tmp_path / "y.kv").rows
    assert all(torch.equal(again[name], tensor) for name, tensor in rows.items())


def test_by_default_a_fork_leaves_the_rows_of_its_parent(llama):
    engine = load(llama, dtype="float32", threads=1)
    session = engine.session(prompt(70))
    session.generate(max_new_tokens=5, ignore_eos=True)
    with session.fork() as fork:
        fork.generate([1, 2], max_new_tokens=5)
    assert session.num_cached == len(session) - 1
    assert engine.config.block_size == 32
    assert load(llama, program="eager").config.block_size == engine.config.max_length


def test_forks_are_two_runs_and_share_what_they_have_in_common(llama):
    engine = engine_for(llama)
    alone = [engine.generate([*START, number], max_new_tokens=10, ignore_eos=True).tokens for number in (5, 6)]
    session = engine.session(START)
    session.prefill()
    before = engine.core.scheduler.allocator.num_free
    other = session.fork()
    assert engine.core.scheduler.allocator.num_free == before
    done = [one.generate([number], max_new_tokens=10, ignore_eos=True) for one, number in ((session, 5), (other, 6))]
    assert [one.tokens for one in done] == alone
    used = engine.core.scheduler.allocator.num_blocks - engine.core.scheduler.allocator.num_free
    assert used < 2 * -(-len(session) // 8)
    other.close()
    session.close()
    check_empty(engine.core)


def test_rewound_and_edited(llama):
    engine = engine_for(llama)
    session = engine.session(START)
    first = session.generate(max_new_tokens=12, ignore_eos=True)
    session.rewind(len(START) + 4)
    assert session.tokens[len(START) :] == first.tokens[:4]
    assert session.generate(max_new_tokens=8).tokens == first.tokens[4:]
    session.edit(10, START[10:])
    assert session.tokens == tuple(START)
    assert session.generate(max_new_tokens=12).tokens == first.tokens
    session.rewind(0)
    assert session.generate(START, max_new_tokens=12).tokens == first.tokens


def test_a_stream_closed_early_keeps_what_was_shown(llama):
    engine = engine_for(llama)
    wanted = engine.generate(START, max_new_tokens=20, ignore_eos=True).tokens
    session = engine.session(START)
    stream = session.stream(max_new_tokens=20, ignore_eos=True)
    shown = next(stream).tokens + next(stream).tokens
    stream.close()
    assert session.tokens == tuple(START) + shown
    assert shown + session.generate(max_new_tokens=20 - len(shown)).tokens == wanted


def test_one_answer_at_a_time(llama):
    engine = engine_for(llama)
    wanted = engine.generate(START, max_new_tokens=6, ignore_eos=True).tokens
    session = engine.session(START)
    first, second = (session.stream(max_new_tokens=6, ignore_eos=True) for _ in range(2))
    got = next(first).tokens
    for call in (session.fork, session.generate, session.prefill, lambda: session.rewind(2), lambda: next(second)):
        with pytest.raises(RequestError, match="in the midst of an answer"):
            call()
    assert got + tuple(token for piece in first for token in piece.tokens) == wanted
    assert session.tokens == tuple(START) + wanted
    with pytest.raises(RequestError, match="has changed since"):
        next(changed(session))


def changed(session):
    """A stream that was asked for before the session became another text."""
    stream = session.stream(max_new_tokens=1)
    session.rewind(2)
    return stream


def test_a_stream_that_is_collected_in_the_middle_of_a_step(llama):
    engine = engine_for(llama)
    wanted = engine.generate(START, max_new_tokens=8, ignore_eos=True).tokens
    session, streams = engine.session(START), []
    streams.append(session.stream(max_new_tokens=8, ignore_eos=True))
    shown = next(streams[0]).tokens
    run = engine.core.loaded.runner.run
    engine.core.loaded.runner.run = lambda plan, *fed: (streams.clear(), run(plan, *fed))[1]
    assert engine.generate(START[:5], max_new_tokens=4, ignore_eos=True).tokens
    del engine.core.loaded.runner.run
    assert session.tokens == tuple(START) + shown
    assert shown + session.generate(max_new_tokens=8 - len(shown)).tokens == wanted
    session.close()
    check_empty(engine.core)


def test_an_old_stream_that_is_collected_leaves_the_next_answer_alone(llama):
    engine = engine_for(llama)
    wanted = engine.generate(START, max_new_tokens=12, ignore_eos=True).tokens
    session = engine.session(START)
    stream = session.stream(max_new_tokens=6, ignore_eos=True)
    while not next(stream).done:  # read to its end, which the iterator has not reached
        pass
    second = session.stream(max_new_tokens=6)
    shown = next(second).tokens
    del stream  # in the midst of the next answer
    gc.collect()
    shown += sum((piece.tokens for piece in second), ())
    assert wanted == wanted[:6] + shown
    assert session.tokens == (*START, *wanted)
    stream = session.stream(max_new_tokens=2)
    while not next(stream).done:
        pass
    after = session.generate(max_new_tokens=3).tokens
    known = session.tokens
    del stream  # after the next answer
    gc.collect()
    assert session.tokens == known and known[-3:] == after


def test_without_a_cache_only_tokens_are_saved(llama, tmp_path):
    engine = engine_for(llama, cache=False)
    session = engine.session(START)
    session.save(tmp_path / "x.kv")
    wanted = session.generate(max_new_tokens=5, ignore_eos=True).tokens
    for how in ({}, {"cache": False}):
        opened = engine_for(llama, **how).open_session(tmp_path / "x.kv")
        assert opened.num_cached == 0
        assert opened.generate(max_new_tokens=5, ignore_eos=True).tokens == wanted


def test_what_is_refused_changes_nothing(llama):
    engine = engine_for(llama)
    session = engine.session(START)
    for call, message in (
        (lambda: session.generate(max_new_tokens=90), "over max_length"),
        (lambda: session.append(prompt(80)), "over max_length of 96"),
        (lambda: session.generate("text"), "no tokenizer"),
        (lambda: session.generate(n=2), "needs Engine.generate, or forks"),
        (lambda: session.rewind(len(START) + 1), "this session has 0 to 20"),
        (lambda: session.rewind(-1), "rewind to -1 tokens"),
        (lambda: engine.session().generate(), "the session is empty"),
        (lambda: engine.session().save("x"), "nothing to save"),
    ):
        with pytest.raises(RequestError, match=message):
            call()
        assert session.tokens == tuple(START)
    session.close()
    session.close()
    for call in (session.fork, session.generate, lambda: session.rewind(1), lambda: session.save("x")):
        with pytest.raises(RequestError, match="this session is closed"):
            call()
    check_empty(engine.core)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda session: session.edit(5, prompt(95)), "over max_length of 96"),
        (lambda session: session.edit(5, [3, 5000]), "token id 5000 is out of range"),
        (lambda session: session.edit(5, "text"), "no tokenizer"),
        (lambda session: session.edit(5, []), "the prompt is empty"),
        (lambda session: session.edit(31, [1]), "this session has tokens 0 to 26"),
        (lambda session: session.revise([*START[:5], *prompt(95)]), "over max_length of 96"),
        (lambda session: session.revise([*START[:5], -7]), "token id -7 is out of range"),
    ],
)
def test_a_refused_edit_leaves_tokens_and_rows_as_they_were(edit, message, shared):
    engine = shared()
    with engine.session(START) as session:
        session.generate(max_new_tokens=6, ignore_eos=True)
        before = session.tokens, session.num_cached, engine.core.num_used_blocks
        with pytest.raises(RequestError, match=message):
            edit(session)
        assert (session.tokens, session.num_cached, engine.core.num_used_blocks) == before
        wanted = engine.generate(list(session.tokens), max_new_tokens=4, ignore_eos=True).tokens
        assert session.generate(max_new_tokens=4).tokens == wanted


def test_lost_sessions_give_their_blocks_back(llama):
    engine = engine_for(llama)
    for _ in range(5):
        engine.session(START).generate(max_new_tokens=3)
    check_empty(engine.core)


def test_more_sessions_than_room_are_computed_again(llama):
    engine = engine_for(llama, max_sequences=1, cache_tokens=48)
    wanted = [engine.generate(prompt(20, seed=s), max_new_tokens=12, ignore_eos=True).tokens for s in range(5)]
    sessions = [engine.session(prompt(20, seed=s)) for s in range(5)]
    got = [s.generate(max_new_tokens=6, ignore_eos=True).tokens for s in sessions]
    assert [a + s.generate(max_new_tokens=6).tokens for a, s in zip(got, sessions, strict=True)] == wanted


def test_nobody_takes_the_rows_of_a_session_that_is_being_saved(llama, tmp_path, monkeypatch):
    engine = engine_for(llama, max_sequences=1, cache_tokens=48, max_length=48)
    session, others = engine.session(START), []
    read = engine.core.loaded.pool.read

    def read_while_others_wait(*slots):
        if others:
            return read(*slots)
        other = threading.Thread(target=engine.generate, args=(prompt(40, seed=8),), kwargs={"max_new_tokens": 8})
        other.start()
        other.join(0.3)  # it needs every block; while the session is saved it waits, however long that takes
        others.append(other)
        return read(*slots)

    monkeypatch.setattr(engine.core.loaded.pool, "read", read_while_others_wait)
    session.save(tmp_path / "x.kv")
    others[0].join()
    assert read_facts(tmp_path / "x.kv")["num_rows"] == len(START) - 1
    wanted = engine.generate(START, max_new_tokens=8, ignore_eos=True).tokens
    with engine_for(llama).open_session(tmp_path / "x.kv") as opened:
        assert opened.generate(max_new_tokens=8, ignore_eos=True).tokens == wanted


def test_a_session_that_is_opened_under_load_waits_for_its_blocks(llama, tmp_path):
    engine_for(llama).session(START).save(tmp_path / "x.kv")
    engine = engine_for(llama, max_sequences=2, cache_tokens=48, max_length=48)
    wanted = engine_for(llama).generate([prompt(30), START], max_new_tokens=12, ignore_eos=True)
    stream = engine.stream(prompt(30), max_new_tokens=12, ignore_eos=True)
    shown = next(stream).tokens
    with engine.open_session(tmp_path / "x.kv") as session, engine.open_session(tmp_path / "x.kv") as other:
        assert engine.core.num_used_blocks == 4  # the stream's: a session takes blocks when it runs
        assert session.generate(max_new_tokens=12, ignore_eos=True).tokens == wanted[1].tokens
        assert other.generate(max_new_tokens=12, ignore_eos=True).tokens == wanted[1].tokens
    assert shown + sum((piece.tokens for piece in stream), ()) == wanted[0].tokens
    check_empty(engine.core)


@pytest.fixture
def saved(shared, tmp_path):
    session = shared().session(START)
    session.generate(max_new_tokens=4, temperature=0.5, logit_bias={3: 1.0}, stop_token_ids=[95])
    session.save(tmp_path / "x.kv")
    return tmp_path / "x.kv"


def test_settings_travel(saved, shared):
    params = shared().open_session(saved).params
    assert isinstance(params, SamplingParams)
    assert (params.temperature, params.logit_bias, params.stop_token_ids) == (0.5, {3: 1.0}, (95,))
    assert params.seed is not None


@pytest.mark.slow
def test_flipped_bytes_are_refused_and_leave_no_trace(saved, llama, tmp_path):
    engine = engine_for(llama)
    wanted = engine.generate(START, max_new_tokens=8).tokens
    data, bad = saved.read_bytes(), tmp_path / "bad.kv"
    for at in random.Random(1).sample(range(len(data)), 500):
        flipped = bytearray(data)
        flipped[at] ^= 1 << at % 8
        bad.write_bytes(flipped)
        with pytest.raises(SnapshotError, match=str(bad)):
            engine.open_session(bad)
    check_empty(engine.core)
    assert engine.generate(START, max_new_tokens=8).tokens == wanted


def test_cut_files_are_refused(saved, shared, tmp_path):
    engine = shared()
    data, bad = saved.read_bytes(), tmp_path / "bad.kv"
    for size in random.Random(2).sample(range(len(data)), 100):
        bad.write_bytes(data[:size])
        with pytest.raises(SnapshotError, match="damaged"):
            engine.open_session(bad)
    check_empty(engine.core)


def test_other_models_and_settings_are_refused_by_field(saved, shared, models, tmp_path):
    with pytest.raises(SnapshotError, match=r"fingerprint: config .*weights "):
        engine_for(save("qwen3", models)).open_session(saved)
    with pytest.raises(SnapshotError, match="cache_format is 'dense', here 'int8'"):
        shared(cache_format="int8").open_session(saved)
    with pytest.raises(SnapshotError, match=r"dtype 'float32' and this engine 'bfloat16'.*convert"):
        shared(dtype="bfloat16").open_session(saved)
    with pytest.raises(SnapshotError, match="scheme 'dense' and this engine 'q8'"):
        shared(scheme="q8").open_session(saved)
    assert shared(dtype="bfloat16").open_session(saved, convert=True).generate(max_new_tokens=3).tokens
    with pytest.raises(RequestError, match="over max_length of 16"):
        shared(max_length=16).open_session(saved)
    with pytest.raises(CapacityError, match="cache_tokens"):
        shared(max_sequences=1, cache_tokens=16).open_session(saved)
    for name, value in {"format": 99, "byteorder": "big"}.items():
        rewrite(saved, tmp_path / "other.kv", **{name: value})
        with pytest.raises(SnapshotError, match=rf"has {name} {value!r}, and this tokenmill reads"):
            shared().open_session(tmp_path / "other.kv")
    rewrite(saved, tmp_path / "other.kv", rope="Rope(dim=8)")
    with pytest.raises(SnapshotError, match="rope is 'Rope"):
        shared().open_session(tmp_path / "other.kv")


FOREIGN = {
    "another dtype": ({"dtype": "bfloat16", "program": "eager"}, {"program": "eager"}),
    "another scheme": ({"scheme": "q8", "program": "eager"}, {"program": "eager"}),
    "eager rows in native": ({"program": "eager"}, {"program": "native"}),
    "native rows in eager": ({"program": "native"}, {"program": "eager"}),
    "another fusion": (
        {"program": "eager", "scheme": "dense", "fuse": "none"},
        {"program": "eager", "scheme": "dense"},
    ),
}


@pytest.mark.parametrize("theirs", FOREIGN)
def test_rows_of_other_conditions_stay_in_their_own_session(theirs, llama, shared, tmp_path):
    source, target = FOREIGN[theirs]
    shared(**source).session(START).save(tmp_path / "x.kv")
    engine, quiet = engine_for(llama, **target), shared(**target)

    def no_other_text_changes(engine, session):
        for tokens in ([*START, 5], [*session.tokens, 1]):
            wanted = quiet.generate(tokens, max_new_tokens=6, ignore_eos=True).tokens
            assert engine.generate(tokens, max_new_tokens=6, ignore_eos=True).tokens == wanted
            found, alone = last_logits(engine.core, tokens, 1), last_logits(quiet.core, tokens, 1)
            torch.testing.assert_close(found, alone, rtol=0, atol=0 if target["program"] == "native" else 1e-5)

    with engine.open_session(tmp_path / "x.kv", convert=True) as session:
        session.generate(max_new_tokens=9, ignore_eos=True)
        with session.fork() as fork:
            fork.generate([1, 2], max_new_tokens=9)
        assert engine.core.scheduler.allocator.num_named == 0
        session.save(tmp_path / "y.kv")
        no_other_text_changes(engine, session)
    facts = read_facts(tmp_path / "y.kv")
    assert facts["build"] == "mixed" and facts["num_rows"] == len(facts["tokens"]) - 1
    third = engine_for(llama, **target)
    with third.open_session(tmp_path / "y.kv") as session:
        session.generate(max_new_tokens=9, ignore_eos=True)
        assert third.core.scheduler.allocator.num_named == 0
        no_other_text_changes(third, session)


def test_rows_of_ones_own_conditions_are_shared(llama, tmp_path):
    engine_for(llama).session(START).save(tmp_path / "x.kv")
    engine = engine_for(llama)
    with engine.open_session(tmp_path / "x.kv") as session:
        assert engine.core.scheduler.allocator.num_named == 0  # nothing is there before it runs
        session.generate(max_new_tokens=2, ignore_eos=True)
        assert engine.core.scheduler.allocator.num_named == (len(START) + 1) // 8
        session.save(tmp_path / "y.kv")
    assert read_facts(tmp_path / "y.kv")["build"] == read_facts(tmp_path / "x.kv")["build"] != "mixed"


def test_a_session_that_cannot_be_opened_leaves_nothing(saved, llama, monkeypatch):
    engine = engine_for(llama)

    def no_memory(*_):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(Session, "append", no_memory)
        with pytest.raises(MemoryError) as caught:
            engine.open_session(saved)
    assert engine.core.scheduler.allocator.num_named == 0
    check_empty(engine.core)
    assert caught.tb  # whose frames still hold the session: it was closed, not collected


def test_a_file_that_is_damaged_after_it_was_opened_costs_time_alone(saved, llama, monkeypatch):
    engine = engine_for(llama)
    with engine.open_session(saved) as session:
        wanted = engine.generate(list(session.tokens), max_new_tokens=8, ignore_eos=True).tokens
        engine.core.clear_prefix_cache()

        def gone(*_):
            raise SnapshotError("x.kv is damaged")

        monkeypatch.setattr(SavedSession, "rows", gone)
        found = session.generate(max_new_tokens=8, ignore_eos=True, temperature=0.0, logit_bias={}, stop_token_ids=())
        assert found.tokens == wanted
    check_empty(engine.core)


def test_a_model_that_was_updated_under_its_name(llama, tmp_path):
    path = shutil.copytree(llama, tmp_path / "model")
    engine = engine_for(path)
    weights = path / "model.safetensors"
    old = weights.read_bytes()
    weights.write_bytes(old[:-64] + bytes(64))
    engine.session(START).save(tmp_path / "x.kv")  # rows of the weights that the engine has, not of the file's
    with pytest.raises(SnapshotError, match="fingerprint: weights "):
        engine_for(path).open_session(tmp_path / "x.kv")
    weights.write_bytes(old)
    assert len(engine_for(path).open_session(tmp_path / "x.kv")) == len(START)


def rewrite(source, target, **facts):
    """The same rows under another header, whose checksum fits."""
    new = read_facts(source) | facts
    rows = read_snapshot(source).rows
    text = json.dumps({"facts": new, "checksum": whole_file.checksum_of(new)})
    target.write_bytes(module.serialise({name: rows[name].clone() for name in rows}, metadata={KEY: text}))


def test_no_snapshot_at_all(llama, tmp_path):
    engine = engine_for(llama)
    for path, message in (
        (tmp_path, "is a directory"),
        (tmp_path / "nowhere.kv", "does not exist"),
        (llama / "model.safetensors", "but no saved cache"),
        (llama / "config.json", "no saved cache, or is damaged"),
    ):
        with pytest.raises(SnapshotError, match=message):
            engine.open_session(path)


def test_a_full_disk_leaves_the_old_file_whole(saved, llama, monkeypatch):
    before = saved.read_bytes()

    def full(_descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(whole_file.os, "fsync", full)
    with pytest.raises(SnapshotError, match="cannot be written: No space left"):
        engine_for(llama).session(START).save(saved)
    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


KILLED = """
import os, signal, sys
from tests.engine.test_session import engine_for, prompt
os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)
engine_for(sys.argv[1]).session(prompt(40, seed=9)).save(sys.argv[2])
"""


@pytest.mark.slow
def test_killed_while_saving_leaves_the_old_file_whole(saved, llama):
    before = saved.read_bytes()
    ended = subprocess.run([sys.executable, "-c", KILLED, str(llama), str(saved)], cwd=ROOT, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert saved.read_bytes() == before
    assert len(engine_for(llama).open_session(saved)) == len(read_facts(saved)["tokens"])


def test_the_verbs(llama, tmp_path, capsys):
    ids, file = ",".join(map(str, START)), str(tmp_path / "x.kv")
    assert (
        main(["generate", str(llama), "--tokens", ids, "-n", "9", "--ignore-eos", "--seed", "4", "--json", "-q"]) == 0
    )
    wanted = json.loads(capsys.readouterr().out)["tokens"]
    assert main(["prefill", str(llama), "--tokens", ids, "-o", file, "--json", "-q"]) == 0
    assert json.loads(capsys.readouterr().out)["num_tokens"] == len(START)
    how = ["--ignore-eos", "--block-size", "5", "--json", "-q"]
    assert main(["decode", file, "-n", "4", "--output", file, "--seed", "4", *how]) == 0
    first = json.loads(capsys.readouterr().out)["tokens"]
    assert main(["decode", file, "-n", "5", *how]) == 0
    assert first + json.loads(capsys.readouterr().out)["tokens"] == wanted
    assert main(["decode", file, "--tokens", "1,2", "-n", "2", "-q"]) == 0
    assert len(capsys.readouterr().out.split()) == 2
    assert main(["info", file, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["num_tokens"], facts["model"]) == (len(START) + 4, str(llama))
    assert main(["info", file]) == 0
    assert "seed 4" in capsys.readouterr().out


def test_the_verbs_refuse(llama, saved, tmp_path, capsys, monkeypatch):
    moved = llama.rename(tmp_path / "moved")
    try:
        assert main(["decode", str(saved), "-q"]) == 2
        assert f"no model '{llama}'" in capsys.readouterr().err
        assert main(["decode", str(saved), "--model", str(moved), "-n", "2", "-q"]) == 0
    finally:
        moved.rename(llama)
    capsys.readouterr()
    for arguments, message in (
        (["prefill", str(llama), "--tokens", "1", "--tokens", "2", "-o", "x.kv"], "one: a file holds one text"),
        (["prefill", str(llama), "-o", "x.kv"], "no prompt"),
        (["prefill", str(llama), "--tokens", "1,2", "-o", "/dev/null/x.kv"], "cannot be written"),
        (["decode", str(tmp_path)], "is a directory"),
        (["decode", str(saved), "--dtype", "bfloat16"], "dtype 'float32' and this engine 'bfloat16'"),
        (["decode", str(saved), "--max-length", "12"], "over --max-length of 12"),
    ):
        assert main([*arguments, "-q"]) == 2
        assert message in capsys.readouterr().err


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["new", "generate", "append", "fork", "rewind", "save", "open", "close", "lose"]),
        st.integers(0, 7),
        st.integers(1, 12),
    ),
    min_size=60,
    max_size=100,
)


# 40 runs of 60 and more; TOKENMILL_EXAMPLES=167 makes over 10,000 operations.
@pytest.mark.slow
@settings(
    max_examples=int(os.environ.get("TOKENMILL_EXAMPLES", "40")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(operations=OPERATIONS)
def test_any_order_of_operations_leaks_nothing_and_keeps_the_text(operations, llama, tmp_path):
    """Whatever happened to a session, its next tokens are those of a fresh run over its tokens."""
    engine = engine_for(llama, cache_tokens=160)
    sessions = []
    for name, which, amount in operations:
        session = sessions[which % len(sessions)] if sessions else None
        if name == "new" or session is None:
            sessions.append(engine.session(prompt(amount, seed=which)))
        elif name == "generate" and len(session) + amount < 90:
            wanted = engine.generate(list(session.tokens), max_new_tokens=amount, ignore_eos=True).tokens
            assert session.generate(max_new_tokens=amount, ignore_eos=True).tokens == wanted
        elif name == "append" and len(session) + amount < 90:
            session.append(prompt(amount, seed=which))
        elif name == "fork":
            sessions.append(session.fork())
        elif name == "rewind":
            session.rewind(max(1, len(session) - amount))
        elif name == "save":
            session.save(tmp_path / "x.kv")
        elif name == "open" and (tmp_path / "x.kv").exists():
            sessions.append(engine.open_session(tmp_path / "x.kv"))
        elif name in ("close", "lose"):
            sessions.remove(session)
            if name == "close":
                session.close()
        if len(sessions) > 6:
            sessions.pop(0).close()
        del session
        engine.core.call(lambda: check_scheduler(engine.core.scheduler))
    del sessions
    check_empty(engine.core)


def test_a_device_is_not_replaced_by_a_file(llama, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    session = load(llama, max_length=40).session([1, 2, 3])
    with pytest.raises(SnapshotError, match="no regular file"):
        session.save(pipe)
    assert pipe.is_fifo()
    session.close()


def test_an_answer_whose_last_piece_was_not_read_is_not_over(llama):
    """Steps of another request have ended its sequence; where the answer ends is known with its last piece."""
    engine = load(llama, max_length=40, block_size=4, max_sequences=2, speculate="off")
    session = engine.session(START)
    stream = session.stream(max_new_tokens=3, ignore_eos=True)
    tokens = next(stream).tokens
    engine.generate(START[:3], max_new_tokens=9, ignore_eos=True)
    with pytest.raises(RequestError, match="in the midst of an answer"):
        session.generate(max_new_tokens=3)
    tokens += sum((piece.tokens for piece in stream), ())
    assert session.tokens == (*START, *tokens) and len(tokens) == 3
    assert len(session.generate(max_new_tokens=3).tokens) == 3


def test_a_pipe_is_not_waited_for(shared, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SnapshotError, match="pipe is a device or a pipe, not a snapshot"):
        shared().open_session(tmp_path / "pipe")


def test_a_name_that_could_not_be_opened_is_not_saved_to(shared, tmp_path):
    with pytest.raises(SnapshotError, match="cannot be used"):
        shared().session(prompt(5)).save(tmp_path / "\udcff")


def test_a_cancel_that_comes_late_does_not_end_the_next_answer(llama):
    """Between the look at whether an answer has ended and the cancel, it ends and another one begins."""
    engine = engine_for(llama)
    core, session = engine.core, engine.session(prompt(5))
    first = session.stream(max_new_tokens=3, ignore_eos=True)
    next(first)
    tidy, posted = core.thread.tidy, []
    core.thread.tidy = posted.append
    core.cancel(Request([], trackers=list(core.trackers.values())))
    core.thread.tidy = tidy
    assert len(posted) == 1 and len(sum((piece.tokens for piece in first), ())) == 2
    second = session.stream(max_new_tokens=4, ignore_eos=True)
    next(second)
    core.call(posted[0])
    assert len([token for piece in second for token in piece.tokens]) == 3
