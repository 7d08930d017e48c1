"""Constrained texts over HTTP: every name of a constraint, streams, several choices, and refusals."""

import json
import re
import threading

import httpx2
import jsonschema
import openai
import pydantic
import pytest

from tests.byte_model import save_byte_model
from tests.serve.conftest import MODEL, served
from tokenmill.constrain import room
from tokenmill.serve.request.constraints import ConstraintFields
from tokenmill.text.tools.lark import FORCING

MESSAGES = [{"role": "user", "content": "hello"}]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 4}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TAGS = {"structures": [{"begin": "<f>", "schema": {"type": "boolean"}, "end": "</f>"}], "triggers": ["<f"]}
INSTEAD = "is not supported: for calls of functions give `tools`; for another form of the text, a `grammar`"
BOTH = ("/v1/chat/completions", "/v1/completions")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    path = save_byte_model(tmp_path_factory.mktemp("bytes"))
    with served(str(path), {"max_length": 512, "program": "eager"}) as server:
        yield server


def ask(http, path=BOTH[0], **more):
    body = {"messages": MESSAGES} if path == BOTH[0] else {"prompt": "hello"}
    return http.post(path, json={**body, "max_tokens": 120, "seed": 3, **more})


def text_of(response):
    assert response.status_code == 200, response.text
    choice = response.json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    return choice["message"]["content"] if "message" in choice else choice["text"]


def is_person(text):
    jsonschema.validate(json.loads(text), SCHEMA)
    return True


def is_object(text):
    return isinstance(json.loads(text), dict)


def is_choice(text):
    return text in ("yes", "no")


def matches(text):
    return bool(re.fullmatch("[ab]{3}x", text))


CONSTRAINTS = [
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": SCHEMA}}}, is_person),
    ({"response_format": {"type": "json_schema", "schema": SCHEMA}}, is_person),
    ({"response_format": {"type": "json_object", "schema": SCHEMA}}, is_person),
    ({"response_format": {"type": "json", "value": SCHEMA}}, is_person),
    ({"response_format": {"type": "regex", "value": "[ab]{3}x"}}, matches),
    ({"response_format": {"type": "grammar", "grammar": 'root ::= "yes" | "no"'}}, is_choice),
    ({"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}}, is_person),
    ({"structured_outputs": {"json": json.dumps(SCHEMA), "regex": None}}, is_person),
    ({"structured_outputs": {"regex": "[ab]{3}x"}}, matches),
    ({"structured_outputs": {"choice": ["yes", "no"]}}, is_choice),
    ({"structured_outputs": {"grammar": 'start: "yes" | "no"'}}, is_choice),
    ({"guided_json": SCHEMA}, is_person),
    ({"guided_json": json.dumps(SCHEMA)}, is_person),
    ({"guided_regex": "[ab]{3}x"}, matches),
    ({"guided_choice": ["yes", "no"]}, is_choice),
    ({"guided_grammar": 'root ::= "yes" | "no"'}, is_choice),
    ({"json_schema": SCHEMA}, is_person),
    ({"json_schema": json.dumps(SCHEMA)}, is_person),
    ({"regex": "[ab]{3}x"}, matches),
    ({"grammar": 'root ::= "yes" | "no"'}, is_choice),
    ({"ebnf": 'root ::= "yes" | "no"'}, is_choice),
    ({"format": SCHEMA}, is_person),
    ({"response_format": {"type": "text"}, "regex": "", "guided_choice": ["yes", "no"]}, is_choice),
]


@pytest.mark.parametrize(("more", "fits"), CONSTRAINTS, ids=[str(more)[:50] for more, _ in CONSTRAINTS])
def test_every_name_of_a_constraint(http, more, fits):
    for path in BOTH:
        assert fits(text_of(ask(http, path, **more)))


def test_every_field_is_tried():
    tried = {name for more, _ in CONSTRAINTS for name in more}
    assert tried == ConstraintFields.model_fields.keys()


@pytest.mark.parametrize("more", [{"response_format": {"type": "json_object"}}, {"format": "json"}], ids=str)
def test_any_object(http, more):
    """This model closes no object by itself."""
    done = ask(http, **more, max_tokens=200, logit_bias={str(ord("}")): 100, str(ord('"')): 20}).json()["choices"][0]
    assert done["finish_reason"] == "stop" and is_object(done["message"]["content"])


FORCED = FORCING + 'start: "yes" | "no"'


@pytest.mark.parametrize(
    "more",
    [
        {"grammar": FORCED},
        {"guided_grammar": FORCED},
        {"ebnf": FORCED},
        {"structured_outputs": {"grammar": FORCED}},
        {"response_format": {"type": "grammar", "grammar": FORCED}},
        {"grammar": f" {FORCED}"},
        {"grammar": json.dumps({"grammars": [{"lark_grammar": FORCED}]})},
        {"grammar": json.dumps({"grammars": [{"lark_grammar": FORCED}]}).replace("no_f", "\\u006eo_f")},
    ],
    ids=str,
)
def test_a_request_cannot_have_llguidance_look_for_forced_bytes(http, more):
    for tools in ({}, {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]}):
        error = ask(http, **more, **tools).json()["error"]
        assert error["param"] == next(iter(more)) and "without the option no_forcing" in error["message"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("response_format", {"type": "structural_tag", **TAGS}),
        ("response_format", {"type": "structural_tag", "format": {"type": "any_text"}}),
        ("structured_outputs", {"structural_tag": json.dumps(TAGS)}),
        ("structured_outputs", {"structural_tag": TAGS, "json": SCHEMA}),
        ("structural_tag", TAGS),
        ("structural_tag", json.dumps(TAGS)),
    ],
    ids=str,
)
def test_structural_tags_are_refused_with_the_way_out(http, name, value):
    for path in BOTH:
        error = ask(http, path, **{name: value}).json()["error"]
        assert (error["param"], error["code"]) == (name, "unsupported_parameter")
        assert INSTEAD in error["message"] and error["message"].startswith(name)


