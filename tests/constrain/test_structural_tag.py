"""Structural tags: free text, in which a trigger begins a part that fits a schema."""

import json

import pytest

from tests.constrain.conftest import TURN
from tests.constrain.walks import accepts, compiled
from tokenmill.errors import ConfigError

TAGS = {
    "structures": [
        {"begin": "<f=a>", "schema": {"type": "integer"}, "end": "</f>"},
        {"begin": "<f=b>", "schema": {"type": "object", "additionalProperties": False}, "end": "</f>"},
    ],
    "triggers": ["<f="],
}


def test_a_trigger_begins_one_of_the_parts(vocabulary):
    constraint = compiled(vocabulary, structural_tag=TAGS)
    for text in ("", "free < text\n", "a <f=a>12</f> b <f=b>{}</f>", "<f=a>1</f><f=a>2</f>"):
        assert accepts(constraint, text), text
    for text in ("<f=", "a <f=c>1</f>", '<f=a>"x"</f>', "<f=a>1", "<f=b>{ }</f>"):
        assert not accepts(constraint, text), text
    as_text = compiled(vocabulary, structural_tag=json.dumps(TAGS))
    assert as_text == constraint


@pytest.mark.parametrize("triggers", [["<f", "<"], ["<", "<f"], ["<"]])
def test_a_trigger_may_be_the_beginning_of_another(triggers, vocabulary):
    parts = [{"begin": begin, "schema": {"type": "integer"}, "end": "."} for begin in ("<fun", "<gun")]
    constraint = compiled(vocabulary, structural_tag={"structures": parts, "triggers": triggers})
    assert accepts(constraint, "a<fun1.b<gun2.") and not accepts(constraint, "a<fun.")


def test_a_trigger_may_be_a_control_token(bytes_only):
    number = bytes_only.control[TURN]
    tag = {"begin": TURN + "{", "schema": {"type": "integer"}, "end": "}" + TURN}
    constraint = compiled(bytes_only, structural_tag={"structures": [tag], "triggers": [TURN]})
    word = bytes_only.tokens.tokenize_str
    matcher = constraint.first.deep_copy()
    assert matcher.consume_tokens([*word("hi"), number, *word("{12}")]) and not matcher.is_accepting()
    assert matcher.consume_tokens([number]) and matcher.is_accepting()
    assert accepts(constraint, f"letters {TURN} are none"), "letters that spell it are free text"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "an object with a `format`; or"),
        ({"structures": [], "triggers": ["a"]}, "at least one structure and one trigger"),
        ({**TAGS, "triggers": "<f="}, "`triggers` must be a list of texts"),
        ({**TAGS, "triggers": ["<g="]}, r"structures\[0\].begin = '<f=a>' begins with none of the triggers"),
        ({**TAGS, "more": 1}, "no key 'more'"),
        ({**TAGS, "structures": [{"begin": "<f=a>"}]}, r"structures\[0\].schema must be a JSON schema"),
        ({**TAGS, "structures": [{"begin": "<f=", "schema": {}, "x": 1}]}, r"no key 'x' in structures\[0\]"),
        ({**TAGS, "structures": [3]}, r"structures\[0\] must be an object with begin"),
        ({**TAGS, "structures": [{"begin": 3, "schema": {}}]}, r"structures\[0\].begin must be a text"),
        ({**TAGS, "structures": [{"begin": "<f=", "schema": {"not": 1}}]}, r"structures\[0\].schema at #: the keyword"),
    ],
)
def test_refusals(bytes_only, given, message):
    with pytest.raises(ConfigError, match=message):
        compiled(bytes_only, structural_tag=given)
