"""What goes wrong around one sequence leaves the others, and the engine, as they were."""

import gc
import threading
import weakref

import numpy as np
import pytest
import torch

import tokenmill
from tests.empty import check_empty
from tests.steps import poison
from tests.text.test_tokenizer import trained
from tests.tiny_models import prompt, save
from tokenmill import CapacityError, CheckpointError, ConfigError, RequestError, SamplingParams
from tokenmill.engine.batch import generate_each
from tokenmill.engine.outputs import Tracker
from tokenmill.schedule.sequence import Sequence
from tokenmill.speculate.proposer import Proposer
from tokenmill.text.detokenize import Detokenizer
from tokenmill.text.tokenizer import Tokenizer


def test_scored_sequences_get_no_drafts(llama):
    tokens = [1, 2, 3, 4] * 5 + [1]
    engine = tokenmill.load(llama, speculate="suffix", max_step_tokens=20)
    plain = tokenmill.load(llama)
    torch.testing.assert_close(engine.logits(tokens), plain.logits(tokens))
    choices = [[2, 3, 4, 1, 2], [2], [3, 4]]
    assert engine.score(tokens, choices) == pytest.approx(plain.score(tokens, choices), abs=1e-4)
    check_empty(engine.core)


def test_scores_do_not_suffer_from_other_threads(llama):
    engine = tokenmill.load(llama, block_size=8, max_sequences=3)
    expected = engine.score(prompt(9), [prompt(3), prompt(2)])
    stop = threading.Event()

    def generate() -> None:
        while not stop.is_set():
            engine.generate(prompt(5), max_new_tokens=6)

    thread = threading.Thread(target=generate)
    thread.start()
    try:
        for _ in range(60):
            assert engine.score(prompt(9), [prompt(3), prompt(2)]) == pytest.approx(expected, abs=1e-4)
    finally:
        stop.set()
        thread.join()
    check_empty(engine.core)


@pytest.mark.parametrize("error", [ZeroDivisionError, MemoryError, KeyboardInterrupt])
@pytest.mark.parametrize("where", ["plan", "run", "commit", "learn"])
def test_a_step_that_raises_ends_what_runs_and_the_engine_begins_anew(llama, where, error):
    engine = tokenmill.load(llama, block_size=4, max_sequences=2)
    expected = engine.generate(prompt(9), max_new_tokens=8).tokens
    session = engine.session(prompt(9))
    session.prefill()
    stream = engine.stream(prompt(9), max_new_tokens=8)
    next(stream)
    core = engine.core
    owners = {"run": core.loaded.runner, "learn": core.speculation}
    owner = owners.get(where, core.scheduler)
    real = getattr(owner, where)

    def failing(*arguments):
        real(*arguments)
        raise error

    setattr(owner, where, failing)
    with pytest.raises(error):
        engine.generate(prompt(5), max_new_tokens=4)
    setattr(owner, where, real)
    with pytest.raises(error):
        list(stream)
    assert core.call(lambda: core.scheduler.allocator.num_free) == core.scheduler.allocator.num_blocks
    assert session.generate(max_new_tokens=8).tokens == expected == engine.generate(prompt(9), max_new_tokens=8).tokens
    session.close()
    check_empty(core)


def _of_a_request(engine):
    engine.core.submit(request := engine.core.request(prompt(9), SamplingParams(max_new_tokens=2)))
    with pytest.raises(ZeroDivisionError):
        engine.core.step()
    engine.core.take(request)


CALLS = {
    "generate": lambda engine: engine.generate([prompt(9), prompt(5)], n=2, max_new_tokens=2),
    "stream": lambda engine: next(engine.stream(prompt(9), max_new_tokens=2)),
    "session": lambda engine: engine.session(prompt(9)).generate(max_new_tokens=2),
    "batch": lambda engine: list(generate_each(engine.core, [engine.core.request(prompt(9), SamplingParams())])),
    "score": lambda engine: engine.score(prompt(9), [[1], [2, 3]]),
    "request": _of_a_request,
}


