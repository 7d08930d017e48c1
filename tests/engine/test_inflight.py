"""Each step begun before the one before it is read: the same texts, whatever ends or breaks off in between."""

from contextlib import contextmanager

import pytest
import torch

from tests.empty import check_empty
from tests.program.test_compiled import plain_calls
from tests.steps import poison
from tests.tiny_models import prompt, save
from tokenmill import ConfigError, RequestError, load
from tokenmill.engine.loop import Observer
from tokenmill.loader import resolve as module_of_devices
from tokenmill.loader.resolve import resolve
from tokenmill.model.families import read_config
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.weights.checkpoint import open_checkpoint

PROMPTS = [prompt(length, seed=length) for length in (9, 1, 23, 14)]
SAMPLING = {"greedy": {}, "sampled": {"temperature": 0.9, "top_k": 30, "min_p": 0.01, "seed": 4}, "p": {"top_p": 0.9}}
SAMPLING["p"] |= {"temperature": 0.9, "seed": 5}


SETTINGS = {"dtype": "float32", "max_length": 96, "max_sequences": 3, "block_size": 8, "program": "eager"}


def engine_for(path, **how):
    return load(path, **{**SETTINGS, "async_scheduling": "on", **how})


@pytest.fixture
def plain(engine_of):
    """Gives an engine that reads each step before it begins the next one."""
    return lambda path, **how: engine_of(path, **{**SETTINGS, "async_scheduling": "off", **how})


@contextmanager
def counted(engine):
    """How many of the steps inside were fed on the device."""
    run, steps = engine.core.loaded.runner.run, []
    engine.core.loaded.runner.run = lambda plan, fed_R=None: (steps.append(fed_R is not None), run(plan, fed_R))[1]
    try:
        yield steps
    finally:
        del engine.core.loaded.runner.run


def tokens(done):
    return [each.tokens for one in done for each in one.completions]


@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("family", ["llama", "gpt2", "mixtral"])
def test_the_text_of_every_family(family, sampling, models, plain):
    path, settings = save(family, models), {"max_new_tokens": 12, "ignore_eos": True, **SAMPLING[sampling]}
    engine = engine_for(path)
    with counted(engine) as steps:
        done = engine.generate(PROMPTS, **settings)
    assert tokens(done) == tokens(plain(path).generate(PROMPTS, **settings))
    assert sum(steps) > len(steps) // 2
    check_empty(engine.core)


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        {"max_step_tokens": 5},
        {"block_size": 1, "cache_tokens": 45},  # too few for all: preempted again and again
        {"block_size": 3, "cache_tokens": 48, "max_step_tokens": 7},
        {"block_size": None},
        {"cache": False, "max_step_tokens": 11},
        {"cache_format": "int8"},
        {"program": "native", "kernel": "auto"},
        {"program": "compiled", "compile": "dynamic", "compile_backend": "eager"},
        {"program": "compiled", "compile": "no"},
    ],
    ids=str,
)
def test_however_it_is_computed(how, llama, plain):
    settings = {"max_new_tokens": 20, "ignore_eos": True, "temperature": 0.8, "seed": 3, "n": 2}
    engine = engine_for(llama, **how)
    with counted(engine) as steps:
        done = engine.generate(PROMPTS, **settings)
    assert tokens(done) == tokens(plain(llama, **how).generate(PROMPTS, **settings))
    assert sum(steps) > 10
    check_empty(engine.core)


@pytest.mark.slow
def test_captured_steps_are_fed_too(llama, plain):
    engine = engine_for(llama, program="compiled", compile="static", compile_backend="eager")
    engine.core.loaded.program.capture = plain_calls
    for _ in range(2):
        done = engine.generate(PROMPTS, max_new_tokens=12, ignore_eos=True)
        assert tokens(done) == tokens(plain(llama).generate(PROMPTS, max_new_tokens=12, ignore_eos=True))


@pytest.mark.parametrize(
    "settings", [{"repetition_penalty": 1.3}, {"frequency_penalty": 0.4}, {"logprobs": 2}], ids=str
)
def test_what_looks_back_waits(settings, llama):
    engine, settings = engine_for(llama), {"max_new_tokens": 8, "ignore_eos": True, **settings}
    with counted(engine) as steps:
        done = engine.generate(PROMPTS, **settings)
    assert not any(steps)
    # One of its own: rows that the cache has are computed in other pieces, and their bits may differ.
    wanted = engine_for(llama, async_scheduling="off").generate(PROMPTS, **settings)
    assert tokens(done) == tokens(wanted)
    assert [each.logprobs for each in done] == [each.logprobs for each in wanted]


