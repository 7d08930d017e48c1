"""Benchmarks: points and their names, steps sorted into phases, figures that reconcile on a scripted clock."""

from dataclasses import replace

import pytest

import tokenmill
from tests.marks import needs_native
from tests.tiny_models import VOCABULARY
from tokenmill.bench.figures import figures_of, is_noisy
from tokenmill.bench.points import Point, parse_counts, parse_tests, sweep
from tokenmill.bench.run import Measured, chunk_for, make_prompts, measure_point, shared_gaps, take_sample
from tokenmill.engine.outputs import hash_tokens
from tokenmill.errors import ConfigError
from tokenmill.measure.recorder import record
from tokenmill.speculate.multi_step import MultiStep


class Clock:
    """Every reading is a little later than the one before, by amounts that differ."""

    def __init__(self) -> None:
        self.now_s, self.readings = 100.0, 0

    def __call__(self) -> float:
        self.readings += 1
        self.now_s += 0.001 * (1 + self.readings % 7)
        return self.now_s


def sample(path, point, **settings):
    engine = tokenmill.load(path, max_length=128, max_sequences=point.batch, prefix_cache=False, **settings)
    if engine.config.speculate == "multi_step":  # as many in each call of both runs, however long they take
        engine.core.speculation.proposer = MultiStep(clock=lambda: 0.0)
    clock = Clock()
    engine.core.loop.clock = clock
    with record(engine, clock) as recorder:
        done = engine.generate(make_prompts(point, VOCABULARY), max_new_tokens=max(point.new, 1), ignore_eos=True)
    clock = engine.core.loop.clock = Clock()
    return take_sample(engine, point, make_prompts(point, VOCABULARY), clock), recorder.steps, done


# ---- points


def test_points_are_named_as_people_name_them():
    assert [Point(*test).name for test in parse_tests("pp512, tg128,pp64+tg16")] == ["pp512", "tg128", "pp64+tg16"]
    assert Point(0, 128, batch=4, depth=1000).title == "tg128 @ d1000 x4"
    assert Point(0, 128).num_fed == 1, "a sequence starts from one token"
    assert Point(64, 16, depth=100).length == 180


@pytest.mark.parametrize("text", ["pp", "tg-1", "xx12", "", "pp0", "pp512;tg1"])
def test_a_test_that_is_none_is_refused_by_name(text):
    with pytest.raises(ConfigError, match="pp512,tg128"):
        parse_tests(text)


@pytest.mark.parametrize("text", ["", "0", "1,,2", "-1", "1.5", "many"])
def test_counts_are_whole_numbers(text):
    with pytest.raises(ConfigError, match="--batch"):
        parse_counts(text, "--batch")


def test_a_sweep_is_the_product():
    points = sweep([1, 2], [8, 16], [4])
    assert [(p.batch, p.prompt, p.new) for p in points] == [(1, 8, 4), (1, 16, 4), (2, 8, 4), (2, 16, 4)]


def test_prompts_differ_within_a_batch_and_between_repetitions_and_not_between_runs():
    point = Point(9, 1, batch=3)
    first = make_prompts(point, VOCABULARY)
    assert first == make_prompts(point, VOCABULARY)
    assert not {tuple(p) for p in first} & {tuple(p) for p in make_prompts(point, VOCABULARY, 1)}
    assert len({tuple(p) for p in first}) == 3
    assert all(len(p) == 9 and max(p) < VOCABULARY for p in first)


# ---- phases


@pytest.mark.parametrize(
    "point", [Point(24, 6), Point(0, 5), Point(40, 0), Point(17, 9, batch=3), Point(0, 7, depth=30)]
)
def test_the_numbers_reconcile(llama, point):
    """First token + gaps = total; phases add up to the total; rates times seconds are tokens."""
    taken, steps, done = sample(llama, point, max_step_tokens=16, speculate="off")
    for completion in done:
        timing = completion.timing
        assert timing.ttft_s + sum(timing.itl_s) == pytest.approx(timing.total_s)
        assert len(timing.itl_s) == len(completion.tokens) - 1
    assert sum(step.num_new for step in steps) == sum(len(completion.tokens) for completion in done)
    assert sum(step.num_tokens for step in steps) == point.batch * (point.num_fed + max(point.new, 1) - 1)
    drained = taken.total_s - taken.prefill_s - taken.decode_s
    assert drained == pytest.approx(0, abs=1e-9) if point.batch == 1 and not point.depth else drained >= -1e-9
    figures = figures_of(Measured(point, samples=[taken], probes_gb_s=[1.0]))
    if point.prompt:
        assert figures["prefill_tok_s"] * taken.prefill_s == pytest.approx(taken.prefill_tokens)
    if taken.decode_steps:
        assert figures["decode_tok_s"] * taken.decode_s == pytest.approx(taken.decode_tokens)
        assert figures["decode_ms"] * taken.decode_steps == pytest.approx(1e3 * taken.decode_s)
        assert figures["decode_ms_per_token"] * figures["decode_tok_s"] == pytest.approx(1e3)
        assert figures["accepted_per_step"] == 1
    assert figures["tok_s"] * taken.total_s == pytest.approx(point.batch * max(point.new, 1))
    assert figures["sequences_s"] * taken.total_s == pytest.approx(point.batch)


