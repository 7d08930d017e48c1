"""Constrained texts: the same however they were computed, and never one that does not fit."""

import json

import jsonschema
import pytest

from tests.byte_model import save_byte_model
from tests.empty import check_empty
from tokenmill import RequestError, SamplingParams, load

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "kind": {"enum": ["alpha", "beta"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 999},
    },
    "required": ["name", "kind", "age"],
    "additionalProperties": False,
}
CONSTRAINTS = {
    "schema": {"json_schema": SCHEMA},
    "regex": {"regex": "[a-c]{3}x[0-9]+"},
    "choice": {"choice": ["Paris", "Parma", "Rome"]},
    "lark": {"grammar": 'start: "a" start "b" | "c"'},
}
SETTINGS = {
    "greedy": {},
    "drawn": {"temperature": 1.0, "seed": 3, "top_k": 40},
    "drawn, p": {"temperature": 1.5, "seed": 5, "top_p": 0.9, "min_p": 0.01},
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.5, "logprobs": 2},
    "bias": {"logit_bias": {97: 3.0, 34: -2.0}, "temperature": 0.8, "seed": 1},
    "no end": {"ignore_eos": True},
}
PROMPTS = ["hello", "Once upon a time there was", "{", "abcabcabc"]
NEW = 48


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return str(save_byte_model(tmp_path_factory.mktemp("bytes")))


def engine_for(path, **how):
    return load(path, **{"dtype": "float32", "threads": 1, "max_length": 256, **how})


@pytest.fixture(scope="module")
def plain(path):
    return engine_for(path, speculate="off", max_sequences=1, prefix_cache=False)


@pytest.fixture(scope="module")
def expected(plain):
    """Each text alone, a token at a time."""
    cases = [(name, how) for name in CONSTRAINTS for how in SETTINGS]
    return {
        (name, how): [
            plain.generate(prompt, max_new_tokens=NEW, **CONSTRAINTS[name], **SETTINGS[how]) for prompt in PROMPTS
        ]
        for name, how in cases
    }


def test_every_whole_text_fits(expected):
    for (name, _), texts in expected.items():
        for done in texts:
            if name == "schema" and done.finish_reason != "length":
                jsonschema.validate(json.loads(done.text), SCHEMA)
            if name == "choice":
                assert done.text in CONSTRAINTS["choice"]["choice"]
            assert done.finish_reason in ("eos", "stop", "length")


PROGRAMS = {
    "eager": {"program": "eager", "speculate": "off"},
    "eager, async": {"program": "eager", "async_scheduling": "on"},
    "eager, drafts": {"program": "eager", "speculate": "suffix"},
    "native": {"program": "native", "speculate": "off"},
    "native, several steps": {"program": "native", "speculate": "multi_step"},
    "native, adaptive": {"program": "native", "speculate": "adaptive"},
    "native, draft model": {"program": "native", "speculate": "draft_model", "draft_model": "q8"},
}


QUICK = ("native, adaptive", "native, several steps")


@pytest.mark.parametrize(
    "program", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in PROGRAMS]
)
def test_the_text_in_a_batch_with_scarce_blocks(program, path, expected):
    scarce = {"max_sequences": 3, "max_step_tokens": 13, "block_size": 8, "cache_tokens": 136}
    engine = engine_for(path, **PROGRAMS[program], **scarce)
    core, requests = engine.core, {}
    for (name, how), _ in expected.items():
        params = SamplingParams(max_new_tokens=NEW, **CONSTRAINTS[name], **SETTINGS[how])
        requests[name, how] = [core.request(engine.encode(prompt), params) for prompt in PROMPTS]
    done = core.finish([each for several in requests.values() for each in several])
    for one, other in zip((each for texts in expected.values() for each in texts), done, strict=True):
        assert (other.text, other.tokens, other.finish_reason) == (one.text, one.tokens, one.finish_reason)
    assert core.scheduler.num_preemptions > 3
    check_empty(core)


@pytest.fixture(scope="module")
def adaptive(path):
    return engine_for(path, program="native", speculate="adaptive")


