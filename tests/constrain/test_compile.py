"""Constraints of every kind, and how those that cannot be are refused. Texts are compared with jsonschema and re."""

import json
import re
import threading
import time

import jsonschema
import numpy as np
import pytest

from tests.constrain.conftest import byte_level
from tests.constrain.walks import accepts, compact, compiled, walk
from tokenmill.constrain.compile import CompileLimits, Compiler
from tokenmill.constrain.constraint import MAX_RENEWED_SIZE
from tokenmill.constrain.grammar import Spec, spec_of
from tokenmill.constrain.vocabulary import vocabulary_of
from tokenmill.errors import CapacityError, ConfigError, RequestError
from tokenmill.settings.sampling_params import SamplingParams

SCHEMAS = [
    {"type": "object"},
    {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["b"]},
    {"type": "object", "properties": {"a": {"enum": [1, "x", None, True]}}, "additionalProperties": False},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
    {"type": "string", "pattern": "^[a-z]{2}-\\d+$"},
    {"type": "string", "minLength": 2, "maxLength": 5},
    {"type": "string", "format": "date-time"},
    {"type": "number", "minimum": -1, "exclusiveMaximum": 10.5},
    {"type": "integer", "multipleOf": 7, "minimum": 10},
    {"oneOf": [{"type": "string", "maxLength": 4}, {"type": "integer"}]},
    {"anyOf": [{"const": {"k": [1, "é"]}}, {"type": "null"}]},
    {"allOf": [{"type": "object", "required": ["a"]}, {"properties": {"a": {"type": "null"}}}]},
    {"type": "object", "patternProperties": {"^x_": {"type": "integer"}}, "additionalProperties": False},
    {"$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}}}, "$ref": "#/$defs/n"},
    {"prefixItems": [{"type": "string"}, {"type": "null"}], "items": False, "type": "array"},
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=compact)
def test_every_walk_that_ends_fits_the_schema(vocabulary, schema):
    constraint = compiled(vocabulary, json_schema=schema)
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
    texts = [text for seed in range(12) for text, ends in [walk(constraint, seed)] if ends]
    assert texts
    for text in texts:
        validator.validate(json.loads(text))
        assert text.decode() == text.decode().strip()


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        (SCHEMAS[1], [{"b": "x"}, {"a": 3, "b": ""}], [{}, {"a": "3", "b": ""}, {"b": 1}, [], {"b": "", "c": []}]),
        (SCHEMAS[3], [[True], [False, True, True]], [[], [1], [True] * 4]),
        (SCHEMAS[7], [-1, 0, 10.25, -0.5], [-1.5, 10.5, 11, "1"]),
        (SCHEMAS[13], [[], [[[]], []]], [[1], {}]),
    ],
)
def test_what_fits_a_schema(vocabulary, schema, valid, invalid):
    constraint = compiled(vocabulary, json_schema=schema)
    assert [value for value in valid if not accepts(constraint, compact(value))] == []
    assert [value for value in invalid if accepts(constraint, compact(value))] == []


@pytest.mark.parametrize(
    ("schema", "comes", "never"),
    [
        ({"allOf": [{"required": ["a"]}, {"required": ["b"]}]}, '{"a":1,"b":2}', '{"b":2,"a":1}'),
        ({"const": {"a": 1, "b": 2}}, '{"a":1,"b":2}', '{"b":2,"a":1}'),
        ({"type": "integer"}, "1", "1.0"),
        ({"enum": [[0]]}, "[0]", "[0.0]"),
        ({"const": -2.0}, "-2", "-2.0"),
        ({"format": "date"}, '"1963-06-19"', '"06/19/1963"'),
        ({"$defs": {"a": {"type": "array"}}, "$ref": "#/$defs/a", "maxItems": 1}, "[1]", "[1,2]"),
    ],
    ids=str,
)
def test_kinds_of_valid_values_that_never_come(vocabulary, schema, comes, never):
    """As docs/structured-output.md lists them; the standard takes both."""
    constraint = compiled(vocabulary, json_schema=schema)
    assert (accepts(constraint, comes), accepts(constraint, never)) == (True, False)


def test_no_white_space_outside_of_texts(vocabulary):
    constraint = compiled(vocabulary, json_schema={"type": "object"})
    assert accepts(constraint, '{"a b":" "}')
    assert not any(accepts(constraint, text) for text in (' {"a":1}', '{ "a":1}', '{"a": 1}', '{"a":1}\n'))


