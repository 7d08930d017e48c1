"""Keywords and parts of JSON schemas that are refused or left out, with their places."""

import pytest

from tokenmill.constrain.schema import read_schema
from tokenmill.constrain.schema_parts import SchemaError, pointer

NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"propertis": {}}, "at #: 'propertis' is no keyword of JSON Schema; is 'properties' meant?"),
        ({"properties": {"a/b~": {"items": {"fooo": 1}}}}, "at #/properties/a~1b~0/items: 'fooo' is no keyword"),
        ({"x-guidance": {"lenient": True}}, "at #: 'x-guidance' is no keyword"),
        ({"anyOf": [{"type": "string"}, {"not": {}}]}, "at #/anyOf/1: the keyword 'not' is not implemented"),
        ({"type": "array", "uniqueItems": True}, "at #: the keyword 'uniqueItems' is not implemented"),
        ({"properties": {"a": 3}}, "at #/properties/a: a schema is an object, or true or false, and not 3"),
        ({"$ref": "http://a.example/b.json"}, "at #: $ref names another document, 'http://a.example/b.json'"),
        ({"items": {"$ref": "other.json#/a"}}, "at #/items: $ref names another document"),
        ({"$ref": "file:///etc/passwd"}, "at #: $ref names another document"),
        ({"$ref": "#name", "$anchor": "name"}, "at #: $ref names an anchor, '#name'"),
        ({"$ref": "#/$defs/a"}, "at #: $ref names '#/$defs/a', which is not there"),
        ({"$ref": 3}, "at #: $ref is no text"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$id": "b"}}}, "at #: $ref is not possible where parts have an $id"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_what_is_refused(schema, message):
    with pytest.raises(SchemaError) as raised:
        read_schema(schema)
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"$defs": {"node": {**NODE, "required": ["next"]}}, "$ref": "#/$defs/node"}, "#/$defs/node/properties/next"),
        ({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, "#/$defs/"),
        ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, "#/items"),
        ({"type": "array", "prefixItems": [{"$ref": "#"}], "minItems": 1}, "#/prefixItems/0"),
        ({"type": "array", "items": [{}, {"$ref": "#"}], "minItems": 2}, "#/items/1"),
        ({"anyOf": [{"$ref": "#"}, False]}, "#/anyOf/"),
        ({"allOf": [{"type": "string"}, {"$ref": "#"}]}, "#/allOf/1"),
        ({"type": "object", "required": ["a"], "additionalProperties": {"$ref": "#"}}, "#/additionalProperties"),
        (
            {"type": ["object", "array"], "required": ["a"], "minItems": 1, "items": False, "properties": {"a": False}},
            "#/",
        ),
    ],
)
def test_a_text_without_an_end_is_refused(schema, place):
    with pytest.raises(SchemaError, match="no text with an end fits this part") as raised:
        read_schema(schema)
    assert str(raised.value).startswith(f"at {place}")


def test_optional_parts_without_an_end_are_left_out():
    required = {"$defs": {"node": {**NODE, "required": ["next"]}}}
    made = read_schema({**required, "type": "object", "properties": {"a": {"$ref": "#/$defs/node"}, "b": {}}})
    assert made["properties"] == {"a": False, "b": {}}
    made = read_schema({**required, "anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]})
    assert made["anyOf"] == [False, {"type": "null"}]


@pytest.mark.parametrize(
    "schema",
    [
        {"$defs": {"node": NODE}, "$ref": "#/$defs/node"},
        {"type": "array", "items": {"$ref": "#"}},
        {"anyOf": [{"type": "null"}, {"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#"}}}]},
        {"type": ["object", "string"], "required": ["a"], "properties": {"a": {"$ref": "#"}}},
        {"type": "object", "required": ["a"], "properties": {"b": {"$ref": "#"}}},
        {"title": "T", "x-order": 1, "$comment": "", "type": "object", "properties": {"title": {"description": "d"}}},
        {"$defs": {"unused": {"not": {}}}, "type": "integer"},
        {"properties": {"a%b": {"type": "integer"}}, "items": {"$ref": "#/properties/a%25b"}},
        {"const": {"fooo": 1}, "default": {"fooo": 1}},
    ],
)
def test_what_stays_as_it_is(schema):
    assert read_schema(schema) == schema


def test_keywords_that_ask_for_nothing_are_left_out():
    assert read_schema({"items": {"uniqueItems": False, "type": "array"}}) == {"items": {"type": "array"}}
    assert read_schema({"propertyNames": {"type": "string"}, "unevaluatedProperties": True}) == {}
    assert read_schema({"properties": {"uniqueItems": {}}}) == {"properties": {"uniqueItems": {}}}
    assert read_schema(True) == {} and pointer(("a", 0)) == "#/a/0"


def test_references_in_any_order_are_followed_in_a_time_that_grows_with_their_number():
    """With their square, it would take half a minute, in which threads of Python share one lock."""
    last = 9_000
    parts = {"d0": {"type": "null"}} | {f"d{n + 1}": {"$ref": f"#/$defs/d{n}"} for n in range(last)}
    schema = {"anyOf": [{"$ref": f"#/$defs/d{last - n}"} for n in range(last + 1)], "$defs": parts}
    assert read_schema(schema) == schema
