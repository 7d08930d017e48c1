"""Limits of thinking: the text is the model's own up to the limit, and its own again behind the mark."""

import json
import re
from functools import cache

import pytest

from tests.byte_model import THINK, save_byte_model, save_thinking_model
from tokenmill import ConfigError, SamplingParams, load
from tokenmill.text.thinking import Thinking
from tokenmill.text.tools.grammar import think_first
from tokenmill.text.tools.lark import Lark

BEGIN, END = THINK
PROMPTS = ["hello", "Once upon a time"]
SETTINGS = {"greedy": {"ignore_eos": True}, "drawn": {"ignore_eos": True, "temperature": 1.0, "seed": 3}}
PROGRAMS = {
    "eager": {"program": "eager", "speculate": "off"},
    "eager, async": {"program": "eager", "async_scheduling": "on"},
    "native, several steps": {"program": "native", "speculate": "multi_step"},
    "native, adaptive": {"program": "native", "speculate": "adaptive"},
    "native, draft model": {"program": "native", "speculate": "draft_model", "draft_model": "q8"},
}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return str(save_thinking_model(tmp_path_factory.mktemp("thinks")))


OWN = {"dtype": "float32", "threads": 1, "max_length": 256, "max_sequences": 2}


def engine_for(path, **how):
    return load(path, **{**OWN, **how})


@pytest.fixture(scope="module")
def plain(path):
    return engine_for(path, program="eager", speculate="off")


@pytest.fixture(scope="module")
def alone(plain):
    """Gives the tokens of a text that is computed alone, once for the programs."""
    known = {}

    def find(tokens, **given):
        key = repr((tokens, given))
        if key not in known:
            known[key] = plain.generate(tokens, **given).tokens
        return known[key]

    return find


@pytest.fixture
def shared(engine_of, path):
    """Gives the engine of a program."""
    return lambda program: engine_of(path, **OWN, **PROGRAMS[program])


@cache
def free_text(plain, prompt, count, how):
    return plain.generate(prompt, max_new_tokens=count, **SETTINGS[how]).tokens


def limited(plain, prompt, budget, count, how, opening=()):
    """What the model says with a limit, by two calls without one."""
    prompt = (*plain.encode(prompt), *opening)
    thought = free_text(plain, prompt, budget, how) if budget else ()
    if END in thought:
        return free_text(plain, prompt, count, how)
    return (*thought, END, *free_text(plain, (*prompt, *thought, END), count - budget - 1, how))


