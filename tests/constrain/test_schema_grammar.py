"""Grammars of whole schemas, which those get whose numbers, or counts of properties, llguidance reads otherwise."""

import json

import jsonschema
import pytest

from tests.constrain.walks import accepts, compact, compiled, walk
from tokenmill.errors import ConfigError
from tokenmill.text.schema.grammar import JsonStyle, rules_of
from tokenmill.text.tools.lark import Lark

BIG = 2**53 + 1
INT64 = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}
UINT64 = {"type": "integer", "minimum": 0, "maximum": 2**64 - 1}


def test_a_step_that_cannot_be_followed_is_refused_by_name(bytes_only):
    schema = {"properties": {"a": {"type": "number", "multipleOf": 1234.567891, "minimum": 0.5}}}
    with pytest.raises(
        ConfigError, match=r"at #/properties/a: multipleOf 1234.567891 beside its bounds has more remainders"
    ):
        compiled(bytes_only, json_schema=schema)
    with pytest.raises(ConfigError, match="multipleOf is 0"):
        compiled(bytes_only, json_schema={"type": "integer", "multipleOf": 0})
    with pytest.raises(ConfigError, match="at #/properties/a: Unsatisfiable schema: no value fits it"):
        compiled(
            bytes_only,
            json_schema={
                "type": "object",
                "properties": {"a": {"minimum": BIG, "maximum": 3, "type": "integer"}},
                "required": ["a"],
            },
        )


def test_weeks_in_seconds_take_few_states(bytes_only):
    """llguidance follows each of the 604,800 remainders, which takes it seconds."""
    _, rules = rules_of({"type": "integer", "multipleOf": 604_800}, "x", JsonStyle({}))
    assert len(rules) < 3_500
    constraint = compiled(bytes_only, json_schema={"type": "integer", "multipleOf": 604_800})
    assert accepts(constraint, str(604_800 * 12_345)) and not accepts(constraint, "6048") and accepts(constraint, "0")


OBJECTS = [
    {"type": "object", "properties": {"id": INT64, "b": {"type": "string"}}, "required": ["id"]},
    {"type": "object", "properties": {"id": UINT64}, "additionalProperties": False, "required": ["id"]},
    {"type": "object", "additionalProperties": {"type": "number", "exclusiveMinimum": 0}, "maxProperties": 2},
    {"type": "object", "patternProperties": {"^x_": UINT64}, "additionalProperties": {"type": "null"}},
    {"type": "array", "items": {"type": "number", "exclusiveMaximum": 1}, "minItems": 1, "maxItems": 3},
    {"type": "array", "prefixItems": [INT64, {"type": "string"}], "items": False},
    {
        "anyOf": [
            {"type": "object", "properties": {"k": {"const": "a"}, "v": UINT64}, "required": ["k"]},
            {"type": "null"},
        ]
    },
    {"oneOf": [{"properties": {"k": {"const": k}, "v": UINT64}, "required": ["k"], "type": "object"} for k in "ab"]},
    {
        "$defs": {
            "n": {"type": "object", "properties": {"next": {"$ref": "#/$defs/n"}, "v": UINT64}, "required": ["v"]}
        },
        "$ref": "#/$defs/n",
    },
    {"type": "object", "properties": {"a": {"type": "null"}, "b": UINT64}, "minProperties": 1, "maxProperties": 1},
    {
        "allOf": [{"properties": {"a": INT64}}, {"properties": {"a": {"minimum": 5}}, "required": ["a"]}],
        "type": "object",
    },
    {"type": ["object", "string", "integer"], "maximum": BIG, "minLength": 2, "pattern": '^[^"]+$'},
]


@pytest.mark.parametrize("schema", OBJECTS, ids=compact)
def test_walks_through_what_has_such_numbers_fit(vocabulary, schema):
    constraint = compiled(vocabulary, json_schema=schema)
    assert '"lark_grammar"' in constraint.grammar
    validator, ended = jsonschema.Draft202012Validator(schema), 0
    for seed in range(15):
        text, ends = walk(constraint, seed)
        if ends:
            validator.validate(json.loads(text))
            ended += 1
    assert ended > 3


