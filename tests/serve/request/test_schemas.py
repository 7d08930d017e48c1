"""Schemas as frameworks write them, on every route: annotations are told, objects are closed, forced calls fit."""

import json

import jsonschema
import pytest

from tests.serve.conftest import WEATHER

ANNOTATED = {
    "type": "object",
    "properties": {
        "action": {"type": "array", "items": {"enum": [1, 2]}, "min_items": 1, "maxItems": 2},
        "path": {"type": "string", "format": "path", "maxLength": 2},
    },
    "required": ["action", "path"],
}
TOLD = [
    "at #/properties/action: 'min_items' is no keyword of JSON Schema, so it is not enforced; is 'minItems' meant?",
    "at #/properties/path: the format 'path' is not known, so it is not enforced",
]
ASK = [{"role": "user", "content": "Numbers."}]
SEED = {"seed": 3, "temperature": 1, "max_tokens": 90}
FORM = {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": ANNOTATED}}
OPEN = {"type": "object", "properties": {"a": {"type": "integer", "maximum": 9}}}
ROUTES = {
    "chat": ("/v1/chat/completions", {"messages": ASK, **SEED}, "response_format", FORM),
    "completions": ("/v1/completions", {"prompt": "Numbers.", **SEED}, "guided_json", ANNOTATED),
    "responses": (
        "/v1/responses",
        {"input": "Numbers.", "max_output_tokens": 90, "seed": 3},
        "text",
        {"format": {"type": "json_schema", "name": "a", "schema": ANNOTATED}},
    ),
    "messages": (
        "/v1/messages",
        {"messages": ASK, "max_tokens": 90, "seed": 3},
        "output_config",
        {"format": {"type": "json_schema", "schema": ANNOTATED}},
    ),
    "api/chat": (
        "/api/chat",
        {"model": "m", "messages": ASK, "stream": False, "options": {"seed": 3}},
        "format",
        ANNOTATED,
    ),
    "api/generate": (
        "/api/generate",
        {"model": "m", "prompt": "Numbers.", "stream": False, "options": {"seed": 3}},
        "format",
        ANNOTATED,
    ),
}


def posted(http, path, body):
    """The answer; its body may name no model."""
    if "model" in body:
        body = {**body, "model": http.get("/v1/models").json()["data"][0]["id"]}
    answer = http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.fixture(scope="module")
def http(writer):
    import httpx2

    with httpx2.Client(base_url=writer.url, timeout=120) as client:
        yield client


@pytest.mark.parametrize("route", ROUTES)
def test_annotations_of_a_form_are_told(http, route):
    path, body, field, value = ROUTES[route]
    answer = posted(http, path, {**body, field: value})
    said = [each for each in answer["warnings"] if "at #" in each]
    assert [each.split(": ", 1)[1] for each in said] == TOLD, answer["warnings"]


@pytest.mark.parametrize("strict", [None, True])
def test_annotations_of_a_tool_are_told(http, strict):
    tool = {"name": "act", "parameters": ANNOTATED} | ({} if strict is None else {"strict": strict})
    body = {"messages": ASK, **SEED, "tools": [{"type": "function", "function": tool}], "tool_choice": "any"}
    answer = posted(http, "/v1/chat/completions", body)
    assert [each for each in answer["warnings"] if "at #" in each] == [f"act: {each}" for each in TOLD]
    (call, *_) = answer["choices"][0]["message"]["tool_calls"]
    assert answer["choices"][0]["finish_reason"] in ("tool_calls", "length")
    assert call["function"]["arguments"].startswith('{"action": [')


def test_both_a_tool_and_a_form_are_told(http):
    tool = {"type": "function", "function": {"name": "act", "parameters": ANNOTATED}}
    answer = posted(http, "/v1/chat/completions", {"messages": ASK, **SEED, "tools": [tool], "response_format": FORM})
    said = [each.split(": ", 1)[0] for each in answer["warnings"] if "at #" in each]
    assert sorted(said) == ["act", "act", "response_format", "response_format"]


def _keys(http, **more):
    """The keys of the objects of ten answers; an answer that was cut has a key that is not named."""
    for seed in range(10):
        body = {"messages": ASK, "max_tokens": 40, "temperature": 1, "seed": seed, **more}
        text = posted(http, "/v1/chat/completions", body)["choices"][0]["message"]["content"]
        try:
            yield set(json.loads(text))
        except ValueError:
            yield {"…"}


def _opens(http, **more):
    """Whether one of ten answers has another key; those that come after it tell nothing more."""
    return any(not keys <= {"a"} for keys in _keys(http, **more))


def test_objects_are_closed_unless_a_field_opens_them(http):
    forms = (
        {"guided_json": OPEN},
        {"format": OPEN},
        {"response_format": {"type": "json_object", "schema": OPEN}},
        {"structured_outputs": {"json": OPEN, "disable_additional_properties": True}},
    )
    for form in forms:
        assert not _opens(http, **form)
        assert _opens(http, **form, additional_properties=True)
    inner = {"name": "o", "schema": OPEN}
    for strict in (None, False, True):
        form = {"response_format": {"type": "json_schema", "json_schema": inner | {"strict": strict}}}
        assert _opens(http, **form, additional_properties=True) == (strict is not True)


@pytest.mark.parametrize("choice", ["required", "any", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_forced_call_fits_its_schema_whatever_strict_says(http, choice):
    for seed in range(6):
        function = {"name": "get_weather", "parameters": WEATHER, "strict": False}
        body = {"messages": ASK, "tools": [{"type": "function", "function": function}], "tool_choice": choice}
        answer = posted(http, "/v1/chat/completions", body | SEED | {"seed": seed, "parallel_tool_calls": False})
        (call,) = answer["choices"][0]["message"]["tool_calls"]
        jsonschema.validate(json.loads(call["function"]["arguments"]), WEATHER)


def test_a_forced_call_of_other_protocols_fits_too(http):
    tool = {"type": "function", "name": "get_weather", "parameters": WEATHER, "strict": False}
    body = {
        "input": "Hello.",
        "max_output_tokens": 200,
        "tools": [tool],
        "tool_choice": "any",
        "parallel_tool_calls": False,
    }
    output = posted(http, "/v1/responses", body)["output"]
    (call,) = [each for each in output if each["type"] == "function_call"]
    jsonschema.validate(json.loads(call["arguments"]), WEATHER)
    tool = {"name": "get_weather", "input_schema": WEATHER, "strict": False}
    body = {"messages": ASK, "max_tokens": 200, "tools": [tool], "tool_choice": {"type": "any"}}
    content = posted(http, "/v1/messages", body)["content"]
    jsonschema.validate(next(each["input"] for each in content if each["type"] == "tool_use"), WEATHER)
