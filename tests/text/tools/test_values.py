"""Values in Python's and JSON's spelling, compared with Python's own reading of them."""

import ast
import json

import pytest

from tokenmill.text.tools.kinds import json_of_literal, json_of_text, json_of_value

LITERALS = [
    "1",
    "-1.50",
    "1e5",
    "True",
    "None",
    "'a'",
    '"a"',
    "'it\\'s'",
    "'a\\n\\t\\\\b'",
    "'\\x41\\u00e9'",
    '"say \\"x\\" \\\'y\\\'"',
    "[1, 'a', None, {'k': True, 'x': [False]}]",
    "{'None': 'True', \"a'b\": \"None\"}",
    "[]",
    "{}",
    "''",
    "'é 😀'",
    "'a\\\nb'",
]


@pytest.mark.parametrize("written", LITERALS)
def test_literals_are_what_python_reads(written):
    assert json.loads(json_of_literal(written)) == ast.literal_eval(written)


@pytest.mark.parametrize("written", ["null", "true", '[1, "a", false]', '{"a": null}', '"\\u00e9\\/"', " 7 "])
def test_json_stays_as_it_is(written):
    assert json_of_literal(written) == written.strip()


@pytest.mark.parametrize(
    "written", ["", "a", "f(1)", "(1, 2)", "{1, 2}", "b'a'", "1 2", "NaN", "'a", "0777", "1_0", "5abc", "[1,]"]
)
def test_what_is_no_literal(written):
    assert json_of_literal(written) is None


def test_texts_and_values():
    assert json_of_text('a"\\\né') == 'a\\"\\\\\\né'
    assert json_of_value("five", frozenset({"integer"})) == '"five"'
    assert json_of_value(" 5 ", frozenset({"integer"})) == "5"
    assert json_of_value("5", frozenset({"string"})) == '"5"'
    assert json_of_value('"5"', frozenset({"integer"})) == '"5"'
    assert json_of_value("None", frozenset({"null", "string"})) == "null"
