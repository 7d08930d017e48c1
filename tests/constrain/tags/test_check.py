"""Formats whose texts llguidance would not read as they are meant are refused, and others are not."""

import pytest

from tests.constrain.walks import accepts, compiled
from tokenmill.errors import ConfigError

ANY = {"type": "any_text"}
OBJECT = {"type": "json_schema", "json_schema": {"type": "object", "additionalProperties": False}}
SMALL = {"type": "json_schema", "json_schema": {"type": "integer", "maximum": 99}}
NESTED = {"type": "grammar", "grammar": 'root ::= "(" root ")" | w\nw ::= [a-z]+'}


def row(*elements):
    return {"type": "sequence", "elements": list(elements)}


def text(value):
    return {"type": "const_string", "value": value}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (row(ANY, OBJECT), r"format.elements\[0\] may end where a text could as well go on: llguidance reads the long"),
        (
            row(SMALL, text("0")),
            r"format.elements\[0\].json_schema may go on where what follows it begins: llguid",
        ),
        (row(NESTED, text("a")), r"format.elements\[0\].grammar may go on where what follows it begins"),
        (row({"type": "regex", "pattern": r"\{*"}, OBJECT), r"format.elements\[0\].pattern may end where a text could"),
        ({"type": "or", "elements": [OBJECT, text("{x")]}, r"may stand at the same place and begin alike"),
        (
            {"type": "or", "elements": [row(text("a"), OBJECT), row(text("a{b"), OBJECT)]},
            r"format.elements\[0\].elements\[0\].value may end where a text could as well go on \(format.elements\[1\]",
        ),
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(bytes_only, given, message):
    with pytest.raises(ConfigError, match=message):
        compiled(bytes_only, structural_tag={"format": given})


@pytest.mark.parametrize(
    ("given", "fits"),
    [
        (row(ANY, text("!")), "a!b!"),
        (row(text("a"), OBJECT), "a{}"),
        (row(NESTED, text("1")), "((ab))1"),
        (row(SMALL, text("a0")), "12a0"),
        ({"type": "or", "elements": [OBJECT, text("x{"), SMALL]}, "x{"),
        ({"type": "or", "elements": [row(text("a"), OBJECT), row(text("ab"), OBJECT)]}, "ab{}"),
    ],
)
def test_what_can_be_told_apart_is_read(bytes_only, given, fits):
    assert accepts(compiled(bytes_only, structural_tag={"format": given}), fits)