@pytest.mark.parametrize("regex", [r"\d{3}-[a-f]+", "(ja|nein)!?", r"a/b\\c", r"[^\n\"]{0,4}x", "é+|🙂"])
def test_every_walk_that_ends_matches_the_expression(vocabulary, regex):
    constraint = compiled(vocabulary, regex=regex)
    for seed in range(8):
        text, ends = walk(constraint, seed)
        assert ends is False or re.fullmatch(regex, text.decode())


def test_choices_are_taken_letter_by_letter(vocabulary):
    texts = ("a+b", "a.b", "x/y", "line\nbreak", "tab\t", "(é)", "[", "^$", "a|b", "\\d", "{1}", '"', "#&~-")
    constraint = compiled(vocabulary, choice=texts)
    assert {walk(constraint, seed)[0].decode() for seed in range(300)} == set(texts)
    assert not any(accepts(constraint, text) for text in ("aab", "a", "a|b|", "1", ""))


GBNF = """root ::= item ("," item)*  # a list
item ::= [a-c]+ | "\\"" [0-9] "\\""
"""
LARK = """start: item ("," item)*
item: /[a-c]+/ | "\\"" /[0-9]/ "\\""
"""
PARTS = json.dumps(
    {"grammars": [{"name": "a", "lark_grammar": "start: @b | /[a-c]+/"}, {"name": "b", "lark_grammar": LARK}]}
)


@pytest.mark.parametrize("grammar", [GBNF, LARK, PARTS], ids=["gbnf", "lark", "parts"])
def test_grammars(vocabulary, grammar):
    constraint = compiled(vocabulary, grammar=grammar)
    for seed in range(5):
        text, ends = walk(constraint, seed)
        assert not ends or re.fullmatch('([a-c]+|"[0-9]")(,([a-c]+|"[0-9]"))*', text.decode())
    assert accepts(constraint, 'abc,"1",b') and not accepts(constraint, "d") and not accepts(constraint, "a,")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"json_schema": {"enum": []}}, "at #: Unsatisfiable schema: anyOf is empty"),
        ({"json_schema": {"items": {"type": "banana"}}}, "at #/items: Invalid type: banana"),
        (
            {"json_schema": {"properties": {"p": {"pattern": "(", "type": "string"}}}},
            "at #/properties/p: the pattern .* unclosed group",
        ),
        (
            {"json_schema": {"allOf": [{"type": "string"}, {"type": "null"}]}},
            "at #: Unsatisfiable .*incompatible types",
        ),
        ({"json_schema": {"type": "integer", "minimum": 5, "maximum": 3}}, "minimum .5. is greater than maximum .3."),
        (
            {"json_schema": {"$ref": "#/$defs/a", "$defs": {"a": {"type": "string", "minLength": 9, "maxLength": 1}}}},
            "at #/.defs/a: Unsatisfiable schema: minLength",
        ),
        (
            {
                "json_schema": {
                    "type": "object",
                    "properties": {
                        "a": {"type": "object", "required": ["b"], "properties": {"b": {"enum": []}}},
                        "c": {"enum": []},
                    },
                    "required": ["a"],
                }
            },
            "at #/properties/a/properties/b: Unsatisfiable schema: anyOf is empty",
        ),
        ({"json_schema": {"oneOf": [{"type": "string"}, {"maxLength": 3}]}}, "at #: oneOf constraints are not support"),
        (
            {"json_schema": {"properties": {"a": {"not": {"const": 1}}}}},
            "at #/properties/a: the keyword 'not' is not i",
        ),
        ({"json_schema": json.loads('{"items":' * 200 + "{}" + "}" * 200)}, "recursion limit exceeded"),
        (
            {"json_schema": {"properties": {f"p{number}": {} for number in range(2100)}, "type": "object"}},
            "Current row has 8399 items; max is 8000",
        ),
        ({"regex": "("}, "unclosed group"),
        ({"regex": "(?<=a)b"}, "look-behind"),
        ({"regex": "[^\\s\\S]"}, "no text of this model's tokens fits it"),
        ({"grammar": "start: nothing"}, 'unknown name: "nothing"'),
        ({"grammar": "word"}, "Expected token ':'"),
        ({"grammar": 'root ::= "a'}, "as GBNF it is wrong: Unexpected end of input at line 1"),
        ({"grammar": "{}"}, "Lark, GBNF, or a JSON object with a list of `grammars`"),
        ({"grammar": "start: <[99999]>"}, "Token range end too large"),
    ],
    ids=lambda each: str(each)[:60],
)
def test_refusals_name_the_setting_and_say_why(bytes_only, settings, message):
    (name,) = settings
    with pytest.raises(ConfigError, match=message) as raised:
        compiled(bytes_only, **settings)
    assert raised.value.name == name and str(raised.value).startswith(f"{name} = ") and len(str(raised.value)) < 1000


