"""Schemas of agents' functions: what cannot be enforced is told, and refused where a function is strict."""

import threading
import time

import pytest

from tests.text.tools.byte_grammar import admitted
from tokenmill.constrain import enforced as module
from tokenmill.constrain.enforced import enforced
from tokenmill.constrain.room import Budget
from tokenmill.errors import CapacityError, RequestError
from tokenmill.text.tools.functions import Function, ToolChoice
from tokenmill.text.tools.grammar import calls_grammar
from tokenmill.text.tools.hermes import HERMES

UNKNOWN = {"type": "object", "properties": {"a": {"type": "array", "contains": {"const": 1}}}, "required": ["a"]}
REMOTE = {"type": "object", "properties": {"a": {"$ref": "https://example.org/a.json"}}}
LOOKS_BACK = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?<!x)y"}}}
KNOWN = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 1}},
    "$schema": "http://json-schema.org/draft-07/schema#",
}


def test_what_can_be_enforced_is_left_as_it_is():
    functions = (Function("f", "", KNOWN, True), Function("g"), Function("h", "", UNKNOWN, False))
    assert enforced(functions, "hermes") == (functions, [])


def test_a_word_that_no_grammar_knows_is_told():
    function = Function("f", "", UNKNOWN)
    assert enforced([function], "hermes")[0] == (function,)
    (told,) = enforced([function], "hermes")[1]
    assert told.startswith("f: parts of its parameters are not enforced: ") and "contains" in told
    grammar = calls_grammar(HERMES, [function], ToolChoice("required"), control={})
    assert admitted(grammar, '<tool_call>\n{"name": "f", "arguments": {"a": [1, 1]}}\n</tool_call>') == "whole"


LOST = {  # as Strands sends a discriminated union of pydantic: without the $defs
    "type": "object",
    "properties": {
        "payment": {"oneOf": [{"$ref": "#/$defs/Card"}, {"$ref": "#/$defs/Bank"}]},
        "notes": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["payment", "notes"],
}


@pytest.mark.parametrize("schema", [LOST, REMOTE], ids=["lost", "remote"])
def test_a_reference_that_leads_nowhere_is_left_out_alone(schema):
    ((function,), (told,)) = enforced([Function("f", "", schema)], "hermes")
    assert told.startswith("f: parts of its parameters are not enforced: at #/properties/") and "$ref names" in told
    grammar = calls_grammar(HERMES, [function], ToolChoice("required"), control={})
    call = '<tool_call>\n{"name": "f", "arguments": %s}\n</tool_call>'
    for arguments in ('{"a": {"x": 1}}', "{}") if schema is REMOTE else ('{"payment": {"x": 1}, "notes": ["y"]}',):
        assert admitted(grammar, call % arguments) == "whole"
    for arguments in ('{"b": 1}', '{"payment": 1}', '{"payment": 1, "notes": 2}'):
        assert admitted(grammar, call % arguments) != "whole"


@pytest.mark.parametrize(
    "schema", [{}, {"$ref": "https://example.org/a.json"}, {"type": ["object", "null"]}, {"description": "d"}], ids=str
)
@pytest.mark.parametrize("strict", [None, False])
def test_arguments_are_an_object_whatever_their_schema_leaves_open(schema, strict):
    ((function,), _) = enforced([Function("f", "", schema, strict)], "hermes")
    grammar = calls_grammar(HERMES, [function], ToolChoice("required"), control={})
    call = '<tool_call>\n{"name": "f", "arguments": %s}\n</tool_call>'
    assert admitted(grammar, call % '{"a": [1]}') == "whole"
    assert [each for each in ("3", "null", "[]", '"a"') if admitted(grammar, call % each) == "whole"] == []


def test_a_schema_that_cannot_be_read_is_left_out_and_told():
    ((function,), (told,)) = enforced([Function("f", "", LOOKS_BACK)], "hermes")
    assert function.strict is False and told.startswith("f: its parameters are not enforced: ")
    grammar = calls_grammar(HERMES, [function], ToolChoice("required"), control={})
    assert admitted(grammar, '<tool_call>\n{"name": "f", "arguments": {"b": 1}}\n</tool_call>') == "whole"


@pytest.mark.parametrize("tool_format", ["hermes", "qwen3_xml"])
def test_a_pattern_that_is_none_is_told(tool_format):
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "a)|(b"}}}
    ((function,), (told,)) = enforced([Function("f", "", schema)], tool_format)
    assert function.strict is False and told.startswith("f: its parameters are not enforced: ")
    with pytest.raises(RequestError, match="f: strict is not possible"):
        enforced([Function("f", "", schema, True)], tool_format)


@pytest.mark.parametrize("schema", [UNKNOWN, REMOTE, LOST, LOOKS_BACK])
def test_a_strict_function_is_refused(schema):
    with pytest.raises(RequestError, match=r"^f: strict is not possible: .*: leave that out of its parameters"):
        enforced([Function("f", "", schema, True)], "hermes")


@pytest.mark.parametrize("tool_format", ["qwen3_xml", "functiongemma"])
def test_what_a_format_cannot_enforce_is_told(tool_format):
    schema = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 3}}}
    (told,) = enforced([Function("f", "", schema)], tool_format)[1]
    assert told.startswith("f: parts of its parameters are not enforced: maxLength")
    assert enforced([Function("f", "", schema)], "hermes")[1] == []
    with pytest.raises(RequestError, match=r"^f: strict is not possible, because .* cannot enforce maxLength"):
        enforced([Function("f", "", schema, True)], tool_format)


def test_a_budget_of_time_for_all_functions_together(monkeypatch):
    """What is over it is refused while it goes on, others too meanwhile, and what is read until then is known."""
    go, made, original = threading.Event(), [], module.calls_grammar

    def slow(form, functions, *args, **kwargs):
        made.append(functions[0].name)
        go.wait()
        return original(form, functions, *args, **kwargs)

    monkeypatch.setattr(module, "calls_grammar", slow)
    monkeypatch.setattr(module, "BUDGET", Budget(0.05, 1))
    functions = [Function("slow_1", "", KNOWN), Function("slow_2", "", KNOWN)]
    with pytest.raises(RequestError, match=r"^slow_1: the schemas of 2 functions were not read in 0.05 s, and this"):
        enforced(functions, "hermes")
    with pytest.raises(CapacityError, match="2 needed, 1 available; change the parameters of tools, or try again"):
        enforced([Function("slow_3", "", KNOWN)], "hermes")
    go.set()
    for _ in range(1000):
        if not any(thread.name == "compile a constraint" for thread in threading.enumerate()):
            break
        time.sleep(0.01)
    assert made in ([], ["slow_1"])  # nobody waited for the second, and the first may not have begun in that time
    module.BUDGET.seconds = 60.0
    assert enforced(functions, "hermes") == (tuple(functions), []) and made == ["slow_1", "slow_2"]