@pytest.mark.parametrize("how", ["greedy", "drawn", "no end", "penalties"])
@pytest.mark.parametrize("name", CONSTRAINTS)
def test_a_session_gives_the_same_text_in_several_calls(name, how, adaptive, expected, tmp_path):
    given = {**CONSTRAINTS[name], **SETTINGS[how]}
    for prompt, whole in zip(PROMPTS, expected[name, how], strict=True):
        session, found = adaptive.session(prompt), ()
        for count in (1, 3, NEW):
            done = session.generate(max_new_tokens=min(count, NEW - len(found)), **given)
            found += done.tokens
            if done.finish_reason != "length" or len(found) == NEW:
                break
            given = {}  # as in the last call
            session.save(tmp_path / "saved.kv")
            session = adaptive.open_session(tmp_path / "saved.kv").fork()
            session.rewind(len(session) - 1)
            found = found[:-1]
        assert found == whole.tokens and done.finish_reason == whole.finish_reason
        given = {**CONSTRAINTS[name], **SETTINGS[how]}


def test_each_turn_of_a_session_may_have_another_constraint(adaptive):
    session = adaptive.session("hello")
    first = session.generate(max_new_tokens=9, regex="[0-9]{3}")
    assert first.text.isdigit()
    second = session.generate(max_new_tokens=9)  # the text is whole: the same expression again
    assert second.text.isdigit() and len(second.text) == 3
    part = session.generate(" and ", max_new_tokens=2, choice=["Paris", "Parma"])
    assert part.text == "Pa" and part.finish_reason == "length"
    assert session.generate(max_new_tokens=9, regex="[a-c]{2}").text.strip("abc") == ""
    schema = session.generate("!", max_new_tokens=60, json_schema=SCHEMA)
    assert json.loads(schema.text) if schema.finish_reason == "eos" else schema.finish_reason == "length"
    free = session.generate("!", max_new_tokens=9, json_schema=None)
    alone = adaptive.generate(session.tokens[: -len(free.tokens)], max_new_tokens=9)
    assert free.tokens == alone.tokens


@pytest.mark.parametrize("how", ["drawn", "no end"])
@pytest.mark.parametrize("name", CONSTRAINTS)
def test_a_request_goes_on_from_every_token(name, how, adaptive, expected):
    whole, core = expected[name, how][0], adaptive.core
    params = SamplingParams(max_new_tokens=NEW, **{"seed": 0, **CONSTRAINTS[name], **SETTINGS[how]})
    prompt = adaptive.encode(PROMPTS[0])
    requests = [core.request(prompt, params, emitted=[whole.tokens[:n]]) for n in range(len(whole.tokens) + 1)]
    for done in core.finish(requests):
        assert done.tokens == whole.tokens and done.finish_reason == whole.finish_reason


def test_a_request_whose_last_token_makes_the_text_whole_goes_on_with_its_length(adaptive):
    params = SamplingParams(max_new_tokens=3, regex="[0-9]{3}", ignore_eos=True)
    whole = adaptive.core.finish([adaptive.core.request([1], params)])[0]
    (done,) = adaptive.core.finish([adaptive.core.request([1], params, emitted=[whole.tokens])])
    assert done.finish_reason == whole.finish_reason == "length"


def test_emitted_tokens_that_do_not_fit_are_refused(adaptive):
    params = SamplingParams(max_new_tokens=9, regex="[0-9]{3}")
    for wrong, place in (([97], "token 1 of 1"), ([48, 49, 97], "token 3 of 3"), ([48, 256], "token 2 of 2")):
        with pytest.raises(RequestError, match=f"emitted: {place} does not fit the constraint"):
            adaptive.core.request([1], params, emitted=[wrong])


