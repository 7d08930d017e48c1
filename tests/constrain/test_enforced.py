"""Schemas of agents' functions: what cannot be enforced is told, and refused where a function is strict."""

import pytest

from tests.text.tools.byte_grammar import admitted
from tokenmill.constrain.enforced import enforced
from tokenmill.errors import RequestError
from tokenmill.text.tools.functions import Choice, Function
from tokenmill.text.tools.grammar import calls_grammar
from tokenmill.text.tools.hermes import HERMES

UNKNOWN = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}, "required": ["a"]}
REMOTE = {"type": "object", "properties": {"a": {"$ref": "https://example.org/a.json"}}}
LOOKS_AHEAD = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(?!x)"}}}
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
    assert told.startswith("f: parts of its parameters are not enforced: ") and "uniqueItems" in told
    grammar = calls_grammar(HERMES, [function], Choice("required"), control={})
    assert admitted(grammar, '<tool_call>\n{"name": "f", "arguments": {"a": [1, 1]}}\n</tool_call>') == "whole"


@pytest.mark.parametrize("schema", [REMOTE, LOOKS_AHEAD])
def test_a_schema_that_cannot_be_read_is_left_out_and_told(schema):
    ((function,), (told,)) = enforced([Function("f", "", schema)], "hermes")
    assert function.strict is False and told.startswith("f: its parameters are not enforced: ")
    grammar = calls_grammar(HERMES, [function], Choice("required"), control={})
    assert admitted(grammar, '<tool_call>\n{"name": "f", "arguments": {"b": 1}}\n</tool_call>') == "whole"


@pytest.mark.parametrize("schema", [UNKNOWN, REMOTE, LOOKS_AHEAD])
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