@pytest.mark.parametrize("call", CALLS)
def test_what_a_failed_step_computed_is_freed_without_the_garbage_collector(llama, call, monkeypatch):
    """Python counts references; only circles wait for the garbage collector."""
    engine, computed = tokenmill.load(llama, max_sequences=4), []

    def failing(step):
        activations = torch.ones(4)
        computed.append(weakref.ref(activations))
        raise ZeroDivisionError

    monkeypatch.setattr(engine.core.loaded.program, "run", failing)
    gc.disable()
    try:
        with pytest.raises(ZeroDivisionError) as caught:
            CALLS[call](engine)
        del caught
        engine.core.call(lambda: None)
        assert [each() for each in computed] == [None]
    finally:
        gc.enable()
    check_empty(engine.core)


def test_logits_that_fail_leave_nothing_behind(llama):
    engine = tokenmill.load(llama, max_step_tokens=4)
    run = engine.core.loaded.runner.run
    engine.core.loaded.runner.run = lambda plan, *fed: (_ for _ in ()).throw(MemoryError)
    with pytest.raises(MemoryError):
        engine.logits(prompt(9))
    engine.core.loaded.runner.run = run
    check_empty(engine.core)


def test_a_stream_that_never_starts_takes_no_place(llama):
    engine = tokenmill.load(llama)
    stream = engine.stream(prompt(5), max_new_tokens=50)
    stream.close()
    del stream
    check_empty(engine.core)


def test_a_stream_that_is_collected_in_the_middle_of_a_plan_waits_for_the_next(llama):
    engine = tokenmill.load(llama, block_size=4, max_sequences=2)
    expected = engine.generate(prompt(7), max_new_tokens=8).tokens
    doomed = [engine.stream(prompt(9), max_new_tokens=50)]
    next(doomed[0])
    real = engine.core.scheduler.plan

    def collecting(drafts):
        plan = real(drafts)
        doomed.clear()
        gc.collect()
        return plan

    engine.core.scheduler.plan = collecting
    assert engine.generate(prompt(7), max_new_tokens=8).tokens == expected
    check_empty(engine.core)


def test_bad_logits_behind_a_rejected_draft_are_nobodys_business(llama):
    engine = tokenmill.load(llama, num_draft_tokens=3, speculate="suffix")
    expected = engine.generate(prompt(6), max_new_tokens=8).tokens

    class Wrong(Proposer):
        def propose(self, sequences, limit, forced):
            nexts = {s.id: expected[len(s.tokens) - 6 : len(s.tokens) - 5] for s in sequences}
            return {number: [(token[0] + 1) % 211, 5] for number, token in nexts.items() if token}

    engine.core.speculation.proposer = Wrong()
    poison(engine, lambda _, row: row > 0)
    assert engine.generate(prompt(6), max_new_tokens=8).tokens == expected


@pytest.mark.parametrize("where", ["tracker", "detokenizer"])
def test_a_text_that_cannot_be_decoded_fails_alone(where, llama):
    engine = tokenmill.load(llama, max_sequences=2, block_size=16)
    expected = engine.generate(prompt(6), max_new_tokens=8).tokens
    good = engine.stream(prompt(6), max_new_tokens=8)
    tokens = next(good).tokens
    request = engine.core.request(prompt(9), SamplingParams(max_new_tokens=8))
    bad = engine.core.follow(request)
    next(bad)
    (tracker,) = request.trackers

    def push(*_):
        raise ValueError("no such text")

    tracker.detokenizer = Detokenizer(Tokenizer(trained()))  # this model has none
    (tracker if where == "tracker" else tracker.detokenizer).push = push
    with pytest.raises(ValueError, match="no such text"):
        list(bad)
    assert tokens + sum((piece.tokens for piece in good), ()) == expected
    check_empty(engine.core)


