"""A draft model: texts stay as they are, its sequences follow those of the engine, and go when they go."""

import gc
import json
import shutil
from itertools import product

import pytest
from safetensors.torch import load_file, save_file

from tests.empty import check_empty
from tests.steps import num_fed, plans_of
from tests.tiny_models import prompt, save
from tokenmill import load
from tokenmill.engine.draft import check_vocabulary
from tokenmill.errors import CapacityError, ConfigError

PROPOSER = {"speculate": "draft_model"}
PROMPTS = [prompt(length, seed=8) for length in (4, 9, 17)]
SAMPLING = {
    "greedy": {},
    "sampled": {"temperature": 0.8, "seed": 5},
    "penalties": {"temperature": 0.7, "seed": 6, "repetition_penalty": 1.2, "frequency_penalty": 0.5, "logprobs": 1},
    "end forbidden": {"min_new_tokens": 9, "temperature": 0.5, "seed": 2},
    "bias": {"logit_bias": {3: 2.0, 7: -5.0}},
}
SHAPES = {
    "alone": {},
    "batch": {"max_sequences": 3},
    "chunks": {"max_sequences": 3, "max_step_tokens": 10, "block_size": 4},
    "scarce": {"max_sequences": 3, "block_size": 4, "cache_tokens": 48},
}


@pytest.fixture(scope="module", params=["q8", "gpt2"])
def draft(request, models):
    """The same model with smaller weights, and one that seldom agrees."""
    return request.param if request.param == "q8" else str(save(request.param, models))


@pytest.fixture(scope="module")
def plain(llama):
    return load(llama, dtype="float32", speculate="off", max_sequences=3)


def followers(engine):
    return engine.core.speculation.proposer._draft._core


def texts(completions):
    return [(each.tokens, each.finish_reason) for each in completions]


QUICK = ("chunks", "penalties")
EVERYTHING = [
    pytest.param(*case, marks=[] if case[0] == "native" and set(case) & set(QUICK) else pytest.mark.long)
    for case in product(("native", "eager"), SAMPLING, SHAPES)
]
"""`make test-slow` tries one shape with all sampling, and one sampling with all shapes."""


@pytest.mark.slow
@pytest.mark.parametrize(("program", "sampling", "shape"), EVERYTHING)
def test_the_text_stays_as_it_is(program, sampling, shape, draft, llama, plain):
    engine = load(
        llama, dtype="float32", program=program, **PROPOSER, draft_model=draft, num_draft_tokens=3, **SHAPES[shape]
    )
    settings = {"max_new_tokens": 15, **SAMPLING[sampling]}
    assert texts(engine.generate(PROMPTS, **settings)) == texts(plain.generate(PROMPTS, **settings))
    stats = engine.core.speculation.stats
    assert stats.num_drafted > 10 and (draft != "q8" or stats.num_accepted > stats.num_drafted / 2)
    check_empty(engine.core)
    gc.collect()
    check_empty(followers(engine))


def test_it_draws_with_the_texts_own_numbers(llama):
    """The same weights agree always, at any temperature."""
    engine = load(llama, dtype="float32", program="eager", draft_model=str(llama), max_sequences=3)
    engine.generate(PROMPTS, max_new_tokens=20, temperature=1.0, seed=3)
    stats = engine.core.speculation.stats
    assert stats.num_accepted > 0.95 * stats.num_drafted > 0  # a text that ends within its drafts leaves some


@pytest.mark.parametrize("place", range(1, 8))
def test_an_end_within_the_drafts(place, draft, llama, plain):
    engine = load(llama, dtype="float32", **PROPOSER, draft_model=draft)
    token = plain.generate(PROMPTS[0], max_new_tokens=12).tokens[place]
    settings = {"max_new_tokens": 12, "stop_token_ids": [token]}
    assert texts([engine.generate(PROMPTS[0], **settings)]) == texts([plain.generate(PROMPTS[0], **settings)])


def test_sessions_that_are_rewound_edited_and_forked(draft, llama, plain):
    engine = load(llama, dtype="float32", **PROPOSER, draft_model=draft, max_sequences=2, block_size=4)
    told = []
    for each in (plain, engine):
        session = each.session(PROMPTS[1])
        said = [session.generate(max_new_tokens=9).tokens]
        session.rewind(12)
        said.append(session.generate(max_new_tokens=7, temperature=0.8, seed=4).tokens)
        other = session.fork()
        session.edit(5, [1, 2, 3])
        said += [each.generate(max_new_tokens=8).tokens for each in (session, other, session)]
        told.append(said)
    assert told[0] == told[1]
    del session, other
    gc.collect()
    check_empty(engine.core)
    check_empty(followers(engine))


