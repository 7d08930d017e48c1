"""`unevaluatedProperties` and `unevaluatedItems`. What is right comes from jsonschema, by draft 2020-12."""

import json
import random
from copy import deepcopy

import jsonschema
import pytest

from tests.constrain.test_closing import _random_schema, properties
from tests.constrain.walks import accepts, compact, compiled, walk
from tokenmill.constrain.other_words import rewrite_unevaluated
from tokenmill.constrain.schema import read_schema, reading
from tokenmill.constrain.schema_parts import SchemaError
from tokenmill.errors import ConfigError

INTEGER = {"type": "integer"}
NAMED = properties(a=INTEGER)
CLOSED = {"unevaluatedProperties": False}
BASE = {"$defs": {"base": NAMED}}
REQUIRING = [{"required": ["a"]}, {"required": ["b"]}]


@pytest.mark.parametrize(
    ("schema", "values"),
    [
        ({**NAMED, **CLOSED}, [{}, {"a": 1}, {"a": "x"}, {"a": 1, "b": 2}]),
        ({"type": "object", **CLOSED}, [{}, {"a": 1}]),
        ({**NAMED, "unevaluatedProperties": {"type": "null"}}, [{"a": 1, "b": None}, {"b": 1}]),
        ({**NAMED, **CLOSED, "additionalProperties": True}, [{"a": 1, "b": 2}, {"a": "x"}]),
        ({**NAMED, **CLOSED, "patternProperties": {"^x": INTEGER}}, [{"a": 1, "x": 2}, {"x": "x"}, {"b": 1}]),
        ({**properties(p={**NAMED, **CLOSED}), "additionalProperties": True}, [{"p": {"a": 1}}, {"p": {"b": 1}}]),
        ({"type": "object", "propertyNames": {"enum": ["a"]}, **CLOSED}, [{}, {"a": 1}]),
        ({"$ref": "#/$defs/base", **CLOSED, **BASE}, [{"a": 1}, {"a": "x"}, {"b": 1}]),
        (
            {"allOf": [{"$ref": "#/$defs/base"}], **properties(b=INTEGER), **CLOSED, **BASE},
            [{"a": 1, "b": 2}, {"b": 2}, {"b": "x"}, {"c": 1}],
        ),
        (  # the schema that is referred to stays open for others
            properties(x={"$ref": "#/$defs/base", **CLOSED}, y={"$ref": "#/$defs/base"}) | BASE,
            [{"x": {"a": 1}, "y": {"a": 1}}, {"x": {"b": 1}}],
        ),
        (  # one part of a value knows nothing of the others
            {"allOf": [{**NAMED, **CLOSED}, properties(b=INTEGER)]},
            [{"a": 1}, {"a": 1, "b": 1}],
        ),
        (
            {"anyOf": [properties(a=INTEGER), properties(b=INTEGER)], **properties(c=INTEGER), **CLOSED},
            [{"a": 1, "c": 1}, {"b": 1, "c": 1}, {"c": 1, "d": 1}, {"a": "x", "c": 1}],
        ),
        (
            {"anyOf": REQUIRING, **properties(a=INTEGER, b=INTEGER), **CLOSED},
            [{"a": 1}, {"a": 1, "b": 1}, {}, {"c": 1}],
        ),
        (
            {"anyOf": REQUIRING, "oneOf": [properties(a=INTEGER, b={"const": 1}), {"type": "null"}], **CLOSED},
            [{"a": 1}, {"b": 1}, {"a": 1, "c": 1}, None],
        ),
        ({"allOf": [{**NAMED, "additionalProperties": True}], **CLOSED}, [{"a": 1, "b": 1}, {"a": "x"}]),
        ({"allOf": [NAMED, {"unevaluatedProperties": True}], **CLOSED}, [{"a": 1, "b": 1}, {"a": "x"}]),
        ({"prefixItems": [INTEGER], "unevaluatedItems": False, "type": "array"}, [[], [1], ["x"], [1, 2]]),
        ({"prefixItems": [INTEGER], "unevaluatedItems": {"type": "null"}, "type": "array"}, [[1, None], [1, 2]]),
        ({"type": "array", "unevaluatedItems": False}, [[], [1]]),
        ({"type": "array", "items": INTEGER, "unevaluatedItems": False}, [[1, 2], ["x"]]),
    ],
    ids=str,
)
def test_what_is_evaluated_comes_and_nothing_else(schema, values, bytes_only):
    is_valid = jsonschema.Draft202012Validator(schema).is_valid
    constraint = compiled(bytes_only, json_schema=schema, additional_properties=True)
    assert [accepts(constraint, compact(each)) for each in values] == [is_valid(each) for each in values]
    assert any(map(is_valid, values))
    closed = compiled(bytes_only, json_schema=schema)
    assert [each for each in values if accepts(closed, compact(each)) and not is_valid(each)] == []