@pytest.mark.parametrize("how", SETTINGS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_text_with_a_limit(program, how, shared, plain):
    engine, settings = shared(program), SETTINGS[how]
    cases = [(prompt, budget) for prompt in PROMPTS for budget in (0, 1, 7, 19)]
    core = engine.core
    requests = []
    for prompt, budget in cases:
        params = SamplingParams(max_new_tokens=24, thinking_budget=budget, **settings)
        requests += [core.request([*engine.encode(prompt), BEGIN], params)]
    free = core.request([1, 2, 3], SamplingParams(max_new_tokens=24, **settings))
    *found, other = core.finish([*requests, free])
    for (prompt, budget), done in zip(cases, found, strict=True):
        assert done.tokens == limited(plain, prompt, budget, 24, how, (BEGIN,)), (prompt, budget)
    assert other.tokens == free_text(plain, (1, 2, 3), 24, how)


def test_a_model_that_begins_the_thought_itself_or_does_not_think(plain):
    favour = {"logit_bias": {BEGIN: 99.0}, "max_new_tokens": 2, "ignore_eos": True}
    assert plain.generate("hello", thinking_budget=0, **favour).tokens == (BEGIN, END)
    free = plain.generate("hello", max_new_tokens=9, ignore_eos=True)
    assert plain.generate("hello", max_new_tokens=9, ignore_eos=True, thinking_budget=2).tokens == free.tokens


@pytest.mark.parametrize(
    ("program", "budget"),
    [
        *(("native, adaptive", budget) for budget in (0, 1, 5, 40)),
        # The texts of the other program are computed by eager.
        *(("eager", budget) for budget in (0, 40)),
        *(pytest.param("eager", budget, marks=pytest.mark.long) for budget in (1, 5)),
    ],
)
def test_a_constraint_begins_behind_the_thought(program, budget, shared, alone):
    engine = shared(program)
    schema = {"type": "array", "items": {"type": "boolean"}, "maxItems": 4}
    for settings in ({}, {"temperature": 1.0, "seed": 5}):
        given = {"max_new_tokens": 90, "json_schema": schema, "thinking_budget": budget, **settings}
        prompts = [[*engine.encode(prompt), BEGIN] for prompt in PROMPTS]
        for prompt, done in zip(prompts, engine.generate(prompts, **given), strict=True):
            thought, rest = done.tokens[: done.tokens.index(END)], done.tokens[done.tokens.index(END) + 1 :]
            assert len(thought) <= budget + 3  # which end the character that the limit is in
            bytes(thought).decode()
            assert isinstance(json.loads(bytes(rest[:-1])), list) and rest[-1] == 256
            assert done.tokens == alone(prompt, **given)
        for done in engine.generate(PROMPTS, **given):  # the thought is not begun, and the model need not
            answer = done.tokens[done.tokens.index(END) + 1 if END in done.tokens else 0 : -1]
            assert isinstance(json.loads(bytes(answer)), list)


def test_without_a_limit_a_constraint_begins_behind_an_open_thought_alone(plain):
    given = {"max_new_tokens": 60, "regex": "[0-9]{3}", "logit_bias": {END: 99.0}}
    assert plain.generate([*plain.encode("hello"), BEGIN], **given).tokens[0] == END
    assert plain.generate("hello", **given).text.isdigit()
    closed = [*plain.encode("hello"), BEGIN, 10, 10, END, 10, 10]
    assert plain.generate(closed, **given).text.isdigit()


def test_a_session_keeps_to_the_limit_in_several_calls(shared, plain):
    engine = shared("native, adaptive")
    settings = {"ignore_eos": True, "thinking_budget": 7}
    session, found = engine.session([*engine.encode("hello"), BEGIN]), ()
    for count in (3, 4, 1, 2, 10):
        found += session.generate(max_new_tokens=count, **settings).tokens
        settings = {}
    assert found == limited(plain, "hello", 7, 20, "greedy", (BEGIN,))


def test_a_model_without_marks_refuses_a_limit(tmp_path):
    with pytest.raises(ConfigError, match="thinking_budget = 3 is not allowed: a model that thinks"):
        load(str(save_byte_model(tmp_path)), dtype="float32").generate("a", thinking_budget=3)


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("program", ["eager", "native, adaptive"])
def test_a_grammar_that_speaks_of_the_thought_is_taken_as_it_is(program, is_open, shared, alone):
    """As the grammars of calls do. Its thought has a limit like any other."""
    engine = shared(program)
    lark = Lark({"<think>": BEGIN, "</think>": END})
    answer = lark.rule("answer", '"call(" /[0-9]{2}/ ")"')
    start = think_first(lark, Thinking("<think>", "</think>"), answer, is_open=is_open, gap='"\\n"?')
    settings = {"max_new_tokens": 40, "temperature": 1.0, "seed": 1, "logit_bias": {BEGIN: 9.0}}
    for budget in (0, 4):
        given = {"grammar": f"{lark}start: {start}\n", "thinking_budget": budget, **settings}
        for prompt in PROMPTS:
            tokens = [*engine.encode(prompt), *[BEGIN] * is_open]
            done = engine.generate(tokens, **given)
            place = done.tokens.index(END)
            thought, said = done.tokens[not is_open : place], done.tokens[place + 1 :]
            assert len(thought) <= budget + 3
            assert re.fullmatch(r"\n?call\([0-9]{2}\)", bytes(said[:-1]).decode())
            assert done.tokens == alone(tokens, **given)