def test_rows_that_are_known_are_not_computed_again(llama):
    engine = load(llama, dtype="float32", **PROPOSER, draft_model="q4", num_draft_tokens=3)
    plans = plans_of(followers(engine))
    engine.generate(PROMPTS[2], max_new_tokens=12, ignore_eos=True)
    fed = list(map(num_fed, plans))
    assert fed[0] == len(PROMPTS[2]) + 1  # the prompt and the first token
    assert max(fed[1:]) <= 2 + 3  # what was not known of the last pass, and drafts found in the same call


def test_nobody_waits_for_the_long_prompt_of_another(llama, plain):
    """Each step of the engine makes one step of the draft model for it, while the others get drafts."""
    shape = {"max_sequences": 2, "max_step_tokens": 10, "block_size": 4}
    engine = load(llama, dtype="float32", **PROPOSER, draft_model="q8", num_draft_tokens=3, **shape)
    drafts, steps = followers(engine).loaded.runner, engine.core.loaded.runner
    run_drafts, run, fed = drafts.run, steps.run, [[]]  # tokens of each step of the draft model, by the engine's step
    drafts.run = lambda plan, *more: fed[-1].append(sum(w.count for w in plan.work)) or run_drafts(plan, *more)
    steps.run = lambda plan, *more: fed.append([]) or run(plan, *more)
    both = [PROMPTS[0], prompt(45, seed=2)]
    assert texts(engine.generate(both, max_new_tokens=30)) == texts(plain.generate(both, max_new_tokens=30))
    assert sum(10 in counts for counts in fed) >= 4  # the chunks of the long prompt
    assert all(sum(count > 8 for count in counts) <= 1 for counts in fed)


def test_a_text_longer_than_the_draft_model_takes_goes_on_without(llama, tmp_path, plain):
    short = shutil.copytree(llama, tmp_path / "short")
    config = json.loads((short / "config.json").read_text())
    (short / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 32}))
    engine = load(llama, dtype="float32", **PROPOSER, draft_model=str(short), max_length=64)
    assert followers(engine).loaded.config.max_length == 32
    assert engine.generate(PROMPTS[0], max_new_tokens=50).tokens == plain.generate(PROMPTS[0], max_new_tokens=50).tokens
    assert engine.core.speculation.stats.num_drafted > 0


def counted_calls(engine):
    """Appends to the list that is returned at each call of the draft model."""
    draft, calls = engine.core.speculation.draft, []
    ask = draft.continuations
    draft.continuations = lambda texts, limit: calls.append(len(texts)) or ask(texts, limit)
    return calls


def test_a_draft_model_that_has_nothing_to_say_is_hardly_asked(llama, tmp_path, plain):
    """The controller tries it at the beginning and then seldom."""
    short = shutil.copytree(llama, tmp_path / "short")
    config = json.loads((short / "config.json").read_text())
    (short / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 32}))
    engine = load(llama, dtype="float32", speculate="adaptive", draft_model=str(short), max_length=128)
    calls = counted_calls(engine)
    long = prompt(40, seed=3)
    assert engine.generate(long, max_new_tokens=80).tokens == plain.generate(long, max_new_tokens=80).tokens
    assert len(calls) < 10


@pytest.mark.parametrize("speculate", ["draft_model", "adaptive"])
def test_a_draft_model_that_fails_is_left_and_that_is_said_once(speculate, llama, tmp_path, plain, caplog):
    broken = shutil.copytree(llama, tmp_path / "broken")
    weights = load_file(broken / "model.safetensors")
    weights["lm_head.weight"][:] = float("nan")
    save_file(weights, broken / "model.safetensors", {"format": "pt"})
    engine = load(llama, dtype="float32", speculate=speculate, draft_model=str(broken), max_sequences=3)
    plans = plans_of(followers(engine) if speculate == "draft_model" else engine.core.speculation.draft._core)
    assert texts(engine.generate(PROMPTS, max_new_tokens=30)) == texts(plain.generate(PROMPTS, max_new_tokens=30))
    assert sum(len(plan.work) for plan in plans) <= 3  # each text once
    assert caplog.text.count("logits that are no numbers") == 1


