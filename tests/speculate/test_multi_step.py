"""Several greedy steps in one call of the native program: the same bits, and nothing computed behind an end."""

import pytest
import torch

from tests.empty import check_empty
from tests.engine.test_inflight import PROMPTS
from tests.marks import needs_native
from tests.steps import poison
from tests.tiny_models import KINDS, prompt, save
from tokenmill import load
from tokenmill.errors import ConfigError
from tokenmill.schedule.choosing import Choosing
from tokenmill.schedule.keeps import Kept
from tokenmill.schedule.sequence import UNKNOWN, Sequence
from tokenmill.settings.sampling_params import SamplingParams
from tokenmill.speculate.multi_step import MultiStep


def engine_for(path, **settings):
    """As many steps at a time as the drafts allow, however long they take."""
    settings = {"dtype": "float32", "program": "native", "speculate": "multi_step", "max_sequences": 4, **settings}
    engine = load(path, **settings)
    if settings["speculate"] == "multi_step":
        engine.core.speculation.proposer = MultiStep(clock=lambda: 0.0)
    return engine


def watched(engine):
    """Logits by prompt and position of every row that is computed, and the number of drafts of each step."""
    rows, drafts, run = {}, [], engine.core.loaded.runner.run

    def run_and_keep(plan, fed_R=None):
        (plan, logits_RV), first = run(plan, fed_R), 0
        drafts.append(sum(len(work.drafts) for work in plan.work))
        assert not any(UNKNOWN in work.drafts for work in plan.work)
        for work in plan.work:
            name = tuple(work.sequence.tokens[: work.sequence.num_prompt_tokens])
            last = work.start + work.count
            for index in range(work.num_logits):
                rows[name, last - work.num_logits + index] = logits_RV[first + index].clone()
            first += work.num_logits
        assert first == len(logits_RV)
        return plan, logits_RV

    engine.core.loaded.runner.run = run_and_keep
    return rows, drafts


def same(ours, theirs):
    return [(each.tokens, each.text, each.finish_reason) for each in ours] == [
        (each.tokens, each.text, each.finish_reason) for each in theirs
    ]


@pytest.mark.slow
@needs_native
@pytest.mark.parametrize("family", KINDS)
def test_the_same_bits_as_one_step_at_a_time(family, models):
    path = save(family, models)
    plain, several = engine_for(path, speculate="off"), engine_for(path)
    expected, found = watched(plain), watched(several)
    for count in (1, 2, 3, 17):
        settings = {"max_new_tokens": count, "ignore_eos": True}
        assert same(several.generate(PROMPTS, **settings), plain.generate(PROMPTS, **settings))
    assert max(found[1]) == 4 * len(PROMPTS) and not any(expected[1])
    assert found[0].keys() == expected[0].keys()
    assert all(torch.equal(found[0][key], row_V) for key, row_V in expected[0].items())
    check_empty(several.core)


@needs_native
@pytest.mark.parametrize(
    "settings",
    [
        {"block_size": 3},
        {"block_size": 4, "cache_tokens": 48, "max_step_tokens": 7},
        {"max_step_tokens": 5, "num_draft_tokens": 9},
        {"num_draft_tokens": 1, "threads": 3},
        {"cache_format": "int8", "scheme": "q4", "dtype": "bfloat16"},
    ],
    ids=str,
)
def test_however_it_is_computed(settings, llama):
    alone = {name: value for name, value in settings.items() if name != "num_draft_tokens"}
    plain, several = engine_for(llama, **alone, speculate="off"), engine_for(llama, **settings)
    sizes = {"max_new_tokens": 11, "ignore_eos": True}
    assert same(several.generate(PROMPTS, **sizes), plain.generate(PROMPTS, **sizes))
    check_empty(several.core)


@pytest.mark.slow
@needs_native
@pytest.mark.parametrize("place", range(2, 9))
def test_nothing_is_computed_behind_an_end(place, llama):
    plain, several = engine_for(llama, speculate="off"), engine_for(llama)
    text = plain.generate(PROMPTS[0], max_new_tokens=12, ignore_eos=True).tokens
    settings = {"max_new_tokens": 12, "stop_token_ids": [text[place]]}
    rows, drafts = watched(several)
    expected = plain.generate(PROMPTS, **settings)
    assert same(several.generate(PROMPTS, **settings), expected)
    assert max(drafts) > 0
    check_empty(several.core)
    for one, done in zip(PROMPTS, expected, strict=True):
        computed = [position for name, position in rows if name == tuple(one)]
        assert max(computed) == len(one) + len(done.tokens) - 2  # the last token is fed to nobody


