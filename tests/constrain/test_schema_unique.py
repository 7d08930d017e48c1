"""uniqueItems: true where the values of items are few; elsewhere a warning. jsonschema tells what fits."""

import itertools
import json

import jsonschema
import pytest

from tests.constrain.walks import accepts, compact, compiled, walk
from tokenmill.constrain.schema import annotations
from tokenmill.errors import ConfigError

FEW = [
    {"enum": ["a", "b", 1]},
    {"type": "boolean"},
    {"type": ["boolean", "null"]},
    {"type": "integer", "minimum": 0, "exclusiveMaximum": 3},
    {"anyOf": [{"const": 1}, {"enum": [1.0, 2]}, {"type": "null"}]},
    {"$ref": "#/$defs/Color"},
    {"enum": [[1], {"a": 1}, "x"]},
]
COLOR = {"type": "string", "enum": ["red", "blue"]}
SEVERAL = ["a", "b", 1, 2, True, False, None, 0, 3, "red", "blue", [1], {"a": 1}, "x"]


@pytest.mark.parametrize("items", FEW, ids=json.dumps)
@pytest.mark.parametrize("more", [{}, {"minItems": 2}, {"maxItems": 1}, {"minItems": 1, "maxItems": 2}], ids=json.dumps)
def test_few_values_come_once_in_any_order(bytes_only, items, more):
    schema = {"type": "array", "items": items, "uniqueItems": True, **more, "$defs": {"Color": COLOR}}
    check, constraint = jsonschema.Draft202012Validator(schema), compiled(bytes_only, json_schema=schema)
    for number in range(4):
        for value in map(list, itertools.product(SEVERAL, repeat=number)):
            if number < 3 or value[0] in ("a", 1, True, "red", [1]):
                assert accepts(constraint, compact(value)) == check.is_valid(value), value
    assert annotations(schema) == []


@pytest.mark.parametrize(
    "items",
    [{"enum": [f"tag {number}" for number in range(60)]}, {"type": "integer", "minimum": -30, "maximum": 30}],
    ids=json.dumps,
)
@pytest.mark.parametrize("more", [{}, {"minItems": 2, "maxItems": 9}, {"minItems": 1}, {"maxItems": 1}], ids=json.dumps)
def test_more_values_come_in_their_order(bytes_only, items, more):
    schema = {"type": "array", "items": items, "uniqueItems": True, **more}
    constraint, check = compiled(bytes_only, json_schema=schema), jsonschema.Draft202012Validator(schema)
    values = items["enum"] if "enum" in items else list(range(-30, 31))
    for number in (*range(12), len(values)):
        assert accepts(constraint, compact(values[:number])) == check.is_valid(values[:number]), number
    assert not accepts(constraint, compact([values[5], values[4]])) and not accepts(constraint, compact(values[:1] * 2))
    ends = 0
    for seed in range(60):
        text, ended = walk(constraint, seed, most=300)
        if ended:
            ends += 1
            jsonschema.validate(json.loads(text), schema)
    assert ends > 0


def test_beside_other_parts_of_a_schema(bytes_only):
    schema = {
        "type": "object",
        "properties": {"tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True}},
        "allOf": [{"properties": {"tags": {"items": {"enum": ["b", "c", "d"]}, "minItems": 1}}}],
        "required": ["tags"],
    }
    constraint = compiled(bytes_only, json_schema=schema)
    for tags in (["b"], ["c", "b"], ["b", "b"], ["a"], [], ["d"]):
        value = {"tags": tags}
        assert accepts(constraint, compact(value)) == jsonschema.Draft202012Validator(schema).is_valid(value), tags


def test_of_many_values_it_is_told_that_they_may_come_twice(bytes_only):
    schema = {"properties": {"ids": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}}}
    assert accepts(compiled(bytes_only, json_schema=schema), '{"ids":[1,1]}')
    (told,) = annotations(schema)
    assert told.startswith("at #/properties/ids: that the items differ, 'uniqueItems', is not enforced")
    assert annotations({"type": "array", "uniqueItems": True, "maxItems": 1}) == []


def test_values_that_are_wrong_are_refused(bytes_only):
    for items, value, why in (({"enum": ["a"]}, "yes", "is true or false"), ({"enum": ["a"]}, True, "no value fits")):
        with pytest.raises(ConfigError, match=why):
            schema = {"type": "array", "items": items, "uniqueItems": value, "minItems": 2}
            compiled(bytes_only, json_schema=schema)


def test_as_many_values_as_are_taken_compile(bytes_only):
    schema = {"type": "array", "items": {"enum": [f"v{n}" for n in range(200)]}, "uniqueItems": True, "maxItems": 20}
    assert annotations(schema) == [] and accepts(compiled(bytes_only, json_schema=schema), '["v0","v199"]')
