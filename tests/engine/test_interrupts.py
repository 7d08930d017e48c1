"""Ctrl-C at any line of the caller's: the one that waits is told, every other text goes on, and nothing is lost.

The engine's thread, which makes the steps, gets no signal.
"""

import gc
import random
import sys

import pytest

from tests.empty import check_empty
from tests.interrupts import Lines, lines
from tests.marks import needs_native
from tests.tiny_models import prompt
from tokenmill import RequestError, load
from tokenmill.engine.loop import Observer

pytestmark = pytest.mark.slow

SHAPES = {
    "plain": {"max_sequences": 3},
    "scarce": {"max_sequences": 3, "cache_tokens": 44, "max_step_tokens": 7},
    "async": {"max_sequences": 3, "async_scheduling": "on"},
    "async, scarce": {"max_sequences": 3, "cache_tokens": 44, "max_step_tokens": 7, "async_scheduling": "on"},
    "drafts": {"max_sequences": 3, "speculate": "suffix"},
}
PROMPTS = [prompt(9), prompt(14, seed=1), [*prompt(9), 7, 7]]
NEW = 8
PROGRAMS = {"eager": 10, "native": 30}
"""With each program, how many of some thousand lines are interrupted, other ones in each shape. A step of the modules
takes ten times as long, and most lines of ours are the same."""
WITH_NATIVE = ("plain", "async, scarce")
EVERYTHING = [
    pytest.param(
        shape,
        program,
        PROGRAMS[program],
        marks=[
            *([needs_native] if program == "native" else []),
            *([] if (shape in WITH_NATIVE) == (program == "native") else [pytest.mark.long]),
        ],
    )
    for program in PROGRAMS
    for shape in SHAPES
]
"""Every shape with one of the programs; `make test-long` tries it with the other one."""


def engine_for(path, **how):
    """One thread: several of torch would wait for each other in every small operation."""
    settings = {"dtype": "float32", "max_length": 40, "block_size": 4, "threads": 1, "speculate": "off"}
    return load(path, **(settings | how))


@pytest.mark.parametrize(("shape", "program", "times"), EVERYTHING)
def test_others_go_on(shape, program, times, llama):
    quiet = engine_for(llama, program=program)
    wanted = [quiet.generate(one, max_new_tokens=NEW, ignore_eos=True).tokens for one in PROMPTS]
    engine = engine_for(llama, program=program, **SHAPES[shape])
    settings = {"max_new_tokens": NEW, "ignore_eos": True}
    with lines() as counted:
        engine.generate(PROMPTS, **settings)
    numbers = random.Random(shape + program)
    for _ in range(times):
        streams = [engine.stream(one, **settings) for one in PROMPTS[:2]]
        texts = [next(one).tokens for one in streams]
        with pytest.raises(KeyboardInterrupt), lines(1 + numbers.randrange(counted.count // 2)) as at:
            engine.generate(PROMPTS, **settings)
        for index, one in enumerate(streams):
            texts[index] += sum((piece.tokens for piece in one), ())
        assert texts == wanted[:2], at.where
        check_empty(engine.core)
    assert [done.tokens for done in engine.generate(PROMPTS, **settings)] == wanted


@pytest.mark.parametrize(("shape", "program", "times"), EVERYTHING)
def test_a_session_goes_on(shape, program, times, llama, tmp_path):
    """Interrupted in generating, forking, rewinding, prefilling or saving, its next answer is that of its tokens."""
    quiet, engine = engine_for(llama, program=program), engine_for(llama, program=program, **SHAPES[shape])
    settings = {"max_new_tokens": NEW, "ignore_eos": True}

    def use(session):
        session.generate([5, 6], **settings)
        other = session.fork()
        other.rewind(6)
        other.prefill()
        session.save(tmp_path / "x.kv")
        other.generate([1], **settings)
        other.close()

    with lines() as counted, engine.session(PROMPTS[0]) as session:
        use(session)
    numbers = random.Random(shape + program)
    for _ in range(times):
        session = engine.session(PROMPTS[0])
        with pytest.raises(KeyboardInterrupt), lines(numbers.randrange(counted.count)) as at:
            use(session)
            raise KeyboardInterrupt
        known = session.tokens
        done = session.generate([3], **settings)
        assert done.tokens == quiet.generate([*known, 3], **settings).tokens, at.where
        session.close()
        del session, done
        gc.collect()  # the traceback holds the fork
        check_empty(engine.core)


def test_a_session_that_is_being_closed_gives_its_blocks_back(llama):
    """Interrupted at any line of `close`, it does so when it is garbage-collected."""
    engine, number, ended = engine_for(llama), 0, False
    while not ended:
        number += 1
        session = engine.session(PROMPTS[0])
        session.prefill()
        with pytest.raises(KeyboardInterrupt), lines(number):
            session.close()
            ended = True
            raise KeyboardInterrupt
        del session
        gc.collect()
        check_empty(engine.core)


def test_within_the_finalizer_of_a_session_nothing_of_python_can_be_interrupted(llama):
    engine, called = engine_for(llama), []
    session = engine.session(PROMPTS[0])
    session.prefill()
    sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_qualname) if event == "call" else None)
    try:
        del session
    finally:
        sys.setprofile(None)
    assert called == []
    check_empty(engine.core)