def test_a_text_that_no_tokens_spell_is_refused():
    few = vocabulary_of(byte_level(), 100)  # bytes up to 99
    with pytest.raises(ConfigError, match="no text of this model's tokens fits it"):
        compiled(few, choice=["xyz"])
    assert compiled(few, choice=["xyz", "ABC"])


def test_a_constraint_after_other_text(vocabulary):
    """By letters, or by a control token that has this spelling."""
    control = next(text for text, number in vocabulary.control.items() if number not in vocabulary.ends)
    for mark in ("</think>", control):
        spec = spec_of(SamplingParams(choice=["yes", "no"]), after=mark)
        found = Compiler(vocabulary).compile(spec).first.deep_copy()
        last = [vocabulary.control[mark]] if mark in vocabulary.control else vocabulary.tokens.tokenize_str(mark)
        assert found.consume_tokens(vocabulary.tokens.tokenize_str("let me <see>\n")) and not found.is_accepting()
        assert found.consume_tokens(last) and found.validate_tokens(vocabulary.tokens.tokenize_str("maybe")) == 0
        assert found.consume_tokens(vocabulary.tokens.tokenize_str("yes")) and found.is_accepting()


def test_the_last_constraints_are_kept(bytes_only):
    compiler, spec = Compiler(bytes_only), Spec("regex", "a+")
    assert compiler.compile(spec) is compiler.compile(Spec("regex", "a+"))
    assert compiler.compile(spec) != compiler.compile(Spec("regex", "b+"))
    assert hash(compiler.compile(spec)) == hash(Compiler(bytes_only).compile(spec))


def test_a_budget_of_time(bytes_only):
    """What is over it is refused while it goes on; after two of them others are, until one has ended."""
    compiler, spec, go = Compiler(bytes_only, CompileLimits(seconds=0.05)), Spec("regex", "a+"), threading.Event()
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"regex = 'a\+' is not allowed: it was not compiled in 0.05 s"):
            compiler.within(spec, go.wait)
    with pytest.raises(CapacityError, match="3 needed, 2 available; change regex, or try again later"):
        compiler.compile(spec)
    go.set()
    for _ in range(1000):
        if not any(thread.name == "compile a constraint" for thread in threading.enumerate()):
            break
        time.sleep(0.01)
    compiler._budget.seconds = 60.0
    assert compiler.compile(spec)


def test_without_a_constraint():
    assert spec_of(SamplingParams()) is None


def test_a_long_run_that_must_come_is_refused_at_once_and_later_ends_its_text(bytes_only):
    """Each mask inside of it would take a part of a second."""
    with pytest.raises(ConfigError, match=r"demands 20,000 bytes at one place; 16,384 are possible"):
        compiled(bytes_only, choice=("a" * 20_000,))
    matcher = compiled(bytes_only, regex="x[ab](a{1000}){1000}b").matcher()
    words_W = np.zeros(bytes_only.words, dtype=np.int32)
    assert matcher.follow([ord("x")]) == 1
    matcher.mask(words_W)
    assert matcher.follow([ord("x"), ord("a")]) == 2 and matcher.forced(9) == ([], 0)
    with pytest.raises(RequestError, match=r"demands [\d,]+ bytes at one place"):
        matcher.mask(words_W)


def test_a_long_grammar_that_is_used_up_is_not_compiled_in_a_step(bytes_only):
    compiler, spec = Compiler(bytes_only), spec_of(SamplingParams(choice=("b", *("a" * n for n in range(1, 400)))))
    first = compiler.compile(spec)
    assert len(first.grammar) > MAX_RENEWED_SIZE and compiler.compile(spec) is first
    assert not first.may_renew()
    second, third = compiler.compile(spec), compiler.compile(spec)
    assert first == second == third and len({id(each.first) for each in (first, second, third)}) == 3
    assert accepts(second, "b") and not second.is_spent


def test_a_grammar_that_takes_long_is_not_compiled_in_a_step(bytes_only):
    """A short one may: this took seconds in a step, for one text, as often as its pattern had reached a limit."""
    schema = {"type": "integer", "multipleOf": 19_997}
    constraint = compiled(bytes_only, json_schema=schema)
    assert constraint.took_s > 0 and len(constraint.grammar) < 1000
    constraint.took_s = 1.0
    assert not constraint.may_renew() and constraint.is_spent
    assert compiled(bytes_only, regex="ab").may_renew()