def test_objects_of_two_options_that_a_value_may_fit_are_refused(bytes_only):
    with pytest.raises(ConfigError, match="oneOf constraints are not supported where a value may fit two"):
        compiled(bytes_only, json_schema={"oneOf": [UINT64, {"type": "integer"}]})


@pytest.mark.parametrize(
    ("schema", "fits", "fails"),
    [
        ({"minProperties": 2}, ['{"a":1,"b":2}', '{"key1":1,"key2":2}'], ['{"a":1,"a":2}', '{"a":1}']),
        ({"minProperties": 3}, ['{"a":1,"b":2,"c":3}'], ['{"a":1,"b":2,"a":3}', '{"a":1,"b":2}']),
        (
            {"minProperties": 2, "properties": {"a": {}}},
            ['{"a":1,"b":2}', '{"b":1,"c":2}'],
            ['{"a":1}', '{"b":1,"b":2}'],
        ),
        ({"minProperties": 2, "maxProperties": 2}, ['{"a":1,"b":2}'], ['{"a":1,"a":2}', '{"a":1,"b":2,"c":3}']),
        ({"maxProperties": 1, "properties": {"a": {}, "b": {}}}, ['{"a":1}', '{"b":1}', "{}"], ['{"a":1,"b":2}']),
        ({"minProperties": 1, "properties": {"a": {}}}, ['{"a":1}', '{"c":1}'], ["{}"]),
    ],
    ids=str,
)
def test_a_name_that_is_written_twice_counts_once(bytes_only, schema, fits, fails):
    """As Python's json reads an object."""
    constraint = compiled(bytes_only, json_schema={"type": "object", "additionalProperties": True, **schema})
    assert [text for text in fits if not accepts(constraint, text)] == []
    assert [text for text in fails if accepts(constraint, text)] == []
    for text in fits:
        jsonschema.validate(json.loads(text), schema)


def test_arguments_of_calls_are_exact(bytes_only):
    """A schema becomes rules of a grammar there, too."""
    lark = Lark({})
    name = lark.json("value", {"properties": {"id": UINT64}, "required": ["id"], "type": "object"}, strict=True)
    constraint = compiled(bytes_only, grammar=f"{lark}start: {name}\n")
    assert accepts(constraint, f'{{"id": {2**64 - 1}}}') and not accepts(constraint, f'{{"id": {2**64}}}')


@pytest.mark.parametrize(
    ("schema", "fits"),
    [
        ({"anyOf": [{"$ref": "#"}, UINT64]}, "5"),
        ({"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, UINT64]}}, "$ref": "#/$defs/a"}, "5"),
        ({"$defs": {"a": UINT64}, "allOf": [{"$ref": "#/$defs/a"}, {"anyOf": [{"$ref": "#/$defs/a"}]}]}, "5"),
    ],
    ids=compact,
)
def test_a_schema_that_may_be_itself(bytes_only, schema, fits):
    constraint = compiled(bytes_only, json_schema=schema)
    assert accepts(constraint, fits) and not accepts(constraint, "-5") and not accepts(constraint, '"x"')


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "required": 3, "maxProperties": 1, "properties": {"a": UINT64}},
        {"anyOf": [UINT64, {"type": "banana"}]},
        {"items": {**UINT64, "minimum": "5"}},
    ],
    ids=compact,
)
def test_keywords_of_wrong_types_are_refused(bytes_only, schema):
    with pytest.raises(ConfigError, match=r"json_schema = .* is not allowed: at #"):
        compiled(bytes_only, json_schema=schema)


def test_parts_that_multiply_are_refused_at_once(bytes_only):
    choice = {"anyOf": [{"minimum": number, "type": "integer"} for number in range(BIG, BIG + 8)]}
    with pytest.raises(ConfigError, match="make more than 2,000 cases"):
        compiled(bytes_only, json_schema={"allOf": [choice] * 9})