@pytest.mark.parametrize("action", ["logits", "score", "score_pairs"])
def test_scoring_that_is_interrupted_twice_gives_its_blocks_back(action, llama, monkeypatch):
    """The second interrupt is at each line that is run after the first one, which came when a step had been made."""
    engine = engine_for(llama, max_step_tokens=3, program="eager")
    given = {"logits": (PROMPTS[0],), "score": (PROMPTS[0], [[1, 2], [3]]), "score_pairs": ([(PROMPTS[0], [1])],)}
    before, second = sys.gettrace(), Lines(0)

    def interrupted(_):
        engine.core.step()
        assert engine.core.num_used_blocks
        sys.settrace(second)
        raise KeyboardInterrupt

    monkeypatch.setattr(engine.core, "wait", interrupted)
    while second.count >= second.at:  # else there was no line left to interrupt
        second = Lines(second.at + 1)
        try:
            getattr(engine, action)(*given[action])
        except KeyboardInterrupt:
            sys.settrace(before)
        check_empty(engine.core)
    assert second.at > 5


@pytest.mark.parametrize("how", [{}, {"async_scheduling": "on"}])
@pytest.mark.parametrize("action", ["prefill", "save"])
def test_what_only_computes_changes_no_token(action, how, llama, tmp_path):
    """Interrupted at any line, the session has the tokens that it had, and goes on from them."""
    engine = engine_for(llama, **how)
    settings = {"max_new_tokens": 2, "ignore_eos": True}
    wanted = engine.generate(PROMPTS[0], **settings).tokens

    def use(session):
        session.prefill() if action == "prefill" else session.save(tmp_path / "x.kv")

    with lines() as counted, engine.session(PROMPTS[0]) as session:
        use(session)
    for number in range(1, counted.count, 3):
        with engine.session(PROMPTS[0]) as session:
            with pytest.raises(KeyboardInterrupt), lines(number) as at:
                use(session)
                raise KeyboardInterrupt
            assert session.tokens == tuple(PROMPTS[0]), at.where
            assert session.generate(**settings).tokens == wanted, at.where
    check_empty(engine.core)


class Within(Observer):
    """Does something in the midst of a step, in its thread, as an observer may."""

    def __init__(self, act):
        self.act, self.errors = act, []

    def phase(self, name, plan):
        if name == "run":
            try:
                self.act()
            except RequestError as error:
                self.errors.append(str(error))


def test_a_step_within_a_step_is_refused(llama):
    engine = engine_for(llama)
    wanted = engine.generate(PROMPTS[0], max_new_tokens=NEW, ignore_eos=True).tokens
    within = Within(lambda: engine.generate(PROMPTS[1], max_new_tokens=2))
    with engine.core.observed_by(within):
        assert engine.generate(PROMPTS[0], max_new_tokens=NEW, ignore_eos=True).tokens == wanted
    assert set(within.errors) == {"a step is being made: an observer cannot use the engine now"}
    check_empty(engine.core)


def test_an_engine_that_is_closed_within_a_step_ends_with_it(llama):
    engine = engine_for(llama)
    with engine.core.observed_by(Within(engine.close)), pytest.raises(RequestError, match="this engine is closed"):
        engine.generate(PROMPTS[0], max_new_tokens=NEW)


def test_a_stream_that_is_closed_within_its_step_ends_with_it(llama):
    engine = engine_for(llama)
    stream = engine.stream(PROMPTS[0], max_new_tokens=NEW, ignore_eos=True)
    within = Within(stream.close)
    with engine.core.observed_by(within), pytest.raises(RequestError, match="cancelled"):
        list(stream)
    assert not within.errors
    check_empty(engine.core)
