"""Ctrl-C at any line of the loop: the one that waits is told, every other text goes on, and nothing is lost."""

import gc
import random
from threading import RLock, Thread

import pytest
import torch

from tests.empty import check_empty
from tests.interrupts import lines
from tests.tiny_models import prompt
from tests.word_model import save_word_model
from tokenmill import RequestError, SamplingParams, load
from tokenmill.engine.observers import Observer
from tokenmill.engine.transaction import Transaction
from tokenmill.kernels import native_library

pytestmark = pytest.mark.slow

SHAPES = {
    "plain": {"max_sequences": 3},
    "scarce": {"max_sequences": 3, "cache_tokens": 44, "max_step_tokens": 7},
    "async": {"max_sequences": 3, "async_scheduling": "on"},
    "async, scarce": {"max_sequences": 3, "cache_tokens": 44, "max_step_tokens": 7, "async_scheduling": "on"},
    "drafts": {"max_sequences": 3, "speculate": "suffix"},
}
PROMPTS = [prompt(9), prompt(14, seed=1), [*prompt(9), 7, 7]]
NEW, TIMES = 8, 40
NATIVE = pytest.param(
    "native",
    30,
    marks=pytest.mark.skipif(native_library.why_not() is not None, reason=f"the library {native_library.why_not()}"),
)
PROGRAMS = [("eager", 10), NATIVE]
"""With each program, how many of some thousand lines are interrupted, other ones in each shape. A step of the modules
takes ten times as long, and most lines of ours are the same."""


def engine_for(path, **how):
    """One thread: several of torch would wait for each other in every small operation."""
    settings = {"dtype": "float32", "max_length": 40, "block_size": 4, "threads": 1, "speculate": "off"}
    return load(path, **(settings | how))