@pytest.mark.parametrize("more", [{"structural_tag": None}, {"structured_outputs": {"structural_tag": None}}], ids=str)
def test_a_structural_tag_of_null_asks_for_nothing(http, more):
    body = {"structured_outputs": {"choice": ["yes", "no"], **more.pop("structured_outputs", {})}, **more}
    assert text_of(ask(http, **body)) in ("yes", "no")


def test_a_stream_and_several_choices(http):
    constraint = {"response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": SCHEMA}}}
    whole = ask(http, **constraint, n=3, temperature=1.0).json()["choices"]
    assert all(is_person(each["message"]["content"]) for each in whole)
    texts = {}
    with http.stream(
        "POST",
        BOTH[0],
        json={"messages": MESSAGES, "max_tokens": 120, "seed": 3, "n": 3, "stream": True, **constraint},
    ) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    text = choice["delta"].get("content") or ""
                    texts[choice["index"]] = texts.get(choice["index"], "") + text
    assert [texts[number] for number in range(3)] == [each["message"]["content"] for each in whole]


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=4)
    age: int = pydantic.Field(ge=0, le=99)


def test_openais_client_parses_a_model(client):
    done = client.chat.completions.parse(model=MODEL, messages=MESSAGES, response_format=Person, max_tokens=120, seed=3)
    assert isinstance(done.choices[0].message.parsed, Person)


def test_a_text_that_is_cut_says_so(http):
    choice = ask(http, guided_json=SCHEMA, max_tokens=5).json()["choices"][0]
    assert choice["finish_reason"] == "length"
    done = ask(http, guided_choice=["abcd"], stop="c").json()
    assert (done["choices"][0]["message"]["content"], done["choices"][0]["stop_reason"]) == ("ab", "c")
    assert done["warnings"] == ["stop ends the text also where it does not fit guided_choice yet"]


def test_bad_words_beside_a_constraint_are_told(http):
    done = ask(http, guided_choice=["ab", "cd"], bad_words=["ab"]).json()
    assert done["choices"][0]["message"]["content"] == "cd"
    told = "bad_words forbids the usual tokens of a word; where guided_choice leaves little else, others may spell it"
    assert done["warnings"] == [told]
    assert told not in ask(http, bad_words=["ab"], max_tokens=3).json().get("warnings", ())


