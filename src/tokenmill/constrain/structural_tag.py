"""Structural tags, as vLLM and SGLang have them: a tree of formats (constrain/tags), or free text in which a trigger
begins a part that fits a schema.
"""

from collections.abc import Mapping
from typing import Any

from tokenmill.constrain.lark import json_value
from tokenmill.constrain.schema import read_schema
from tokenmill.constrain.schema_parts import SchemaError
from tokenmill.constrain.tags.check import FormatError
from tokenmill.constrain.tags.formats import read_format
from tokenmill.constrain.tags.places import with_schemas
from tokenmill.constrain.tags.written import grammars_of
from tokenmill.constrain.vocabulary import Vocabulary
from tokenmill.errors import ConfigError
from tokenmill.text.tools.lark import ANYTHING, Lark, quoted

KIND = "structural_tag"


def lark_of_tags(given: Any, vocabulary: Vocabulary, *, is_open: bool = False) -> list[dict[str, Any]]:
    """The grammar of a structural tag, and those that it names. is_open: see Spec."""
    try:
        given = with_schemas(given, lambda schema: read_schema(schema, is_open=is_open))
    except SchemaError as error:
        raise _wrong(str(error)) from None
    if not isinstance(given, dict) or "format" not in given:
        return _of_structures(given, vocabulary.control)
    if unknown := sorted(given.keys() - {"type", "format"}):
        raise _wrong(f"no key {unknown[0]!r} beside a format")
    if given.get("type", KIND) != KIND:
        raise _wrong(f"its type is {KIND!r}")
    try:
        return grammars_of(read_format(given["format"], vocabulary))
    except FormatError as error:
        raise _wrong(str(error)) from None


def _of_structures(given: Any, control: Mapping[str, int]) -> list[dict[str, Any]]:
    """The grammar of `structures`, each {begin, schema, end}, and of the `triggers` with which they begin."""
    structures, triggers = _checked(given)
    literal = Lark(control).literal
    lines = [
        f"TEXT: /{ANYTHING}/",
        "start: (" + " | ".join(f"tag_{number}" for number in range(len(structures))) + ")* rest",
        "rest: TEXT",
    ]
    others = list[dict[str, Any]]()
    for number, structure in enumerate(structures):
        begin, end = structure["begin"], structure["end"]
        value, named = _value(number, structure["schema"])
        others += [each for each in named if each not in others]
        # The shortest one is complete first; a control token is none in letters.
        matching = (each for each in triggers if begin.startswith(each))
        trigger = min(matching, key=lambda each: (each not in control, len(each)), default=None)
        if trigger is None:
            raise _wrong(f"structures[{number}].begin = {begin!r} begins with none of the triggers {triggers}")
        head = f"{literal(begin[len(trigger) :])} " if begin != trigger else ""
        tail = f" {literal(end)}" if end else ""
        if trigger in control:
            lines.append(f"tag_{number}: TEXT {literal(trigger)} {head}{value}{tail}")
        else:
            lines.append(f"before_{number}[lazy]: TEXT {quoted(trigger)}")
            lines.append(f"tag_{number}: before_{number} {head}{value}{tail}")
    return [{"name": "tags", "lark_grammar": "\n".join(lines)}, *others]


def _value(number: int, schema: dict[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    try:
        return json_value(schema)
    except ValueError as error:
        raise _wrong(f"structures[{number}].schema: {error}") from None


def _checked(given: Any) -> tuple[list[dict[str, Any]], list[str]]:
    """The structures and the triggers, each of its right type."""
    if not isinstance(given, dict) or not isinstance(given.get("structures"), list):
        raise _wrong("an object with a `format`; or with `structures`, each {begin, schema, end}, and `triggers`")
    if unknown := sorted(given.keys() - {"structures", "triggers", "type"}):
        raise _wrong(f"no key {unknown[0]!r}")
    structures, triggers = given["structures"], given.get("triggers")
    if not isinstance(triggers, list) or not all(isinstance(each, str) and each for each in triggers):
        raise _wrong("`triggers` must be a list of texts")
    if not structures or not triggers:
        raise _wrong("at least one structure and one trigger")
    for number, structure in enumerate(structures):
        _check_structure(f"structures[{number}]", structure)
    return [{"end": "", **each} for each in structures], triggers


def _check_structure(where: str, structure: Any) -> None:
    if not isinstance(structure, dict):
        raise _wrong(f"{where} must be an object with begin, schema and end")
    if unknown := sorted(structure.keys() - {"begin", "schema", "end"}):
        raise _wrong(f"no key {unknown[0]!r} in {where}")
    for name in ("begin", "end"):
        if not isinstance(structure.get(name, "" if name == "end" else None), str):
            raise _wrong(f"{where}.{name} must be a text")
    if not isinstance(structure.get("schema"), dict):
        raise _wrong(f"{where}.schema must be a JSON schema, an object")


def _wrong(why: str) -> ConfigError:
    return ConfigError("structural_tag", "…", why)