def test_lists_of_older_drafts(bytes_only):
    schema = {"type": "array", "items": [INTEGER], "unevaluatedItems": False}
    schema["$schema"] = "https://json-schema.org/draft/2019-09/schema"
    is_valid = jsonschema.Draft201909Validator(schema).is_valid
    constraint = compiled(bytes_only, json_schema=schema, additional_properties=True)
    for value in ([], [1], ["x"], [1, 2]):
        assert accepts(constraint, compact(value)) == is_valid(value)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (
            {"allOf": [NAMED], "unevaluatedProperties": INTEGER},
            "at #: the keyword 'unevaluatedProperties' is not implemented beside 'allOf'",
        ),
        (
            {"type": "array", "$ref": "#/$defs/a", "unevaluatedItems": False, "$defs": {"a": {}}},
            "at #: the keyword 'unevaluatedItems' is not implemented beside '$ref'",
        ),
        (
            properties(p={"anyOf": [NAMED, {}], "oneOf": [properties(b={}), {"type": "null"}], **CLOSED}),
            "at #/properties/p: the keyword 'unevaluatedProperties' is not implemented where two choices",
        ),
        (
            {"$ref": "#/$defs/a"}
            | {"$defs": {n: {"anyOf": [{"$ref": f"#/$defs/{m}"}, NAMED], **CLOSED} for n, m in ("ab", "ba")}},
            "at #/$defs/a: the keyword 'unevaluatedProperties' is not implemented where two choices name prop",
        ),
        (
            {**NAMED, "unevaluatedProperties": {"not": INTEGER}},
            "at #/unevaluatedProperties: the keyword 'not' is not imp",
        ),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_what_cannot_be_said_is_refused_or_left_out(schema, message):
    with pytest.raises(SchemaError) as raised:
        read_schema(schema)
    assert str(raised.value).startswith(message)
    assert any(each.startswith(message) for each in reading(schema, is_lenient=True).left_out)


def _closed_at_random(chance, node):
    if chance.random() < 0.35:
        node["unevaluatedProperties"] = chance.choice([False, False, False, True, {"type": "integer"}])
    if chance.random() < 0.1:
        node["required"] = [chance.choice("abc")]
    for each in (*node.get("allOf", ()), *node.get("anyOf", ()), *node.get("properties", {}).values()):
        _closed_at_random(chance, each)


def _random_schemas(seed, number):
    chance = random.Random(seed)
    for _ in range(number):
        defs = {name: _random_schema(chance, 0, ["a", "b", "c", "x1"]) for name in "pq"}
        schema = _random_schema(chance, 2, ["a", "b", "c", "x1"]) | {"type": "object"}
        for each in (schema, *defs.values()):
            _closed_at_random(chance, each)
        yield chance, schema | {"$defs": defs}


def test_random_schemas_say_the_same_in_other_words():
    """Without a choice; with one, what comes is valid."""
    num_valid = num_invalid = num_refused = 0
    for chance, schema in _random_schemas(1, 400):
        made = deepcopy(schema)
        try:
            rewrite_unevaluated(made)
        except SchemaError:
            num_refused += 1
            continue
        found, given = jsonschema.Draft202012Validator(made), jsonschema.Draft202012Validator(schema)
        for _ in range(12):
            value = {name: chance.choice([1, 1, {}]) for name in chance.sample(["a", "b", "c", "x1", "z"], 2)}
            came, valid = found.is_valid(value), given.is_valid(value)
            assert came == valid or (valid and "anyOf" in json.dumps(schema)), (schema, made, value)
            num_valid, num_invalid = num_valid + valid, num_invalid + (not valid)
    assert num_valid > 800 and num_invalid > 800 and num_refused < 100


def test_random_texts_fit(bytes_only):
    ended = 0
    for chance, schema in _random_schemas(2, 60):
        for is_open in (True, False):
            try:
                constraint = compiled(bytes_only, json_schema=schema, additional_properties=is_open)
            except ConfigError:
                continue
            text, ends = walk(constraint, chance.random())
            if ends:
                ended += 1
                jsonschema.validate(json.loads(text), schema)
    assert ended > 60


def test_many_take_no_time_of_their_square():
    last = 2_000
    parts = {"base": NAMED} | {f"d{n}": {"allOf": [{"$ref": "#/$defs/base"}], **CLOSED} for n in range(last)}
    made = read_schema(properties(**{f"p{n}": {"$ref": f"#/$defs/d{n}"} for n in range(last)}) | {"$defs": parts})
    (place,) = {each["allOf"][0]["$ref"] for name, each in made["$defs"].items() if name.startswith("d")}
    assert made["$defs"][place.removeprefix("#/$defs/")] == {**NAMED, "additionalProperties": False}
