"""A record of each step: four phases of one clock, and what was in it."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from tokenmill.measure.recorder import Recorder, StepRecord, record
from tokenmill.schedule.sequence import UNKNOWN, Plan


def work(number, tokens, prompt, count, drafts=()):
    sequence = SimpleNamespace(id=number, tokens=list(range(tokens)), num_prompt_tokens=prompt)
    return SimpleNamespace(sequence=sequence, count=count, drafts=drafts)


def run(recorder, planned, computed=None, grown=()):
    """The phases of one step; `grown` says how many tokens each sequence gets."""
    recorder.phase("begin", None)
    recorder.phase("plan", Plan(planned))
    recorder.phase("run", None)
    recorder.phase("sample", None if computed is None else Plan(computed))
    for each, more in zip(planned, grown):
        each.sequence.tokens += [0] * more
    recorder.phase("deliver", None)


@pytest.fixture
def recorder():
    times = iter(range(100))
    return Recorder(lambda: float(next(times)))


def test_a_prefill(recorder):
    run(recorder, [work(1, 5, 5, 5)], grown=[1])
    assert recorder.steps == [StepRecord(0.0, 1.0, 2.0, 3.0, 4.0, 5, 1, 1, False, 1)]
    assert recorder.steps[0].total_s == 4.0
    assert StepRecord(0.0, 1.0, 2.0, 3.0, 4.0, 5, 1, 1, False).num_passes == 1


def test_decoding_needs_the_first_token_of_all(recorder):
    run(recorder, [work(1, 6, 5, 1), work(2, 9, 5, 1)], grown=[1, 1])
    run(recorder, [work(1, 6, 5, 1), work(2, 5, 5, 3)], grown=[1, 0])
    assert [(step.is_decode, step.num_tokens, step.num_new, step.num_sequences) for step in recorder.steps] == [
        (True, 2, 2, 2),
        (False, 4, 1, 2),
    ]
    assert recorder.steps[1].begun_s == 5.0


def test_drafts_that_the_program_finds_take_passes(recorder):
    run(recorder, [work(1, 6, 5, 4, [UNKNOWN] * 3), work(2, 6, 5, 4, [UNKNOWN] * 3)], grown=[3, 2])
    run(recorder, [work(1, 6, 5, 4, [UNKNOWN] * 3)], grown=[0])
    run(recorder, [work(1, 6, 5, 4, [1, 2, 3])], grown=[3])
    assert [step.num_passes for step in recorder.steps] == [3, 1, 1]


def test_what_was_computed_counts_and_not_what_was_planned(recorder):
    """The phase "sample" has the plan without drafts that were not computed."""
    planned = [work(1, 6, 5, 4, [1, 2, 3])]
    computed = [SimpleNamespace(sequence=planned[0].sequence, count=2, drafts=[1])]
    run(recorder, planned, computed, [1])
    assert (recorder.steps[0].num_tokens, recorder.steps[0].num_new) == (2, 1)


def test_an_engine_is_observed_inside_alone():
    seen = []

    @contextmanager
    def observed_by(observer):
        seen.append(observer)
        yield
        seen.append("end")

    engine = SimpleNamespace(core=SimpleNamespace(observed_by=observed_by))
    with record(engine, lambda: 7.0) as recorder:
        assert seen == [recorder] and recorder.steps == []
        run(recorder, [work(1, 5, 5, 5)])
        assert recorder.steps[0].ended_s == 7.0
    assert seen == [recorder, "end"]