def test_a_prefill_that_was_not_computed_is_not_reported(llama):
    """A prefix cache would have given thousands of tokens a second for nothing."""
    point = Point(64, 2)
    engine = tokenmill.load(llama, max_length=128, block_size=16)
    prompts = make_prompts(point, VOCABULARY)
    assert take_sample(engine, point, prompts, Clock()).prefill_tokens == 64
    with pytest.raises(RuntimeError, match="prefill fed 16 of 64 tokens"):
        take_sample(engine, point, prompts, Clock())


def test_decode_counts_steps_of_the_whole_batch_only(llama):
    point = Point(17, 9, batch=3)
    taken, steps, _ = sample(llama, point, max_step_tokens=16, speculate="off")
    whole = [step for step in steps if step.is_decode and step.num_sequences == 3]
    assert taken.decode_steps == len(whole) < 8, "prompts end in different steps, so sequences do too"
    assert taken.decode_tokens == 3 * len(whole)


@pytest.mark.parametrize("speculate", [pytest.param("multi_step", marks=needs_native), "off"])
def test_of_calls_with_several_steps_only_whole_ones_count(llama, speculate):
    """The last calls have sequences that end within them."""
    taken, steps, _ = sample(llama, Point(17, 9, batch=3), max_step_tokens=18, speculate=speculate)
    whole = [step for step in steps if step.is_decode and step.num_new == 3 * step.num_passes]
    assert taken.decode_steps == sum(step.num_passes for step in whole) > 0
    assert taken.decode_tokens == 3 * taken.decode_steps


@pytest.mark.parametrize(
    ("gaps_s", "wanted"),
    [
        ((), []),
        ((6.0, 7.0), [6.0, 7.0]),
        ((18.0, 0.0, 0.0, 8.0, 0.0, 5.0), [6.0, 6.0, 6.0, 4.0, 4.0, 5.0]),
        ((0.0, 4.0, 0.0), [0.0, 2.0, 2.0]),
    ],
)
def test_tokens_that_came_together_share_their_time(gaps_s, wanted):
    assert shared_gaps(gaps_s) == wanted


def test_prefill_at_a_depth_leaves_the_depth_out(llama):
    point = Point(16, 0, depth=50)
    chunk = chunk_for(point, 512)
    taken, steps, _ = sample(llama, point, max_step_tokens=chunk)
    assert [step.num_tokens for step in steps] == [50, 16]
    assert taken.prefill_tokens == 16
    assert taken.prefill_s == pytest.approx(steps[1].ended_s - steps[0].ended_s, rel=1)


def test_without_a_cache_the_steps_after_the_first_token_are_decode(llama):
    taken, steps, _ = sample(llama, Point(20, 5), cache=False)
    assert [step.is_decode for step in steps] == [False, True, True, True, True]
    assert [step.num_tokens for step in steps] == [20, 21, 22, 23, 24]
    assert taken.decode_tokens == 4


@pytest.mark.parametrize("speculate", ["auto", "suffix"])
def test_speculation_counts_what_was_accepted(llama, speculate):
    point = Point(30, 40)
    taken, _, done = sample(llama, point, speculate=speculate)
    assert taken.decode_tokens == len(done[0].tokens) - 1
    assert taken.decode_steps <= taken.decode_tokens


def test_the_hash_is_that_of_the_completion(llama):
    taken, _, done = sample(llama, Point(12, 8))
    assert taken.hash == done[0].hash
    both, _, two = sample(llama, Point(12, 8, batch=2))
    assert both.hash == hash_tokens(two[0].tokens + two[1].tokens)


def test_recording_stops(llama):
    engine = tokenmill.load(llama, max_length=64)
    with record(engine) as recorder:
        engine.generate([1, 2, 3], max_new_tokens=2)
    assert len(recorder.steps) == 2
    engine.generate([1, 2, 3], max_new_tokens=2)
    assert len(recorder.steps) == 2


def test_every_repetition_is_probed_and_reported(llama):
    engine = tokenmill.load(llama, max_length=64, prefix_cache=False)
    probes, runs = iter([30.0, 60.0, 31.0]), []
    measured = measure_point(
        engine, Point(8, 4), 3, probe=lambda: next(probes), peak=lambda: 7, advance=lambda: runs.append(1)
    )
    assert measured.probes_gb_s == [30.0, 60.0, 31.0] and is_noisy(measured)
    assert len(measured.samples) == 3 and len(runs) == 5 and measured.peak_bytes == 7
    assert len({sample.hash for sample in measured.samples}) == 3, "each has prompts of its own"


def test_a_point_says_whether_its_first_prompts_give_the_same_tokens_again(llama, monkeypatch):
    engine = tokenmill.load(llama, max_length=64, prefix_cache=False)
    assert measure_point(engine, Point(8, 12, batch=1), 2, probe=lambda: 1.0).repeats
    samples = [
        replace(sample(llama, Point(8, 4))[0], tokens=tokens) for tokens in ((9,) * 4, (1, 2, 3, 4), (1, 2, 3, 5))
    ]
    monkeypatch.setattr("tokenmill.bench.run.take_sample", lambda *_: samples.pop(0))
    assert not measure_point(engine, Point(8, 4), 1, probe=lambda: 1.0).repeats
