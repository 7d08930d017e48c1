"""The JSON types that a schema admits, for the formats that write arguments not as JSON."""

import json
from collections.abc import Mapping
from typing import Any

ALL = frozenset({"string", "number", "integer", "boolean", "null", "array", "object"})
NAMED = ("properties", "$defs", "definitions", "patternProperties")
VALUES = ("enum", "const", "default", "examples")
COMBINED = ("anyOf", "oneOf", "allOf")
NOTHING: Mapping[str, Any] = {}
MAX_REFERENCES = 20  # followed for one schema
TOLD = frozenset({"type", "title", "description", "default", "examples", "enum", "const", "$comment", "deprecated"})
"""Keywords of a text's schema that are enforced, or enforce nothing."""


def resolved(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """A schema with its own reference followed; an empty one where there is nothing to be followed."""
    for _ in range(MAX_REFERENCES):
        if not isinstance(schema, Mapping):
            return NOTHING
        if not isinstance(place := schema.get("$ref"), str):
            return schema
        schema = _found(place, root)
    return NOTHING


def kinds_of(schema: Any, root: Mapping[str, Any]) -> frozenset[str]:
    """The types that a value of this schema may have. root: where references are looked up."""
    return _kinds(resolved(schema, root), root, {})


def _kinds(
    schema: Mapping[str, Any], root: Mapping[str, Any], known: dict[int, frozenset[str] | None]
) -> frozenset[str]:
    """See kinds_of. known: by the ids of schemas that were met; None while one is looked at, which adds nothing."""
    known[id(schema)] = None
    kinds = ALL
    given = schema.get("type")
    if isinstance(given, str):
        kinds = frozenset({given})
    elif isinstance(given, list):
        kinds = frozenset(kind for kind in given if isinstance(kind, str))
    if "const" in schema or isinstance(schema.get("enum"), list):
        values = [schema["const"]] if "const" in schema else schema["enum"]
        kinds &= frozenset(kind for value in values for kind in _kinds_of_value(value))
    for word in COMBINED:
        if not isinstance(inner := schema.get(word), list):
            continue
        found = []
        for each in (resolved(one, root) for one in inner):
            kind = known[id(each)] if id(each) in known else _kinds(each, root, known)
            found += [kind] if kind is not None else []
        if found:
            kinds &= frozenset.intersection(*found) if word == "allOf" else frozenset.union(*found)
    known[id(schema)] = kinds
    return kinds


def texts_of(schema: Any, root: Mapping[str, Any]) -> list[str] | None:
    """The only texts that a schema of texts admits, if it names them."""
    schema = resolved(schema, root)
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(values, list):
        return None
    return [value for value in values if isinstance(value, str)]


def unenforced(schema: Any, root: Mapping[str, Any]) -> list[str]:
    """Keywords of a text's schema, such as maxLength, that a format which writes texts plainly does not enforce."""
    waiting, met, found = [resolved(schema, root)], set[int](), set[str]()
    while waiting:
        each = waiting.pop()
        if id(each) in met:
            continue
        met.add(id(each))
        found.update(name for name in each if name not in TOLD and name not in COMBINED)
        inner = [one for word in COMBINED if isinstance(each.get(word), list) for one in each[word]]
        waiting += [resolved(one, root) for one in inner if "string" in kinds_of(one, root)]
    return sorted(found)


def words_of(schema: Any) -> set[str]:
    """All keywords of a schema, however deep, also of those that it defines; names of properties are none."""
    waiting, found = [schema], set[str]()
    while waiting:
        each = waiting.pop()
        if isinstance(each, list):
            waiting += each
        elif isinstance(each, Mapping):
            found.update(word for word in each if not word.startswith("x-"))
            waiting += [inner for word, inner in each.items() if word not in (*NAMED, *VALUES)]
            waiting += [inner for word in NAMED if isinstance(each.get(word), Mapping) for inner in each[word].values()]
    return found


def with_definitions(schema: Any, root: Mapping[str, Any]) -> dict[str, Any]:
    """A part of a schema that stands alone, with the definitions that it refers to."""
    refers = '"$ref"' in json.dumps(schema)
    whole = {name: root[name] for name in ("$defs", "definitions") if name in root and refers}
    if not isinstance(schema, Mapping):
        return {**whole, "allOf": [schema]} if isinstance(schema, bool) else whole
    return {**whole, **schema}


def _found(place: str, root: Mapping[str, Any]) -> Any:
    found: Any = root if place.startswith("#") else None
    for name in place.lstrip("#/").split("/"):
        key = name.replace("~1", "/").replace("~0", "~")
        found = found.get(key) if isinstance(found, Mapping) and key else found
    return found


def _kinds_of_value(value: Any) -> tuple[str, ...]:
    if value is None or isinstance(value, (bool, str)):
        return ("null",) if value is None else ("boolean",) if isinstance(value, bool) else ("string",)
    if isinstance(value, int):
        return "integer", "number"
    return ("number",) if isinstance(value, float) else ("array",) if isinstance(value, list) else ("object",)