ENDLESS = {"$defs": {"n": {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}, "required": ["n"]}}}
REFUSED = [
    ({"response_format": {"type": "sound"}}, "response_format", "use one of text, json_object, json_schema"),
    ({"response_format": {}}, "response_format", "type = None is not allowed"),
    ({"response_format": {"type": "json_schema"}}, "response_format", "json_schema or schema is missing"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
        "response_format",
        "schema is missing",
    ),
    ({"response_format": {"type": "json_object", "schema": 5}}, "response_format", "a JSON schema as text or mapping"),
    ({"response_format": {"type": "json_object", "more": 5}}, "response_format", "has no key 'more'"),
    ({"structured_outputs": {}}, "structured_outputs", "one of json, regex, choice"),
    ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs", "only one constraint at a time"),
    ({"structured_outputs": {"json": {}, "whitespace_pattern": "a"}}, "structured_outputs", "is not supported"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs", "at least one text"),
    ({"structured_outputs": {"regex": {"1": "a"}}}, "structured_outputs", "a text that is not empty"),
    ({"guided_choice": []}, "guided_choice", "at least one text"),
    ({"guided_choice": ["a", ""]}, "guided_choice", "a text that is not empty"),
    ({"guided_json": SCHEMA, "regex": "a"}, "regex", "only one constraint at a time, and guided_json is given"),
    ({"guided_json": {"$ref": "http://a.example/b"}}, "guided_json", "at #: $ref names another document"),
    ({"guided_json": {**ENDLESS, "$ref": "#/$defs/n"}}, "guided_json", "no text with an end fits this part"),
    ({"guided_json": {"allOf": [{"type": "string"}, {"type": "null"}]}}, "guided_json", "Unsatisfiable schema"),
    ({"guided_json": {"properties": {"a": {"not": {"const": 1}}}}}, "guided_json", "at #/properties/a: the keyword 'n"),
    ({"guided_json": "{"}, "guided_json", "JSON ("),
    ({"guided_json": 5}, "guided_json", "a JSON schema, as an object or as text"),
    ({"guided_json": '{"const":"\\ud800"}'}, "guided_json", "UTF-8"),
    ({"grammar": "root ::= ("}, "grammar", "as GBNF it is wrong"),
    ({"grammar": "start: nothing"}, "grammar", "unknown name"),
    ({"regex": "("}, "regex", "unclosed group"),
    ({"guided_regex": "[^\\s\\S]"}, "guided_regex", "no text of this model's tokens fits it"),
    ({"guided_choice": ["a" * 600_000]}, "guided_choice", "at most 524,288 bytes"),
    ({"guided_decoding": {"json": {}}}, "guided_decoding", "is not supported"),
]


@pytest.mark.parametrize(("more", "param", "message"), REFUSED, ids=lambda each: str(each)[:50])
def test_refusals_name_the_field(http, more, param, message):
    for path in BOTH:
        response = ask(http, path, **more)
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert error["param"] == param and message in error["message"], error
        assert param in error["message"] and len(error["message"]) < 1100


def test_others_are_answered_while_a_constraint_is_compiled(server, monkeypatch):
    """A schema that takes its time runs in its own thread; the event loop and the engine go on."""
    may_go_on, begin = threading.Event(), room.begin
    held = lambda _, make, setting: begin(lambda: may_go_on.wait(120) and make()).outcome.result(240)  # noqa: E731
    monkeypatch.setattr(room.Budget, "within", held)  # which gives up after five seconds
    slow = {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(1000)}}
    body = {"messages": MESSAGES, "max_tokens": 1, "guided_json": slow}
    with httpx2.Client(base_url=server.url, timeout=120, trust_env=False, verify=False) as http:
        done = []
        thread = threading.Thread(target=lambda: done.append(http.post(BOTH[0], json=body)))
        thread.start()
        answers = 0
        while answers < 4:
            assert httpx2.get(f"{server.url}/health", timeout=60, trust_env=False).status_code == 200
            answers += 1
            assert not done
        may_go_on.set()
        while not done:  # llguidance lets others run, too
            assert httpx2.get(f"{server.url}/health", timeout=60, trust_env=False).status_code == 200
        thread.join()
    assert done[0].status_code in (200, 400)


def test_a_client_in_another_form(client):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=MESSAGES, extra_body={"guided_regex": "("})
    assert caught.value.param == "guided_regex"
