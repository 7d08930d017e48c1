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
    return engine_for(path, program="eager", speculate="off", max_sequences=1, prefix_cache=False)


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


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_text_in_a_batch_with_scarce_blocks(program, path, expected):
    scarce = {"max_sequences": 3, "max_step_tokens": 13, "block_size": 8, "cache_tokens": 288}
    engine = engine_for(path, **PROGRAMS[program], **scarce)
    core, requests = engine.core, {}
    for (name, how), _ in expected.items():
        params = SamplingParams(max_new_tokens=NEW, **CONSTRAINTS[name], **SETTINGS[how])
        requests[name, how] = [core.request(engine.encode(prompt), params) for prompt in PROMPTS]
    done = core.finish([each for several in requests.values() for each in several])
    for one, other in zip((each for texts in expected.values() for each in texts), done, strict=True):
        assert (other.text, other.tokens, other.finish_reason) == (one.text, one.tokens, one.finish_reason)
    check_empty(core)
