"""The JSON types that a schema admits, and values that a format writes as plain text or as Python literals: for the
formats that write arguments not as JSON.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from tokenmill.text.schema.merge import MergeError, target

ALL = frozenset({"string", "number", "integer", "boolean", "null", "array", "object"})
NAMED = ("properties", "$defs", "definitions", "patternProperties")
VALUES = ("enum", "const", "default", "examples")
COMBINED = ("anyOf", "oneOf", "allOf")
NOTHING: Mapping[str, Any] = {}
MAX_REFERENCES = 20  # followed for one schema
TOLD = frozenset({"type", "title", "description", "default", "examples", "enum", "const", "$comment", "deprecated"})
"""Keywords of a text's schema that are enforced, or enforce nothing."""
_ROOT = "parameters"  # the name of a whole schema as a definition
_ELSEWHERE = re.compile(r'"\$ref": "#(?!/(?:\$defs|definitions)/)')
PYTHON = {"True": "true", "False": "false", "None": "null"}
_LITERAL = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|\b(?:True|False|None)\b""", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|(.))", re.DOTALL)
_LETTERS = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f", "0": "\0", "'": "'", '"': '"', "\\": "\\", "\n": ""}


def resolved(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Follow a schema's own reference; return an empty schema where it leads nowhere."""
    for _ in range(MAX_REFERENCES):
        if not isinstance(schema, Mapping):
            return NOTHING
        if not isinstance(place := schema.get("$ref"), str):
            return schema
        try:
            schema = target(place, root) if place.startswith("#") else None
        except MergeError:
            return NOTHING
    return NOTHING


def kinds_of(schema: Any, root: Mapping[str, Any]) -> frozenset[str]:
    """Return the types that a value of this schema may have. root: where references are looked up."""
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
        kinds &= frozenset(kind for value in values for kind in kind_of(value))
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
    """Return the only texts that a schema of texts admits, if it names them."""
    schema = resolved(schema, root)
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(values, list):
        return None
    return [value for value in values if isinstance(value, str)]


def unenforced(schema: Any, root: Mapping[str, Any]) -> list[str]:
    """Return keywords of a text's schema, such as maxLength, that a format with plain texts does not enforce."""
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
    """Return all keywords of a schema and of its definitions, however deep; names of properties are no keywords."""
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
    """Return a part of a schema that stands alone, with the definitions that it refers to.

    Where a reference names another place of the schema, such as "#", all of it becomes a definition.
    """
    refers = '"$ref"' in json.dumps(schema)
    whole = {name: root[name] for name in ("$defs", "definitions") if name in root and refers}
    if refers and _ELSEWHERE.search(json.dumps([schema, whole])):
        schema, whole = _moved(schema), {"$defs": {_ROOT: _moved(root)}}
    if not isinstance(schema, Mapping):
        return {**whole, "allOf": [schema]} if isinstance(schema, bool) else whole
    return {**whole, **schema}


def _moved(schema: Any) -> Any:
    """Copy a schema, with references to the places that they name once the whole schema is a definition."""
    if isinstance(schema, list):
        return [_moved(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    made: dict[str, Any] = {}
    for word, inner in schema.items():
        if word == "$ref" and isinstance(inner, str) and inner.startswith("#"):
            made[word] = f"#/$defs/{_ROOT}{inner[1:]}"
        elif word in NAMED and isinstance(inner, Mapping):
            made[word] = {name: _moved(each) for name, each in inner.items()}
        else:
            made[word] = inner if word in VALUES else _moved(inner)
    return made


def json_of_text(text: str) -> str:
    """Write a text as JSON, without its quotes; pieces that are written so, joined, are the whole."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def json_of_value(written: str, kinds: frozenset[str]) -> str:
    """Write a value of one of these types as JSON; JSON or Python spells it so, or it is a text as it stands."""
    stripped = written.strip()
    spelled = PYTHON.get(stripped, stripped)
    found, value = _read_json(spelled)
    if found and (kind_of(value) & kinds) and not isinstance(value, str):
        return spelled
    if found and isinstance(value, str) and "string" not in kinds:
        return spelled
    return json.dumps(written, ensure_ascii=False)


def json_of_literal(written: str) -> str | None:
    """Write a literal in JSON's or Python's spelling as JSON; return None for anything else."""
    stripped = written.strip()
    for text in (stripped, _LITERAL.sub(_json_of_python, stripped)):
        if _read_json(text)[0]:
            return text
    return None


def _json_of_python(found: re.Match[str]) -> str:
    """Write one of Python's texts or names as JSON."""
    if found[0] in PYTHON:
        return PYTHON[found[0]]
    return json.dumps(_ESCAPE.sub(_unescaped, found[0][1:-1]), ensure_ascii=False)


def _unescaped(found: re.Match[str]) -> str:
    """Return the letter that an escape stands for; what is no escape to Python stays as it is."""
    code = found[1] or found[2]
    return chr(int(code, 16)) if code else _LETTERS.get(found[3], found[0])


def kind_of(value: Any) -> frozenset[str]:
    """Return the types of a value in JSON schema."""
    if isinstance(value, bool):
        return frozenset({"boolean"})
    if isinstance(value, int):
        return frozenset({"integer", "number"})
    for kind, name in ((float, "number"), (str, "string"), (list, "array"), (dict, "object")):
        if isinstance(value, kind):
            return frozenset({name})
    return frozenset({"null"})


def _read_json(text: str) -> tuple[bool, Any]:
    """Return whether a text is JSON, and its value."""
    try:
        return True, json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False, None


def _refuse(name: str) -> None:
    raise ValueError(name)
