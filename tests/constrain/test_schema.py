"""Keywords and parts of JSON schemas that are refused or left out, with their places."""

import json

import jsonschema
import pytest

from tests.constrain.walks import accepts, compact, compiled
from tokenmill.constrain.schema import annotations, read_schema, reading
from tokenmill.constrain.schema_parts import SchemaError, pointer
from tokenmill.errors import ConfigError

NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"anyOf": [{"type": "string"}, {"not": {"const": 1}}]}, "at #/anyOf/1: the keyword 'not' is not implemented"),
        ({"properties": {"a": {"disallow": "string"}}}, "at #/properties/a: the keyword 'disallow' is not implemented"),
        ({"propertyNames": {"not": {"const": "a"}}}, "at #: the keyword 'propertyNames' is implemented with an enum"),
        (
            {"propertyNames": {"pattern": "^a"}, "patternProperties": {"^ab": {}}},
            "at #: the keyword 'propertyNames' is not implemented beside 'patternProperties'",
        ),
        ({"type": "array", "contains": True}, "at #: the keyword 'contains' is not implemented"),
        ({"type": "array", "maxContains": 1, "contains": {}}, "at #: the keyword 'maxContains' is not implemented"),
        ({"if": {"type": "string"}, "then": {"minLength": 2}}, "at #: the keyword 'if' is not implemented"),
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
        ({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, "#/$defs/a:"),
        ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, "#/items"),
        ({"type": "array", "prefixItems": [{"$ref": "#"}], "minItems": 1}, "#/prefixItems/0"),
        ({"type": "array", "items": [{}, {"$ref": "#"}], "minItems": 2}, "#/items/1"),
        ({"anyOf": [{"$ref": "#"}, False]}, "#/anyOf/0:"),
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
        {"type": "object", "properties": {"title": {}, "x-order": {}, "fooo": {}}},
        {"$defs": {"unused": {"not": {}}}, "type": "integer"},
        {"properties": {"a%b": {"type": "integer"}}, "items": {"$ref": "#/properties/a%25b"}},
        {"const": {"fooo": 1}, "enum": [{"fooo": 1}]},
    ],
)
def test_what_stays_as_it_is(schema):
    assert read_schema(schema, is_open=True) == schema


def test_keywords_that_ask_for_nothing_are_left_out():
    items = {"items": {"uniqueItems": False, "type": "array"}, "type": "array"}
    assert read_schema(items) == {"items": {"type": "array"}, "type": "array"}
    assert read_schema({"propertyNames": {"type": "string"}, "unevaluatedProperties": True, "not": False}) == {}
    named = {"properties": {"uniqueItems": {}, "min_items": {}}}
    assert read_schema(named, is_open=True) == named
    described = {"title": "T", "x-order": 1, "$comment": "", "properties": {"title": {"description": "d"}}}
    assert reading(described, is_open=True) == ({"properties": {"title": {}}}, [], [])
    assert read_schema(True) == {} and pointer(("a", 0)) == "#/a/0"


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ({"propertis": {}}, "at #: 'propertis' is no keyword of JSON Schema, so it is not enforced; is 'properties' m"),
        ({"properties": {"a/b~": {"items": {"fooo": 1}}}}, "at #/properties/a~1b~0/items: 'fooo' is no keyword"),
        ({"x-guidance": {"lenient": True}}, "at #: 'x-guidance' is no keyword"),
        (
            {"type": "array", "min_items": 1},
            "at #: 'min_items' is no keyword of JSON Schema, so it is not enforced; is",
        ),
        ({"type": "number", "units": "kg"}, "at #: 'units' is no keyword of JSON Schema, so it is not enforced"),
        ({"type": "string", "format": "starts_with"}, "at #: the format 'starts_with' is not known, so it is not enf"),
        ({"format": "unknown"}, "at #: the format 'unknown' is not known"),
        ({"items": [{"format": "path"}, {"format": "path"}]}, "at #/items/0 and 1 more place: the format 'path' is"),
        ({"type": "string", "then": {"not": {}}}, "at #: 'then' stands without 'if', so it is not enforced"),
        ({"items": {"else": {"if": {}}}}, "at #/items: 'else' stands without 'if', so it is not enforced"),
        ({"if": {"type": "string"}}, "at #: 'if' stands without 'then' or 'else', so it is not enforced"),
        ({"type": "array", "minContains": 2}, "at #: 'minContains' stands without 'contains', so it is not enforced"),
        ({"propertyNames": {"format": "uuid"}}, "at #: the format 'uuid' of names is not enforced"),
    ],
    ids=str,
)
def test_what_the_standard_calls_an_annotation_is_left_out_and_told(schema, told):
    """JSON Schema 2020-12: core 4.3.1 on keywords, validation 7.2.3 on formats, that are not known; core 10.2.2 and
    validation 6.4.4 on keywords that need another one.
    """
    read = reading(schema)
    assert len(read.warnings) == 1 and read.warnings[0].startswith(told)
    text = json.dumps(read.schema)
    unknown = ("propertis", "fooo", "x-guidance", "min_items", "units", "format", "if", "then", "else", "minContains")
    assert not any(f'"{word}":' in text for word in unknown)


