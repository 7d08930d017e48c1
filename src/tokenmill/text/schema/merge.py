"""Schemas that hold together for one value, and their cases, each about one type of value.

`$ref` and `allOf` add schemas, `anyOf` and `oneOf` divide into cases. What is left has only keywords about one type.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

from tokenmill.text.schema.numbers import exact

KINDS = ("object", "array", "string", "number", "boolean", "null")
MOST_CASES = 2_000
Case = tuple[Mapping[str, Any], ...]
"""Schemas without references and parts, all of which hold."""


class MergeError(ValueError):
    """Schemas that cannot be put together, with the reason."""


class _Choice(NamedTuple):
    """The options of an anyOf or a oneOf. within: the references in whose schemas it stands."""

    word: str
    options: list[Any]
    within: frozenset[str]


def cases(
    schemas: tuple[Any, ...], root: Mapping[str, Any], lenient: bool, within: frozenset[str] = frozenset()
) -> list[Case]:
    """Return the cases in which schemas hold together. within: see _Choice. lenient: oneOf is read as anyOf.

    Each oneOf that no value fits twice was made an anyOf before (apart.py).
    """
    base, choices = list[Mapping[str, Any]](), list[_Choice]()
    if not all(_put(each, root, base, choices, within) for each in schemas):
        return []
    found: list[Case] = [tuple(base)]
    for word, options, inner in choices:
        parts = [cases((each,), root, lenient, inner) for each in options]
        if word == "oneOf" and not lenient and len(options) > 1:
            raise MergeError(
                "oneOf constraints are not supported where a value may fit two of its schemas: "
                "anyOf says what is meant, or a property whose const differs"
            )
        found = [(*case, *other) for case in found for part in parts for other in part]
        if len(found) > MOST_CASES:
            raise MergeError(f"anyOf and oneOf beside each other make more than {MOST_CASES:,} cases")
    return found


def _put(
    schema: Any, root: Mapping[str, Any], base: list[Mapping[str, Any]], choices: list[_Choice], within: frozenset[str]
) -> bool:
    """Add what a schema says, in its order; return False if nothing fits it, as one that only refers to itself."""
    if isinstance(schema, bool):
        return schema
    if not isinstance(schema, Mapping):
        raise MergeError(f"a schema is an object, or true or false, and not {schema!r:.50}")
    base.append(schema)
    for key, value in schema.items():
        if key == "$ref" and isinstance(value, str):
            if value in within or not _put(target(value, root), root, base, choices, within | {value}):
                return False
        elif key == "allOf" and isinstance(value, list):
            if not all(_put(each, root, base, choices, within) for each in value):
                return False
        elif key in ("anyOf", "oneOf") and isinstance(value, list):
            choices.append(_Choice(key, value, within))
    return True


def target(reference: str, root: Mapping[str, Any]) -> Any:
    """Return the schema that a reference names by its place. MergeError for a name, as "#item", or a wrong place."""
    begin, *parts = unquote(reference).split("/")
    found: Any = root if begin == "#" else None
    for part in parts:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        else:
            found = found.get(key) if isinstance(found, Mapping) else None
    if found is None:  # no schema is null
        raise MergeError(f"$ref names {reference[:100]!r}, which is not there")
    return found


def kinds(case: Case) -> tuple[list[str], bool]:
    """Return the types of a case's values, and whether its numbers are integers."""
    found, is_integer = set(KINDS), False
    for each in case:
        if (given := each.get("type")) is not None:
            named = {given} if isinstance(given, str) else set(given)
            if unknown := sorted(str(name) for name in named if name not in KINDS and name != "integer"):
                raise MergeError(f"Invalid type: {unknown[0]}")
            is_integer = is_integer or ("integer" in named and "number" not in named)
            found &= named | ({"number"} if "integer" in named else set())
    return [kind for kind in KINDS if kind in found], is_integer


def listed(case: Case) -> list[Any] | None:
    """Return the values that const and enum of a case name, in each schema that has them; None where none has."""
    found: list[Any] | None = None
    for each in case:
        for values in ([each["const"]] if "const" in each else None, each.get("enum")):
            if isinstance(values, list):
                found = values if found is None else [one for one in found if any(same(one, other) for other in values)]
    return found


def items_of(schema: Mapping[str, Any]) -> tuple[list[Any], Any]:
    """Return the schemas of the first items of a list, each by its place, and the schema of all others."""
    if isinstance(items := schema.get("items"), list):
        return schema.get("prefixItems", items), schema.get("additionalItems", True)
    return schema.get("prefixItems", []), schema.get("items", True)


def kind_of(value: Any) -> str:
    """Return the type of a value."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    named: tuple[tuple[type, str], ...] = ((str, "string"), (list, "array"), (dict, "object"))
    return next((name for kind, name in named if isinstance(value, kind)), "number")


def same(one: Any, other: Any) -> bool:
    """Return whether two values of JSON are equal; numbers are compared exactly."""
    if kind_of(one) != kind_of(other):
        return False
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if kind_of(one) == "number":
        return exact(one, "const") == exact(other, "const")
    return bool(one == other)