@pytest.mark.slow
def test_it_ends_where_it_should(llama, plain):
    """By an id, at the last place that its length allows as well, and not before the least number of tokens."""
    engine, reference = engine_for(llama), plain(llama)
    text = reference.generate(PROMPTS[0], max_new_tokens=20, ignore_eos=True).tokens
    for place in range(1, 12):
        for settings in (
            {"max_new_tokens": 20, "stop_token_ids": (text[place],)},
            {"max_new_tokens": text.index(text[place]) + 1, "stop_token_ids": (text[place],)},
            {"max_new_tokens": 20, "min_new_tokens": place, "stop_token_ids": (text[place - 1],)},
        ):
            done, wanted = (each.generate(PROMPTS, **settings) for each in (engine, reference))
            assert tokens(done) == tokens(wanted)
            assert [each.finish_reason for each in done] == [each.finish_reason for each in wanted]
            check_empty(engine.core)


def test_a_stop_text_ends_it_one_step_late_and_nobody_sees(real_model):
    engine = load(real_model, async_scheduling="on", max_sequences=2, max_length=256)
    reference = load(real_model, async_scheduling="off", max_sequences=2, max_length=256)
    settings = {"max_new_tokens": 24, "stop": (" blue", "\n")}
    prompts = ["The colour of the sky is", "One, two, three,"]
    done, wanted = (each.generate(prompts, **settings) for each in (engine, reference))
    assert [(each.text, each.tokens, each.finish_reason) for each in done] == [
        (each.text, each.tokens, each.finish_reason) for each in wanted
    ]
    assert "stop" in [each.finish_reason for each in done]


def test_sessions_go_on_from_where_they_had_ended(llama, tmp_path, plain):
    """What was begun beyond an end is not part of what follows."""
    engine, reference = engine_for(llama), plain(llama)
    told = []
    for one in (engine, reference):
        with one.session(PROMPTS[2]) as session:
            session.generate(max_new_tokens=5, ignore_eos=True)
            fork = session.fork()
            session.generate(max_new_tokens=4, temperature=1.0, seed=7)
            session.rewind(len(session) - 2)
            stream = session.stream(PROMPTS[1], max_new_tokens=9)
            next(stream)
            next(stream)
            stream.close()
            session.generate(max_new_tokens=3)
            session.save(tmp_path / "x.kv")
            fork.generate(PROMPTS[1], max_new_tokens=6)
            told.append((session.tokens, fork.tokens))
            fork.close()
        with one.open_session(tmp_path / "x.kv") as session:
            told[-1] += (session.generate(max_new_tokens=6).tokens,)
        check_empty(one.core)
    assert told[0] == told[1]


@pytest.mark.parametrize("how", ["append", "edit", "generate"])
def test_what_goes_on_has_no_part_in_what_was_begun_before(how, llama, tmp_path, plain):
    """A stream is closed while its next step is begun, and its session does something else before that step is read."""
    engine, reference = engine_for(llama), plain(llama)
    session = engine.session(PROMPTS[2])
    stream = session.stream(max_new_tokens=20, ignore_eos=True)
    other = engine.stream(PROMPTS[0], max_new_tokens=16, ignore_eos=True)
    text = ()
    for _ in range(2):
        next(stream)
        text += next(other).tokens
    stream.close()
    assert engine.core.loop.in_flight is not None
    if how == "append":
        session.append(PROMPTS[3])
        session.prefill()
    elif how == "edit":
        session.edit(5, [1, 2, 3])
        session.save(tmp_path / "x.kv")
    settings = {"max_new_tokens": 5, "temperature": 1.2, "seed": 8, "ignore_eos": True}
    before = session.tokens
    assert session.generate(**settings).tokens == reference.generate(list(before), **settings).tokens
    text += sum((piece.tokens for piece in other), ())
    assert text == reference.generate(PROMPTS[0], max_new_tokens=16, ignore_eos=True).tokens
    session.close()
    check_empty(engine.core)


def test_nothing_is_left_when_all_have_ended(llama, plain):
    engine = engine_for(llama)
    stop = plain(llama).generate(PROMPTS[0], max_new_tokens=4, ignore_eos=True).tokens[3]
    engine.generate(PROMPTS[0], max_new_tokens=20, stop_token_ids=(stop,))
    assert engine.core.loop.in_flight is None


def test_what_is_beyond_the_end_fails_nobody(llama, plain):
    engine, reference = engine_for(llama), plain(llama)
    stop = reference.generate(PROMPTS[0], max_new_tokens=5, ignore_eos=True).tokens[4]
    settings = {"max_new_tokens": 12, "stop_token_ids": (stop,)}
    wanted = reference.generate(PROMPTS, **settings)
    last = {len(one): len(one) + len(each.tokens) for one, each in zip(PROMPTS, wanted, strict=True)}
    poison(engine, lambda work, _: work.start + work.count >= last[work.sequence.num_prompt_tokens])
    done = engine.generate(PROMPTS, **settings)
    assert tokens(done) == tokens(wanted)