@needs_native
def test_company(llama):
    """Who samples, asks for figures or has just come makes everybody go step by step; all say what they say alone."""
    several, plain = engine_for(llama), engine_for(llama, speculate="off")
    _, drafts = watched(several)
    for other in ({"temperature": 0.8, "seed": 3}, {"logprobs": 2}, {"min_new_tokens": 3}, {"frequency_penalty": 0.5}):
        drafts.clear()
        first = several.stream(PROMPTS[0], max_new_tokens=20, ignore_eos=True)
        tokens = next(first).tokens
        second = several.stream(PROMPTS[1], max_new_tokens=8, ignore_eos=True, **other)
        guest = next(second).tokens
        assert not any(drafts)
        guest += sum((piece.tokens for piece in second), ())
        assert guest == plain.generate(PROMPTS[1], max_new_tokens=8, ignore_eos=True, **other).tokens
        tokens += sum((piece.tokens for piece in first), ())
        assert tokens == plain.generate(PROMPTS[0], max_new_tokens=20, ignore_eos=True).tokens
        assert any(drafts)


@needs_native
def test_interrupted_and_gone_on_with(llama, monkeypatch):
    several, plain = engine_for(llama), engine_for(llama, speculate="off")
    run, calls = several.core.loaded.program.run, []

    def run_once(step):
        calls.append(step.has_unknown)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return run(step)

    monkeypatch.setattr(several.core.loaded.program, "run", run_once)
    stream = several.stream(PROMPTS[2], max_new_tokens=15, ignore_eos=True)
    tokens = next(stream).tokens + next(stream).tokens
    session = several.session(PROMPTS[1])
    with pytest.raises(KeyboardInterrupt):
        for piece in stream:
            tokens += piece.tokens
    assert calls[-1]
    wanted = plain.generate(PROMPTS[1], max_new_tokens=15, ignore_eos=True).tokens
    assert session.generate(max_new_tokens=15, ignore_eos=True).tokens == wanted
    session.close()
    check_empty(several.core)


@needs_native
def test_numbers_that_are_none_end_their_own_text(llama):
    """Behind such a row something is computed as well, and nobody sees it."""
    several = engine_for(llama)
    wanted = several.generate(PROMPTS[1], max_new_tokens=9, ignore_eos=True).tokens
    first = len(PROMPTS[0])
    poison(several, lambda work, row: work.sequence.tokens[:first] == PROMPTS[0] and work.start + row == first + 1)
    good = several.stream(PROMPTS[1], max_new_tokens=9, ignore_eos=True)
    tokens = next(good).tokens
    with pytest.raises(Exception, match="not finite"):
        several.generate(PROMPTS[0], max_new_tokens=9, ignore_eos=True)
    assert tokens + sum((piece.tokens for piece in good), ()) == wanted
    check_empty(several.core)


def test_no_more_together_than_nobody_minds():
    """25 ms, by what the last steps took; nothing while that is not known or somebody else has other needs."""
    now = [0.0]
    proposer = MultiStep(clock=lambda: now[0])
    decoding = Sequence(1, [5, 6], 1, 30, kept=Kept(1))

    def ask(passed_s, *sequences):
        now[0] += passed_s
        return {number: len(drafts) for number, drafts in proposer.propose(sequences, 4, {}).items()}

    assert ask(9.0, decoding) == {}
    assert ask(0.010, decoding) == {1: 1}
    assert ask(0.024, decoding) == {1: 1}
    assert ask(0.012, decoding) == {1: 3}
    assert ask(0.004, decoding) == {1: 4}
    assert ask(0.500, decoding) == {}
    assert ask(0.001, decoding) == {1: 4}
    many = [Sequence(number, [5, 6], 1, 30, kept=Kept(1)) for number in range(13)]
    assert ask(0.001, *many) == dict.fromkeys(range(13), 1)
    other = Sequence(2, prompt(9, seed=1), 9, 30)
    assert ask(0.001, decoding, other) == {}, "it has its prompt before it"
    assert ask(0.001, decoding) == {}
    sampled = Sequence(3, [1, 2], 1, 30, Choosing(SamplingParams(temperature=0.5)), kept=Kept(1))
    assert ask(0.001, sampled) == {}
    assert ask(0.001) == {}


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"program": "eager"}, "off"),
        ({"cache": False}, "off"),
        ({"async_scheduling": "on"}, "off"),
        pytest.param({"program": "native"}, "adaptive", marks=needs_native),
        pytest.param({"program": "native", "speculate": "off"}, "off", marks=needs_native),
    ],
    ids=str,
)
def test_where_it_is_taken_by_itself(settings, wanted, llama):
    assert load(llama, **settings).config.speculate == wanted


@needs_native
def test_auto_has_the_number_of_drafts_of_the_proposer_that_it_becomes(llama):
    by_name = load(llama, program="native", speculate="adaptive").config.num_draft_tokens
    assert load(llama, program="native").config.num_draft_tokens == by_name
    assert load(llama, program="native", num_draft_tokens=4).config.num_draft_tokens == 4


def test_other_programs_cannot(llama):
    with pytest.raises(ConfigError, match=r"speculate = 'multi_step' .*native"):
        load(llama, program="eager", speculate="multi_step")
    with pytest.raises(ConfigError, match="cache is off"):
        load(llama, cache=False, speculate="multi_step")