@pytest.mark.parametrize("reason", ["length", "eos"])
def test_a_stop_text_that_shows_only_at_the_end_is_the_reason(reason):
    """Byte tokens are held back, so the match may be found when nothing more comes."""
    tokenizer = Tokenizer(trained())
    ids = tokenizer.encode("hello there", add_special_tokens=False)
    tokenizer.byte_ids = frozenset(ids)
    sequence = Sequence(0, [1], 1, 99)
    tracker = Tracker(sequence, Detokenizer(tokenizer, stop=["lo"]), started_s=0.0)
    assert not tracker.push(ids, now_s=1.0)
    tracker.finish(reason)
    done = tracker.completion
    assert (done.text, done.finish_reason) == ("hel", "stop")
    assert len(done.timing.itl_s) == len(done.tokens) - 1


def test_the_default_pool_holds_every_sequence_at_its_longest(llama):
    engine = tokenmill.load(llama, block_size=100, max_sequences=4)
    assert engine.core.scheduler.allocator.num_blocks == 8
    with pytest.raises(ConfigError, match=r"block_size = 5000 .*max_length, which is 128"):
        tokenmill.load(llama, block_size=5000)
    with pytest.raises(
        CapacityError,
        match=r"memory for a cache of 10000000000032 tokens, which the system refuses .*: .* TB needed, .*cache_tokens",
    ) as caught:
        tokenmill.load(llama, cache_tokens=10**13 + 1)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("make", [np.array, torch.tensor, tuple, list])
def test_ids_may_come_in_any_container(llama, make):
    engine = tokenmill.load(llama, max_sequences=2)
    one, two = prompt(5), prompt(5, 1)
    expected = [engine.generate(p, max_new_tokens=3).tokens for p in (one, two)]
    assert engine.generate(make(one), max_new_tokens=3).tokens == expected[0]
    assert [d.tokens for d in engine.generate(make([one, two]), max_new_tokens=3)] == expected


@pytest.mark.parametrize(
    ("tokens", "settings", "error", "message"),
    [
        ([[1.7, 2.2]], {}, RequestError, "1.7 is no token id"),
        (5, {}, RequestError, "5 is no prompt"),
        (None, {}, RequestError, "not None"),
        ([[1], 3], {}, RequestError, "prompt 2 of 2: 3 is no prompt"),
        ([1, [2]], {}, RequestError, r"\[2\] is no token id"),
        ([[1], []], {}, RequestError, "prompt 2 of 2: the prompt is empty"),
        ([1], {"stop_token_ids": 2}, ConfigError, "stop_token_ids = 2"),
        ([1], {"stop": 5}, ConfigError, "stop = 5"),
        ([1], {"logit_bias": [1]}, ConfigError, "logit_bias"),
        ([1], {"ignore_eos": "no"}, ConfigError, "ignore_eos = 'no'"),
        ([1], {"min_new_tokens": 130}, RequestError, r"prompt of 1 tokens \+ max_new_tokens of 130 is over"),
    ],
)
def test_what_cannot_be_meant_is_refused(llama, tokens, settings, error, message):
    engine = tokenmill.load(llama)
    with pytest.raises(error, match=message):
        engine.generate(tokens, **settings)
    check_empty(engine.core)


def test_settings_without_effect_are_named(llama):
    with pytest.warns(UserWarning, match="num_draft_tokens = 9 is ignored: speculate is 'off'"):
        tokenmill.load(llama, num_draft_tokens=9, program="eager")


def test_the_same_number_said_twice_is_no_error_but_two_numbers_are(tmp_path):
    import json

    model = save("llama", tmp_path)
    config = json.loads((model / "config.json").read_text())
    config |= {"rope_theta": config["rope_parameters"]["rope_theta"]}
    (model / "config.json").write_text(json.dumps(config))
    tokenmill.load(model)
    (model / "config.json").write_text(json.dumps(config | {"rope_theta": 5.0}))
    with pytest.raises(CheckpointError, match=r"rope_theta is 5\.0, and 10000\.0 in the rope parameters"):
        tokenmill.load(model)
    (model / "config.json").write_text(json.dumps(config | {"dtype": "float64"}))
    with pytest.raises(CheckpointError, match="dtype 'float64' is not implemented"):
        tokenmill.load(model)
