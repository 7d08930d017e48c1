"""oneOf is taken where no value fits two of its schemas. jsonschema tells what fits."""

import itertools
import json
from typing import Annotated, Literal

import jsonschema
import pydantic
import pytest

from tests.constrain.walks import accepts, compact, compiled, walk
from tokenmill.text.schema.apart import is_apart


class Cat(pydantic.BaseModel):
    kind: Literal["cat", "lion"]
    lives: Annotated[int, pydantic.Field(ge=1, le=9)]


class Dog(pydantic.BaseModel):
    kind: Literal["dog"]
    bark: bool


class Owner(pydantic.BaseModel):
    pet: Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]
    others: list[Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]] = []


def test_discriminated_unions_of_pydantic_are_taken(bytes_only):
    constraint = compiled(bytes_only, json_schema=Owner.model_json_schema())
    for value in ({"pet": {"kind": "lion", "lives": 9}}, {"pet": {"kind": "dog", "bark": True}, "others": []}):
        assert accepts(constraint, compact(value))
    for value in ({"pet": {"kind": "dog", "lives": 9}}, {"pet": {"kind": "cow", "bark": True}}):
        assert not accepts(constraint, compact(value))
    for seed in range(20):
        text, ended = walk(constraint, seed, most=400)
        if ended:
            Owner.model_validate_json(text)


KIND = {"enum": ["a", "b"]}
APART = [
    [{"type": "string"}, {"type": ["integer", "null"]}],
    [{"type": "integer", "maximum": 3}, {"type": "number", "exclusiveMinimum": 3}],
    [{"const": 1.5}, {"type": "integer"}, {"type": "string"}],
    [{"enum": ["a", 1]}, {"const": "b"}],
    [{"type": "string", "maxLength": 3}, {"type": "string", "minLength": 4}],
    [{"type": "array", "maxItems": 1}, {"type": "array", "minItems": 2}],
    [{"type": "array", "items": {"type": kind}, "minItems": 1} for kind in ("string", "integer")],
    [{"type": "object", "properties": {name: True}, "required": [name]} for name in ("x", "y")],  # closed
    [{"allOf": [{"$ref": "#/$defs/Kind"}, {"const": "a"}]}, {"type": "string", "const": "c"}],
    [
        {"type": "object", "properties": {"k": {"$ref": "#/$defs/Kind"}}, "required": ["k"]},
        {"type": "object", "properties": {"k": {"anyOf": [{"const": "c"}, {"type": "null"}]}}, "required": ["k"]},
    ],
]


@pytest.mark.parametrize("options", APART, ids=json.dumps)
def test_schemas_that_are_apart_are_taken(bytes_only, options):
    schema = {"oneOf": options, "$defs": {"Kind": KIND}}
    constraint = compiled(bytes_only, json_schema=schema)
    for seed in range(10):
        text, ended = walk(constraint, seed, most=300)
        if ended:
            jsonschema.validate(json.loads(text), schema)


def test_oneOf_beside_other_choices_and_parts(bytes_only):
    schema = {
        "type": "object",
        "properties": {"k": {"type": "string"}, "n": {"type": "integer"}},
        "oneOf": [{"properties": {"k": {"const": each}}, "required": ["k"]} for each in "ab"],
        "anyOf": [{"properties": {"n": {"const": each}}, "required": ["n"]} for each in (1, 2)],
        "allOf": [{"properties": {"n": {"minimum": 2}}}],
    }
    constraint = compiled(bytes_only, json_schema=schema)
    for k, n in itertools.product("abc", (1, 2, 3)):
        value = {"k": k, "n": n}
        assert accepts(constraint, compact(value)) == jsonschema.Draft202012Validator(schema).is_valid(value), value


PARTS = [
    *({"type": kind} for kind in ("string", "integer", "number", "object", "array", "null")),
    *({"const": each} for each in ("a", 1, 1.5, None, True, {"k": "a"}, ["a"])),
    *({"enum": each} for each in (["a", "b"], [1, 2.5], [["a"], "c"])),
    *({"minimum": 2}, {"maximum": 1.5}, {"exclusiveMaximum": 2, "type": "integer"}, {"minLength": 2}, {"maxLength": 1}),
    *({"type": "array", "maxItems": 1}, {"type": "array", "minItems": 1, "items": {"type": "string"}}),
    {"type": "array", "minItems": 1, "items": {"type": "integer"}},
    {"type": "object", "required": ["k"], "properties": {"k": {"const": "a"}}},
    {"type": "object", "required": ["k"], "properties": {"k": {"const": "b"}}},
    {"type": "object", "properties": {"j": True}, "additionalProperties": False},
    {"properties": {"k": False}},
]
VALUES = [
    *("a", "b", "c", "", 0, 1, 2, 1.5, 1.75, 2.5, None, True, False, [], ["a"], ["a", 1], [1], [[]]),
    *({}, {"k": "a"}, {"k": "b"}, {"k": 1}, {"j": 1}, {"j": 1, "k": "a"}),
]


def test_what_is_said_to_be_apart_is_apart_by_jsonschema():
    kinds = [jsonschema.Draft202012Validator(part) for part in PARTS]
    taken = 0
    for one, other in itertools.combinations(range(len(PARTS)), 2):
        if is_apart([PARTS[one], PARTS[other]], {}):
            taken += 1
            both = [value for value in VALUES if kinds[one].is_valid(value) and kinds[other].is_valid(value)]
            assert not both, (PARTS[one], PARTS[other], both)
    assert taken > 150