def test_no_more_than_twenty_annotations_are_told_one_by_one():
    warnings = reading({"properties": {f"p{number}": {f"word{number}": 1} for number in range(30)}}).warnings
    assert len(warnings) == 21 and warnings[-1] == "so it is with 10 further keywords and formats"


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"type": "object", "propertyNames": {"enum": ["a", "b"]}}, [{}, {"b": "x"}], [{"c": 1}]),
        ({"type": "object", "propertyNames": {"const": "a"}, "required": ["a"]}, [{"a": 1}], [{}, {"a": 1, "b": 1}]),
        (
            {"propertyNames": {"$ref": "#/$defs/E"}, "additionalProperties": {"type": "integer"}, "type": "object"}
            | {"$defs": {"E": {"enum": ["x", "y"], "title": "E", "type": "string"}}},
            [{"x": 1, "y": 2}],
            [{"x": "1"}, {"z": 1}],
        ),
        (
            {"type": "object", "propertyNames": {"enum": ["a", 1]}, "properties": {"a": {"type": "null"}, "c": {}}},
            [{"a": None}],
            [{"a": 1}, {"c": 1}],
        ),
        ({"type": "object", "propertyNames": {"pattern": "^x_"}}, [{"x_a": 1}, {}], [{"a": 1}]),
        (
            {"type": "object", "propertyNames": {"minLength": 2, "maxLength": 3}, "additionalProperties": {"const": 1}},
            [{"ab": 1, "abc": 1}],
            [{"a": 1}, {"abcd": 1}, {"ab": 2}],
        ),
        ({"type": "object", "propertyNames": {"enum": ["a"]}, "additionalProperties": False}, [{}], [{"a": 1}]),
        ({"type": "object", "properties": {"a": {"not": {}}, "b": {}}}, [{"b": 1}], [{"a": 1}]),
        (
            {"anyOf": [{"type": "object", "properties": {"a": {"not": True}}, "required": ["a"]}, {"const": 1}]},
            [1],
            [{}],
        ),
    ],
    ids=str,
)
@pytest.mark.parametrize("is_open", [True, False])
def test_names_and_nevers_are_said_by_other_keywords(schema, valid, invalid, is_open, bytes_only):
    constraint = compiled(bytes_only, json_schema=schema, additional_properties=is_open)
    is_valid = jsonschema.Draft202012Validator(schema).is_valid
    assert [each for each in valid if not (is_valid(each) and accepts(constraint, compact(each)))] == []
    assert [each for each in invalid if is_valid(each) or accepts(constraint, compact(each))] == []


def test_a_schema_that_says_never_is_refused():
    for schema in ({"not": {}}, {"properties": {"a": {"not": {}}}, "required": ["a"], "type": "object"}):
        with pytest.raises(SchemaError, match="no text with an end fits this part"):
            read_schema(schema)


def test_what_is_not_implemented_can_be_left_out():
    schema = {
        "type": "array",
        "contains": {"const": 1},
        "items": {"type": "object", "propertyNames": {"not": {"const": "a"}}},
    }
    read = reading(schema, is_lenient=True)
    assert read.schema == {"type": "array", "items": {"type": "object"}} and read.warnings == []
    assert [each.split(": ", 1)[0] for each in read.left_out] == ["at #", "at #/items"]