def test_a_text_that_may_not_end_yet_and_has_to_is_an_error(adaptive, plain):
    for engine in (adaptive, plain):
        for more in ({}, {"ignore_eos": True}):
            with pytest.raises(RequestError, match=r"every token is masked at position 8; relax .* or the constraint"):
                engine.generate("hello", max_new_tokens=9, min_new_tokens=5, regex="[0-9]{3}", **more)
            done = engine.generate("hello", max_new_tokens=9, min_new_tokens=5, regex="[0-9]{3,7}", **more)
            assert len(done.tokens) >= 5 and done.finish_reason != "length"
        with pytest.raises(RequestError, match=r"every token is masked at position 5; relax .* or the constraint"):
            engine.generate("hello", max_new_tokens=9, regex="[0-9]{3}", allowed_token_ids=[97, 256])
        good = engine.generate(["hello", "b"], max_new_tokens=9, regex="[0-9]{3}", allowed_token_ids=[48, 49, 256])
        assert all(set(done.text) <= set("01") and len(done.text) == 3 for done in good)


def test_an_error_of_one_text_leaves_the_others_alone(adaptive):
    core = adaptive.core
    wrong = core.request([1, 2], SamplingParams(max_new_tokens=9, min_new_tokens=5, regex="[0-9]{3}"))
    right = core.request([1, 2], SamplingParams(max_new_tokens=9, regex="[0-9]{3}"))
    other = core.request([1, 2], SamplingParams(max_new_tokens=9, ignore_eos=True))
    for request in (wrong, right, other):
        core.submit(request)
    while not (right.is_done and other.is_done and wrong.is_done):
        core.step()
    with pytest.raises(RequestError, match="every token is masked"):
        core.take(wrong)
    assert core.take(right)[0].done.text.isdigit()
    assert core.take(other)[0].done.tokens == adaptive.generate([1, 2], max_new_tokens=9, ignore_eos=True).tokens


def test_what_must_come_without_end_goes_on_to_the_limit_of_the_text(adaptive, plain):
    """And llguidance does not look for its end, which would stop the engine."""
    for engine in (adaptive, plain):
        core = engine.core
        endless = core.request([1, 2], SamplingParams(max_new_tokens=9, grammar='start: /[0-9]/ /x+/ "x" "a"'))
        other = core.request([1, 2], SamplingParams(max_new_tokens=9, ignore_eos=True))
        for request in (endless, other):
            core.submit(request)
        while not (endless.is_done and other.is_done):
            core.step()
        done = core.take(endless)[-1].done
        assert done.text[0].isdigit() and done.text[1:] == 8 * "x" and done.finish_reason == "length"
        assert len(core.take(other)[0].done.tokens) == 9


def test_stop_texts_and_lengths_end_a_constrained_text(adaptive, plain):
    for engine in (adaptive, plain):
        done = engine.generate("hello", max_new_tokens=40, json_schema=SCHEMA, stop=['","kind'])
        assert done.finish_reason == "stop" and done.stop_reason == '","kind'
        cut = engine.generate("hello", max_new_tokens=12, json_schema=SCHEMA)
        assert cut.finish_reason == "length" and len(cut.tokens) == 12
        by_id = engine.generate("hello", max_new_tokens=40, json_schema=SCHEMA, stop_token_ids=[ord("k")])
        assert by_id.finish_reason == "stop" and by_id.stop_reason == ord("k")


def test_several_continuations_each_have_a_matcher(adaptive, plain):
    given = {"max_new_tokens": 40, "json_schema": SCHEMA, "temperature": 1.0, "seed": 8, "n": 4}
    found, alone = adaptive.generate("hello", **given), plain.generate("hello", **given)
    assert [each.tokens for each in found.completions] == [each.tokens for each in alone.completions]
    assert len({each.text for each in found.completions}) > 1


@pytest.mark.parametrize("stop", [{"stop": "b"}, {"stop_token_ids": [98]}, {}])
def test_a_row_without_a_token_behind_the_end_of_a_text_is_no_error(stop, path, plain):
    """Behind the forced `b` no letter is left of which one could be chosen; there, the sampler says token 0."""
    settings = {"regex": "ab[\\x00c]", "allowed_token_ids": [97, 98], "max_new_tokens": 9, **stop}
    with engine_for(path, speculate="suffix") as engine:
        for each in (plain, engine):
            seen = []
            try:
                for piece in each.stream("hello", **settings):
                    seen += piece.tokens
            except RequestError as error:
                assert not stop and "every token is masked at position 7" in str(error)
            assert seen == [97, 98]
