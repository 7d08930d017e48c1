"""The types that schemas admit, also where references lead in circles."""

import pytest

from tokenmill.text.tools.kinds import ALL, kinds_of, unenforced, with_definitions, words_of

ROOT = {
    "type": "object",
    "$defs": {
        "text": {"type": "string", "maxLength": 3},
        "self": {"anyOf": [{"$ref": "#/$defs/self"}, {"$ref": "#/$defs/self"}, {"type": "null"}]},
        "circle": {"$ref": "#/$defs/circle"},
        "a/b": {"type": "array"},
        "a b": {"type": "object"},
        "named": {"$anchor": "item", "type": "integer"},
        **{f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 9} for n in range(40)},
        "d40": {"type": "boolean"},
    },
}


@pytest.mark.parametrize(
    ("schema", "kinds"),
    [
        ({}, ALL),
        (True, ALL),
        ({"type": "string"}, {"string"}),
        ({"type": ["number", "null"]}, {"number", "null"}),
        ({"enum": ["a", 1, None]}, {"string", "integer", "number", "null"}),
        ({"const": True}, {"boolean"}),
        ({"type": "number", "enum": [1, "a"]}, {"number"}),
        ({"anyOf": [{"type": "string"}, {"$ref": "#/$defs/a~1b"}]}, {"string", "array"}),
        ({"allOf": [{"type": ["string", "null"]}, {"type": ["null", "array"]}]}, {"null"}),
        ({"$ref": "#/$defs/text"}, {"string"}),
        ({"$ref": "#/$defs/self"}, {"null"}),
        ({"$ref": "#/$defs/circle"}, ALL),
        ({"$ref": "#/$defs/d0"}, {"boolean"}),
        ({"$ref": "https://example.org/x.json"}, ALL),
        ({"$ref": "#/nowhere/at/all"}, ALL),
        ({"$ref": "#/$defs/a%20b"}, {"object"}),
        ({"$ref": "#item"}, ALL),
    ],
)
def test_the_types_of_a_schema(schema, kinds):
    assert kinds_of(schema, ROOT) == kinds


def test_what_is_not_enforced_of_a_text():
    assert unenforced({"anyOf": [{"$ref": "#/$defs/text"}, {"type": "null", "x": 1}]}, ROOT) == ["maxLength"]
    assert unenforced({"type": "string", "description": "x", "enum": ["a"]}, ROOT) == []
    assert unenforced({"$ref": "#/$defs/self"}, ROOT) == []


def test_definitions_go_with_what_refers_to_them():
    assert with_definitions({"type": "string"}, ROOT) == {"type": "string"}
    assert with_definitions({"$ref": "#/$defs/text"}, ROOT) == {"$ref": "#/$defs/text", "$defs": ROOT["$defs"]}


def test_the_whole_schema_goes_with_a_reference_to_another_place_of_it():
    root = {"properties": {"a": {"$ref": "#/properties/$ref"}, "$ref": {"enum": [{"$ref": "#"}]}}, "$defs": {"b": {}}}
    moved = {"properties": {"a": {"$ref": "#/$defs/parameters/properties/$ref"}, "$ref": {"enum": [{"$ref": "#"}]}}}
    whole = {"$defs": {"parameters": moved | {"$defs": {"b": {}}}}}
    assert with_definitions({"items": {"$ref": "#"}}, root) == whole | {"items": {"$ref": "#/$defs/parameters"}}
    assert with_definitions({"$ref": "#/$defs/b"}, root) == {"$ref": "#/$defs/b", "$defs": {"b": {}}}


def test_the_words_of_a_schema():
    schema = {"properties": {"maxLength": {"type": "string", "pattern": "x"}}, "enum": [{"minimum": 1}], "x-own": {}}
    assert words_of(schema) == {"properties", "type", "pattern", "enum"}
    assert words_of(ROOT) >= {"$defs", "maxLength", "anyOf", "$ref"} and words_of(True) == set()
