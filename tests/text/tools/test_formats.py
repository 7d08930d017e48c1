"""Every format: calls as the history shows them are what the grammar admits and what the parser reads."""

import json
import re
from random import Random

import pytest

from tests.text.tools.answers import joined
from tests.text.tools.byte_grammar import admitted, ids_of
from tokenmill.registry import TOOL_FORMATS, lookup
from tokenmill.text.tools.functions import ToolChoice, read_functions
from tokenmill.text.tools.grammar import calls_grammar
from tokenmill.text.tools.parser import Parser

PROPERTIES = {
    "path": {"type": "string"},
    "mode": {"enum": ["r", "w"]},
    "lines": {"type": "integer"},
    "scale": {"type": "number"},
    "deep": {"$ref": "#/$defs/deep"},
    "names": {"type": "array", "items": {"type": "string"}},
    "maybe": {"type": ["number", "null"]},
    "either": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
}
DEEP = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "number"}}, "b": {"type": "string"}}}
SCHEMA = {"type": "object", "properties": PROPERTIES, "required": ["path"], "$defs": {"deep": DEEP}}
FUNCTIONS = read_functions(
    [
        {"type": "function", "function": {"name": "edit.file", "parameters": SCHEMA}},
        {"type": "function", "function": {"name": "now"}},
        {"type": "function", "function": {"name": "any_thing", "parameters": {"type": "object"}}},
        {"type": "function", "function": {"name": "21st-x"}},
        {"type": "function", "function": {"name": "-x"}},
    ]
)
TEXTS = [
    "",
    "a/b.py",
    "two\nlines\n",
    "quotes \" and ' and \\ and \\n",
    "{[()]}, a=1; </x> <b",
    "</parameter",
    "é 😀 \u2028",
    " spaces ",
    "True",
    "1.50",
]
CALLS = [
    *([("edit.file", {"path": text})] for text in TEXTS),
    [("edit.file", {"path": "x", "mode": "w", "lines": 3, "scale": 1.5, "names": ["a", 'b"'], "maybe": 7})],
    [("edit.file", {"path": "x", "deep": {"a": [1, 2.5], "b": "}]"}, "either": "no"})],
    [("now", {})],
    [("21st-x", {})],
    [("-x", {})],
    [("now", {}), ("edit.file", {"path": "é"}), ("now", {})],
]
NAMES = sorted(TOOL_FORMATS)
FRAMED = [name for name in NAMES if name != "harmony"]


def form_of(name):
    return lookup(TOOL_FORMATS, name, "tool_format")


def parsed(name, text, cut=None, **more):
    parser, parts, at = Parser(form_of(name), FUNCTIONS, **more), [], 0
    while at < len(text):
        length = cut.choice([1, 1, 2, 3, 8, 40]) if cut else len(text)
        parts += parser.push(text[at : at + length])
        at += length
    return joined(parts + parser.finish())


def called(answer):
    return [(call.name, json.loads(call.arguments)) for call in answer.calls]


def control_of(name):
    """What could be control tokens among the words of a format."""
    found = re.findall(r"<[^<>=\"]+>|\[[A-Z_]+\]", " ".join(form_of(name).texts()))
    return tuple(dict.fromkeys(found))


@pytest.mark.parametrize("calls", CALLS, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_calls_of_the_history_are_admitted_and_parsed(name, calls):
    form = form_of(name)
    calls = calls[:1] if form.is_single else calls
    text = form.text(calls)
    for control in ((), control_of(name)):
        grammar = calls_grammar(form, FUNCTIONS, ToolChoice("required"), control=ids_of(control))
        assert admitted(grammar, text, control) == "whole"
    for is_trusted in (False, True):
        whole = parsed(name, text, is_trusted=is_trusted)
        assert called(whole) == calls and not whole.text
        for seed in range(2):
            assert called(parsed(name, text, Random(seed), is_trusted=is_trusted)) == calls


@pytest.mark.parametrize("name", FRAMED)
def test_text_may_stand_before_calls(name):
    form, calls = form_of(name), [("edit.file", {"path": "x"})]
    text = f"I look <at> it.{form.lead}{form.text(calls)}"
    if form.is_alone:
        assert parsed(name, text).text == text
        return
    grammar = calls_grammar(form, FUNCTIONS, ToolChoice(), control={})
    assert admitted(grammar, text) == "whole"
    for seed in range(20):
        found = parsed(name, text, Random(seed))
        assert found.text == "I look <at> it." and called(found) == calls


@pytest.mark.parametrize("name", NAMES)
def test_a_call_that_is_none_is_refused_and_is_text(name):
    form = form_of(name)
    text = form.text([("unknown", {"path": "x"})])
    for wanted in (ToolChoice(), ToolChoice("required")):
        grammar = calls_grammar(form, FUNCTIONS, wanted, control={})
        assert (form.is_alone and wanted.mode == "auto") or admitted(grammar, text) not in ("whole", "prefix")
    for seed in range(10):
        assert (parsed(name, text, Random(seed)).text, parsed(name, text).calls) == (text, [])


@pytest.mark.parametrize("name", FRAMED)
def test_one_call_is_all_where_several_are_not_allowed(name):
    form, calls = form_of(name), [("now", {}), ("now", {})]
    grammar = calls_grammar(form, FUNCTIONS, ToolChoice(parallel=False), control={})
    assert admitted(grammar, form.text(calls[:1])) == "whole"
    assert admitted(grammar, form.text(calls)) not in ("whole", "prefix")


@pytest.mark.parametrize("name", NAMES)
def test_a_reference_names_a_place_of_all_parameters(name):
    form, properties = form_of(name), {"n": {"type": "integer"}, "kids": {"type": "array", "items": {"$ref": "#"}}}
    properties |= {"first": {"$ref": "#/properties/kids/items"}}
    tree = {"type": "object", "properties": properties, "required": ["n"], "additionalProperties": False}
    functions = read_functions([{"type": "function", "function": {"name": "tree", "parameters": tree}}])
    grammar = calls_grammar(form, functions, ToolChoice("required"), control={})
    for value, fits in (([{"n": 2, "kids": []}], True), ([[]], False), ([{"kids": []}], False)):
        assert (admitted(grammar, form.text([("tree", {"n": 1, "kids": value})])) == "whole") == fits
        assert (admitted(grammar, form.text([("tree", {"n": 1, "first": value[0]})])) == "whole") == fits