@pytest.mark.parametrize(("program", "times"), PROGRAMS)
@pytest.mark.parametrize("shape", SHAPES)
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
        with pytest.raises(KeyboardInterrupt), lines(numbers.randrange(counted.count // 2)) as at:
            engine.generate(PROMPTS, **settings)
        for index, one in enumerate(streams):
            texts[index] += sum((piece.tokens for piece in one), ())
        assert texts == wanted[:2], at.where
        check_empty(engine.core)
    assert [done.tokens for done in engine.generate(PROMPTS, **settings)] == wanted


@pytest.mark.parametrize(("program", "times"), PROGRAMS)
@pytest.mark.parametrize("shape", SHAPES)
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


def test_blocks_on_disk_are_not_taken_for_loaded_ones(llama, tmp_path):
    """Interrupted at any line of the step that loads them, the request does not read what lay there before."""
    engine = engine_for(llama, prefix_dir=str(tmp_path))
    core, params = engine.core, SamplingParams(max_new_tokens=3, ignore_eos=True)
    wanted = core.finish([core.request(PROMPTS[1], params)])[0].tokens
    number, ended = 0, False
    while not ended:
        number += 1
        engine.generate(prompt(37, seed=2), max_new_tokens=1)  # other rows in every block
        core.clear_prefix_cache()
        request = core.request(PROMPTS[1], params)
        core.submit(request)
        with pytest.raises(KeyboardInterrupt), lines(number) as at:
            core.step()
            ended = True
            raise KeyboardInterrupt
        while not request.is_done:
            core.step()
        assert request.trackers[0].completion.tokens == wanted, at.where
        core.cancel(request)
    check_empty(engine.core)


def can_take(lock):
    """Whether another thread could take it now. Then that thread keeps it, as threads do that end."""
    taken = []
    thread = Thread(target=lambda: taken.append(lock.acquire(blocking=False)))
    thread.start()
    thread.join()
    return taken == [True]


def test_no_interrupt_keeps_the_lock(llama):
    """Interrupted anywhere in a step, other threads may go on at once, while the interrupt is still being handled."""
    core, params = engine_for(llama).core, SamplingParams(max_new_tokens=3, ignore_eos=True)
    number, ended = 0, False
    while not ended:
        number += 1
        core.clear_prefix_cache()  # so that each step runs the same lines
        request = core.request(PROMPTS[0], params)
        core.submit(request)
        with pytest.raises(KeyboardInterrupt) as interrupt, lines(number) as at:
            core.step()
            ended = True
            raise KeyboardInterrupt
        assert can_take(core.lock), (at.where, interrupt)
        core.lock = RLock()
        core.cancel(request)
    assert at.count > 300, "the last step was not interrupted, and ran to its end"


@pytest.mark.parametrize("stop", ["none of that", "w139"])
def test_the_text_of_another_request_is_whole(stop, tmp_path):
    """Interrupted in the step that decodes it, in the thread of a request of its own."""
    engine = engine_for(save_word_model(tmp_path), max_sequences=3)
    core, params = engine.core, SamplingParams(max_new_tokens=NEW, ignore_eos=True, stop=(stop,), logprobs=0)
    wanted = core.finish([core.request(PROMPTS[0], params)])[0]
    assert (stop in wanted.text) is False
    with lines() as counted:
        engine.generate([PROMPTS[1], PROMPTS[0]], params)
    numbers = random.Random(stop)
    for _ in range(2 * TIMES):
        request = core.request(PROMPTS[0], params)
        core.submit(request)
        with pytest.raises(KeyboardInterrupt), lines(numbers.randrange(counted.count // 2)) as at:
            engine.generate(PROMPTS[1], max_new_tokens=NEW, ignore_eos=True)
            raise KeyboardInterrupt
        while not request.is_done:
            core.step()
        done = request.trackers[0].completion
        assert (done.text, done.tokens) == (wanted.text, wanted.tokens), at.where
        assert len(done.timing.itl_s) == len(done.tokens) - 1 == len(done.logprobs) - 1, at.where
    check_empty(core)


@pytest.mark.parametrize("what", ["logits", "score"])
def test_rows_count_once(what, llama, monkeypatch):
    """Logits and scores, where another request was interrupted in the step that computed them."""
    engine = engine_for(llama, max_sequences=3, max_step_tokens=7)
    core, tokens = engine.core, prompt(17, seed=1)
    step, at = core.step, [0, True]

    def interrupted():
        monkeypatch.setattr(core, "step", step)
        with pytest.raises(KeyboardInterrupt), lines(at[0]):
            engine.generate(PROMPTS[0], max_new_tokens=1)
            at[1] = False
            raise KeyboardInterrupt
        step()

    def use():
        core.clear_prefix_cache()
        return engine.logits(tokens) if what == "logits" else torch.tensor(engine.score(tokens[:9], [tokens[9:]]))

    wanted = use()
    while at[1]:
        at[0] += 9
        monkeypatch.setattr(core, "step", interrupted)  # of the first step, in which the sequence waits
        found = use()
        assert found.shape == wanted.shape and torch.allclose(found, wanted, atol=1e-4), at[0]


@pytest.mark.parametrize("second", ["as the transaction ends", "within the repair"])
def test_a_second_interrupt_leaves_the_repair_to_the_next_call(second, llama, monkeypatch):
    """Ctrl-C twice: what the first one broke is mended before anything else happens."""
    engine = engine_for(llama, max_sequences=3, cache_tokens=44, max_step_tokens=7)
    core, params = engine.core, SamplingParams(max_new_tokens=NEW, ignore_eos=True)
    wanted = engine_for(llama).generate(PROMPTS[0], params).tokens
    with lines() as counted:
        engine.generate(PROMPTS[1], params)
    numbers, leave, recover = random.Random(second), Transaction.__exit__, core.scheduler.recover

    def leave_early(self, kind, *rest):
        if kind is KeyboardInterrupt:
            monkeypatch.setattr(Transaction, "__exit__", leave)
            raise KeyboardInterrupt
        leave(self, kind, *rest)

    def recover_in_part():
        monkeypatch.setattr(core.scheduler, "recover", recover)
        with lines(numbers.randrange(1, 60)):
            recover()

    for _ in range(TIMES):
        request = core.request(PROMPTS[0], params)
        core.submit(request)
        if second == "within the repair":
            monkeypatch.setattr(core.scheduler, "recover", recover_in_part)
        else:
            monkeypatch.setattr(Transaction, "__exit__", leave_early)
        with pytest.raises(KeyboardInterrupt), lines(numbers.randrange(counted.count)) as at:
            engine.generate(PROMPTS[1], params)
            raise KeyboardInterrupt
        monkeypatch.setattr(Transaction, "__exit__", leave)
        monkeypatch.setattr(core.scheduler, "recover", recover)
        while not request.is_done:
            core.step()
        assert request.trackers[0].completion.tokens == wanted, at.where
        check_empty(core)


class Within(Observer):
    """Does something in the midst of a step, in its thread, as a signal handler would."""

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
    assert set(within.errors) == {"a step is being made: a signal handler or an observer cannot use the engine now"}
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