def test_references_in_any_order_are_followed_in_a_time_that_grows_with_their_number():
    """With their square, it would take half a minute, in which threads of Python share one lock."""
    last = 9_000
    parts = {"d0": {"type": "null"}} | {f"d{n + 1}": {"$ref": f"#/$defs/d{n}"} for n in range(last)}
    schema = {"anyOf": [{"$ref": f"#/$defs/d{last - n}"} for n in range(last + 1)], "$defs": parts}
    assert read_schema(schema) == schema


IN_COMPONENTS = {
    "type": "object",
    "properties": {"tag": {"$ref": "#/components/schemas/Tag"}, "one": {"$ref": "#/x-shared/0"}},
    "required": ["tag", "one"],
    "components": {
        "schemas": {
            "Tag": {"type": "object", "properties": {"id": {"$ref": "#/components/schemas/Id"}}, "required": ["id"]},
            "Id": {"type": ["integer", "null"], "maximum": 9, "minimum": 0, "example": {"$ref": "#/nowhere"}},
        }
    },
    "x-shared": [{"const": 1}],
}
IN_WHAT_NEVER_ENDS = {
    "type": "object",
    "properties": {
        "a": {"type": "object", "properties": {"a": {"$ref": "#/properties/a"}, "b": {"const": 1}}, "required": ["a"]},
        "c": {"$ref": "#/properties/a/properties/b"},
    },
    "required": ["c"],
}


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        (IN_COMPONENTS, {"tag": {"id": 7}, "one": 1}, {"tag": {"id": 10}, "one": 1}),
        (IN_COMPONENTS, {"tag": {"id": None}, "one": 1}, {"tag": {}, "one": 1}),
        (IN_WHAT_NEVER_ENDS, {"c": 1}, {"c": 2}),
    ],
)
@pytest.mark.parametrize("is_open", [False, True])
def test_references_lead_into_what_is_left_out(schema, valid, invalid, is_open, bytes_only):
    assert jsonschema.Draft202012Validator(schema).is_valid(valid)
    assert not jsonschema.Draft202012Validator(schema).is_valid(invalid)
    constraint = compiled(bytes_only, json_schema=schema, additional_properties=is_open)
    assert accepts(constraint, compact(valid))
    assert not accepts(constraint, compact(invalid))
    assert annotations(schema) == []


@pytest.mark.parametrize(
    ("schema", "text", "told"),
    [
        (
            {"type": "object", "properties": {}, "required": None},
            "{}",
            "at #: 'required' is null, so it is not enforced",
        ),
        (
            {"type": "array", "items": None, "minItems": 1.0, "maxItems": 1.0},
            "[2]",
            "at #: 'items' is null, so it is not enforced",
        ),
        (
            {"type": "object", "properties": {"b": {"$ref": None}}, "additionalProperties": False},
            '{"b":1}',
            "at #/properties/b: '$ref' is null, so it is not enforced",
        ),
        ({"type": "string", "not": None}, '"a"', "at #: 'not' is null, so it is not enforced"),
        ({"type": "string", "if": {}, "then": None}, '"a"', "at #: 'if' stands without 'then' or 'else', so it is not"),
    ],
    ids=str,
)
def test_keywords_that_are_null_are_annotations_and_counts_may_have_a_point(schema, text, told, bytes_only):
    """Go writes null for a list without items, and Java's Gson writes 1.0 for 1."""
    assert any(each.startswith(told) for each in annotations(schema))
    assert accepts(compiled(bytes_only, json_schema=schema), text)
    assert not accepts(compiled(bytes_only, json_schema=schema), '{"a":1}')
    assert not accepts(compiled(bytes_only, json_schema=schema), "[1,2]")


@pytest.mark.parametrize(
    "schema", [{"const": 10**400}, {"type": "integer", "enum": [3, 10**400]}], ids=["const", "enum"]
)
def test_integers_that_no_float_holds(schema, bytes_only):
    constraint = compiled(bytes_only, json_schema=schema)
    assert accepts(constraint, "1" + 400 * "0")
    assert not accepts(constraint, "1" + 399 * "0" + "1")


def test_bounds_that_no_float_holds_are_refused_or_kept(bytes_only):
    with pytest.raises(ConfigError, match="no value fits it"):
        compiled(bytes_only, json_schema={"type": "integer", "minimum": 10**400})
    assert accepts(compiled(bytes_only, json_schema={"type": "integer", "maximum": 10**400}), "3")