@pytest.mark.parametrize("speculate", ["draft_model", "adaptive"])
def test_nothing_is_held_when_all_has_ended(speculate, llama):
    engine = load(llama, dtype="float32", speculate=speculate, draft_model="q8", max_sequences=3)
    engine.generate(PROMPTS, max_new_tokens=9)
    gc.collect()
    check_empty(engine.core.speculation.draft._core)


@pytest.mark.parametrize("lengths", [[66] * 3, [58] * 3, [8] * 10], ids=str)
def test_what_fits_the_engine_fits_the_draft_model(lengths, llama):
    shape = {"block_size": 4, "cache_tokens": 256, "max_sequences": 10, "num_draft_tokens": 3}
    engine = load(llama, dtype="float32", **PROPOSER, draft_model="q8", **shape)
    assert followers(engine).loaded.config.block_size == 4
    prompts = [prompt(length, seed=number) for number, length in enumerate(lengths)]
    done = engine.generate(prompts, max_new_tokens=16, ignore_eos=True)
    plain = load(llama, dtype="float32", speculate="off", max_sequences=10)
    assert texts(done) == texts(plain.generate(prompts, max_new_tokens=16, ignore_eos=True))


def test_an_interrupt_within_the_drafting(llama, plain):
    engine = load(llama, dtype="float32", **PROPOSER, draft_model="q4")
    core, wanted = followers(engine), plain.generate(PROMPTS[1], max_new_tokens=12).tokens
    run = core.loaded.runner.run

    def interrupted(plan, *more):
        core.loaded.runner.run = run
        raise KeyboardInterrupt

    engine.generate(PROMPTS[0], max_new_tokens=3)
    core.loaded.runner.run = interrupted
    with pytest.raises(KeyboardInterrupt):
        engine.generate(PROMPTS[1], max_new_tokens=12)
    assert engine.generate(PROMPTS[1], max_new_tokens=12).tokens == wanted
    check_empty(engine.core)
    gc.collect()
    check_empty(core)


def test_closing_the_engine_closes_it(llama):
    engine = load(llama, **PROPOSER, draft_model="q4")
    core = followers(engine)
    assert engine.memory["draft_bytes"] > 0 and "draft_bytes" not in load(llama).memory
    engine.close()
    assert not hasattr(core.loaded, "program")


def test_its_memory_is_free_when_the_engine_is_closed_between_two_steps(llama):
    """At once, not after what was posted before: the thread that closes the engine is the draft model's too."""
    engine = load(llama, **PROPOSER, draft_model="q4")
    core = followers(engine)
    loaded = engine.core.loaded, core.loaded
    left = engine.core.call(lambda: (engine.close(), [hasattr(each, "program") for each in loaded])[1])
    assert left == [False, False]


# ---- what is refused


class Spelled:
    def __init__(self, *texts):
        self.spellings = dict(enumerate(texts))


def test_the_first_token_that_differs_is_named():
    check_vocabulary("x", Spelled("a", "b"), Spelled("a", "b"), (2, 2))
    with pytest.raises(ConfigError, match=r"draft_model = 'x' .*: token 1 is 'c' there and 'b' here"):
        check_vocabulary("x", Spelled("a", "c", "z"), Spelled("a", "b", "d"), (3, 3))
    with pytest.raises(ConfigError, match=r"token 2 is missing there and 'd' here"):
        check_vocabulary("x", Spelled("a", "b"), Spelled("a", "b", "d"), (3, 3))
    check_vocabulary("x", None, Spelled("a"), (5, 5))
    with pytest.raises(ConfigError, match=r"its own has 4 tokens, this model's 5"):
        check_vocabulary("x", None, None, (4, 5))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"speculate": "draft_model"}, "draft_model = None is not allowed: a model, because speculate is"),
        ({"speculate": "suffix", "draft_model": "q4"}, "none, because speculate is 'suffix'"),
        ({"cache": False, "draft_model": "q4"}, "none, because cache is off"),
        ({"async_scheduling": "on", "draft_model": "q4"}, "auto or off, because"),
    ],
    ids=str,
)
def test_settings_that_do_not_go_together(settings, said, llama):
    with pytest.raises(ConfigError, match=said):
        load(llama, **settings)


def test_one_that_does_not_fit_in_memory(llama, monkeypatch):
    monkeypatch.setattr("tokenmill.engine.load.free_bytes", lambda _: 1000)
    with pytest.raises(CapacityError, match=r"memory for the draft model q4: .* needed, 1\.0 kB available"):
        load(llama, **PROPOSER, draft_model="q4")
