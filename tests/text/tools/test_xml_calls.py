"""Calls in tags: where a text ends, and what values stand for."""

import json
from random import Random

import pytest

from tests.text.tools.answers import joined
from tests.text.tools.byte_grammar import admitted
from tokenmill.errors import RequestError
from tokenmill.text.parts import CallArguments
from tokenmill.text.tools.functions import Function, ToolChoice
from tokenmill.text.tools.glm45 import GLM45
from tokenmill.text.tools.grammar import calls_grammar
from tokenmill.text.tools.parser import Parser
from tokenmill.text.tools.qwen3_xml import QWEN3_XML

PROPERTIES = {
    "text": {"type": "string"},
    "count": {"type": "integer"},
    "flag": {"type": "boolean"},
    "none": {"type": ["string", "null"]},
    "list": {"type": "array"},
}


def functions(properties=PROPERTIES, **more):
    return [Function("f", "", {"type": "object", "properties": properties}, **more)]


def called(inner, form=QWEN3_XML, seed=None):
    """The arguments of a call with this between its function's tags, or the text where it is none."""
    text = f"<tool_call>\n<function=f>\n{inner}</function>\n</tool_call>" if form is QWEN3_XML else inner
    parser, parts = Parser(form, functions()), []
    rng, at = Random(seed), 0
    while at < len(text):
        length = rng.choice([1, 2, 3, 9]) if seed is not None else len(text)
        parts += parser.push(text[at : at + length])
        at += length
    found = joined(parts + parser.finish())
    return json.loads(found.calls[0].arguments) if found.calls else found.text


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("<parameter=text>\na\n</parameter>\n", "a"),
        ("<parameter=text>a</parameter>", "a"),
        ("<parameter=text>\na\n</parameter>\n</parameter>\n", "a"),
        ("<parameter=text>\na</parameter></parameter></parameter>\n", "a"),
        ("<parameter=text>\n\na\n\n</parameter>\n", "\na\n"),
        ("<parameter=text>\n\n</parameter>\n", ""),
        ("<parameter=text></parameter>\n", ""),
        ("<parameter=text>\na</parameter>b\n</parameter>\n", "a</parameter>b"),
        (
            "<parameter=text>\n<parameter=x>\n</function>\n</tool_call>\n</parameter>\n",
            "<parameter=x>\n</function>\n</tool_call>",
        ),
        ('<parameter=text>\n"a" \\ {}\n</parameter>\n', '"a" \\ {}'),
    ],
)
def test_where_a_text_ends(written, value):
    for seed in (None, *range(30)):
        assert called(written, seed=seed) == {"text": value}


def test_a_closing_tag_and_the_next_opening_one_come_at_once():
    parser = Parser(QWEN3_XML, functions(), is_trusted=True)
    parts = parser.push("<tool_call>\n<function=f>\n<parameter=text>\na b")
    parts += parser.push(" c\n</parameter>\n<parameter=count>\n3\n</parameter>\n</function>\n</tool_call>")
    assert joined(parts).calls[0].arguments == '{"text": "a b c", "count": 3}'


@pytest.mark.parametrize(
    ("key", "written", "value"),
    [
        ("count", "3", 3),
        ("count", " 3 ", 3),
        ("count", "three", "three"),
        ("flag", "True", True),
        ("flag", "false", False),
        ("none", "None", None),
        ("none", "null", None),
        ("none", "nothing", "nothing"),
        ("list", '[1, "a"]', [1, "a"]),
        ("list", "[1,", "[1,"),
        ("list", '["</parameter>\\n</function>"]', ["</parameter>\n</function>"]),
        ("list", " [1] ", [1]),
        ("list", "[1] x", "[1] x"),
        ("text", "3", "3"),
        ("text", "True", "True"),
        ("unknown", "3", 3),
        ("unknown", "a b", "a b"),
    ],
)
def test_what_values_stand_for(key, written, value):
    assert called(f"<parameter={key}>\n{written}\n</parameter>\n") == {key: value}


def test_a_text_is_shown_as_it_comes():
    parser = Parser(QWEN3_XML, functions(), is_trusted=True)
    parser.push("<tool_call>\n<function=f>\n<parameter=text>\n")
    assert parser.push("one\n</par") == [CallArguments(0, "one")]
    assert parser.push("agraph") == [CallArguments(0, "\\n</paragraph")]


def test_a_call_without_arguments():
    assert called("") == {}
    assert called("<tool_call>f\n</tool_call>", GLM45) == {}
    assert called("<tool_call>f</tool_call>", GLM45) == {}


def test_a_key_twice_is_twice_in_the_arguments_of_which_the_last_counts():
    assert called("<parameter=count>1</parameter><parameter=count>2</parameter>") == {"count": 2}


def test_a_pattern_is_enforced():
    grammar = calls_grammar(
        QWEN3_XML,
        functions({"text": {"type": "string", "pattern": "^a+/?(b|\\n)$"}}),
        ToolChoice("required"),
        control={},
    )
    call = QWEN3_XML.text([("f", {"text": "aaa/b"})])
    assert admitted(grammar, call) == admitted(grammar, call.replace("/b", "\n")) == "whole"
    assert admitted(grammar, call.replace("/b", "c")).endswith("aaa")
    assert admitted(grammar, call.replace("/b", "")).endswith("aaa\n")


def test_a_pattern_may_end_with_a_letter_that_is_no_anchor():
    schema = {"text": {"type": "string", "pattern": "^[0-9]+ \\$"}}
    grammar = calls_grammar(QWEN3_XML, functions(schema), ToolChoice("required"), control={})
    call = QWEN3_XML.text([("f", {"text": "12 $"})])
    assert admitted(grammar, call) == "whole" and admitted(grammar, call.replace("$", "$ a day")) == "whole"
    assert admitted(grammar, call.replace("$", "")).endswith("12 ")


def test_no_closing_tag_is_admitted_inside_a_text():
    for properties in (PROPERTIES, {"text": {"type": "string", "pattern": "^(.|\\n)*$"}}):
        grammar = calls_grammar(QWEN3_XML, functions(properties), ToolChoice("required"), control={})
        call = QWEN3_XML.text([("f", {"text": "a</parameter>b"})])
        assert admitted(grammar, call) == call[: call.index(">b")]


def test_what_cannot_be_enforced_in_a_text_is_refused_where_a_function_is_strict():
    with pytest.raises(RequestError, match=r"f: strict is not possible.* cannot enforce maxLength of 'text': leave"):
        calls_grammar(
            QWEN3_XML, functions({"text": {"type": "string", "maxLength": 3}}, strict=True), ToolChoice(), control={}
        )
