"""The JSON schemas of a structural tag, by their places in it."""

from collections.abc import Iterator
from typing import Any

_NAMES = ("json_schema", "schema")


def schemas_of(value: Any, place: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """The place and the schema of each part that has one, in both forms of structural tags."""
    if isinstance(value, list):
        for number, each in enumerate(value):
            yield from schemas_of(each, f"{place}[{number}]")
    for key, each in value.items() if isinstance(value, dict) else ():
        inner = f"{place}.{key}" if place else key
        if key in _NAMES and isinstance(each, dict):
            yield inner, each
        else:
            yield from schemas_of(each, inner)