def test_blocks_of_what_cannot_be_sampled_are_not_shared(llama):
    engine = engine_for(llama)
    poison(engine, lambda *_: True)
    session = engine.session()
    with pytest.raises(RequestError, match="not finite"):
        session.generate(PROMPTS[2], max_new_tokens=4)
    assert engine.core.scheduler.parked and not any(each.has_unread_token for each in engine.core.scheduler.parked)
    session.close()
    assert not engine.core.scheduler.allocator.num_named
    del engine.core.loaded.runner.run
    engine.generate(PROMPTS[2], max_new_tokens=4, ignore_eos=True)
    assert engine.core.scheduler.allocator.num_named == (len(PROMPTS[2]) + 3) // 8


def test_a_row_that_cannot_be_sampled_fails_alone(llama, plain):
    engine = engine_for(llama)
    wanted = plain(llama).generate(PROMPTS[0], max_new_tokens=10, ignore_eos=True).tokens
    length = len(PROMPTS[2])
    good = engine.stream(PROMPTS[0], max_new_tokens=10, ignore_eos=True)
    first = next(good).tokens
    poison(engine, lambda work, _: work.sequence.num_prompt_tokens == length and work.start > length + 2)
    for sampling in ({}, {"temperature": 0.7, "seed": 1}):
        with pytest.raises(RequestError, match="not finite"):
            engine.generate(PROMPTS[2], max_new_tokens=10, ignore_eos=True, **sampling)
    assert first + sum((piece.tokens for piece in good), ()) == wanted
    check_empty(engine.core)


def test_with_others_that_come_and_go(llama, plain):
    engine, reference = engine_for(llama), plain(llama)
    streams = [engine.stream(one, max_new_tokens=9, ignore_eos=True) for one in PROMPTS]
    texts = [()] * len(PROMPTS)
    for number, stream in enumerate(streams):  # one comes after two steps of the one before
        for other in range(number + 1):
            for _ in range(2):
                piece = next(streams[other], None)
                texts[other] += piece.tokens if piece else ()
        assert engine.score(PROMPTS[1], [PROMPTS[0][:3]]) == pytest.approx(
            reference.score(PROMPTS[1], [PROMPTS[0][:3]]), abs=1e-4
        )
        del stream
    texts = [text + sum((piece.tokens for piece in rest), ()) for text, rest in zip(texts, streams, strict=True)]
    assert texts == [reference.generate(one, max_new_tokens=9, ignore_eos=True).tokens for one in PROMPTS]
    check_empty(engine.core)


def test_a_proposer_needs_the_tokens(llama):
    with pytest.raises(ConfigError, match="async_scheduling"):
        load(llama, async_scheduling="on", speculate="suffix")


def test_it_is_on_where_the_device_works_aside(llama, monkeypatch):
    model = read_config(open_checkpoint(llama).config)
    for device, settings, wanted in (
        ("cpu", {}, "off"),
        ("cuda", {}, "on"),
        ("cuda", {"speculate": "suffix"}, "off"),
        ("cuda", {"async_scheduling": "off"}, "off"),
    ):
        monkeypatch.setattr(module_of_devices, "find_device", lambda _, device=device: device)
        assert resolve(EngineConfig(scheme="dense", **settings), model).config.async_scheduling == wanted


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("program", ["eager", "compiled"])
def test_on_a_gpu_nothing_waits_between_two_steps(program, llama, plain):
    engine = engine_for(llama, device="cuda", program=program)
    settings = {"max_new_tokens": 12, "ignore_eos": True, "temperature": 0.8, "top_k": 20, "seed": 1}
    wanted = tokens(plain(llama, device="cuda", program=program).generate(PROMPTS, **settings))
    for _ in range(2):  # compiling waits for the device, and a warm prefix cache needs other shapes than a cold one
        engine.generate(PROMPTS, **settings)

    class Watch(Observer):
        """Between the plan of a step and its end nothing may wait for the device but the reading of tokens."""

        def phase(self, name, plan):
            if name in ("plan", "run"):
                torch.cuda.set_sync_debug_mode("error" if name == "plan" else "default")

    try:
        with engine.core.observed_by(Watch()):
            assert tokens(engine.generate(PROMPTS, **settings)) == wanted
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_session_that_is_closed_while_its_step_is_in_flight_ends_nothing_else(llama, plain):
    """It is dropped for good, with a reason, and so leaves the step: the next request has all of its own rows."""
    engine, reference = engine_for(llama), plain(llama)
    session = engine.session(PROMPTS[1])
    stream = session.stream(max_new_tokens=16, ignore_eos=True)
    next(stream)
    assert engine.core.loop.in_flight is not None
    dropped = engine.core.loop.in_flight.plan.work[0].sequence
    session.close()
    del stream, session
    settings = {"max_new_tokens": 8, "ignore_eos": True}
    assert engine.generate(PROMPTS[0], **settings).tokens == reference.generate(PROMPTS[0], **settings).tokens
    assert dropped.finish_reason == "abort"
    check_empty(engine.core)
