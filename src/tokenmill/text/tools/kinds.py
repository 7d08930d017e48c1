"""What JSON a schema admits, as far as formats that write values otherwise must know."""

from collections.abc import Mapping
from typing import Any

ALL = frozenset({"string", "number", "integer", "boolean", "null", "array", "object"})
COMBINED = ("anyOf", "oneOf", "allOf")
MAX_REFERENCES = 20  # followed for one schema
TOLD = frozenset({"type", "title", "description", "default", "examples", "enum", "const", "$comment", "deprecated"})
"""Keywords of a text's schema that are enforced, or enforce nothing."""


def resolved(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """A schema with its own reference followed; an empty one where there is nothing to be followed."""
    for _ in range(MAX_REFERENCES):
        if not isinstance(schema, Mapping):
            return {}
        if not isinstance(place := schema.get("$ref"), str):
            return schema
        schema = _found(place, root)
    return {}


def kinds_of(schema: Any, root: Mapping[str, Any], depth: int = 0) -> frozenset[str]:
    """The types that a value of this schema may have. root: where references are looked up."""
    schema = resolved(schema, root)
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
        inner = schema.get(word)
        if isinstance(inner, list) and inner and depth < MAX_REFERENCES:
            found = [kinds_of(each, root, depth + 1) for each in inner]
            kinds &= frozenset.intersection(*found) if word == "allOf" else frozenset.union(*found)
    return kinds


def texts_of(schema: Any, root: Mapping[str, Any]) -> list[str] | None:
    """The only texts that a schema of texts admits, if it names them."""
    schema = resolved(schema, root)
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(values, list):
        return None
    return [value for value in values if isinstance(value, str)]


def unenforced(schema: Any, root: Mapping[str, Any], depth: int = 0) -> list[str]:
    """Keywords of a text's schema, such as pattern, that a format which writes texts plainly does not enforce."""
    schema = resolved(schema, root)
    found = {name for name in schema if name not in TOLD and name not in COMBINED}
    for word in COMBINED:
        for inner in schema.get(word) or () if depth < MAX_REFERENCES else ():
            if "string" in kinds_of(inner, root, depth):
                found.update(unenforced(inner, root, depth + 1))
    return sorted(found)


def with_definitions(schema: Any, root: Mapping[str, Any]) -> dict[str, Any]:
    """A part of a schema that stands alone, with the definitions that it refers to."""
    whole = {name: root[name] for name in ("$defs", "definitions") if name in root}
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
