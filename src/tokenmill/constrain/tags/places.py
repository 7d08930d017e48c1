"""The JSON schemas of a structural tag, by their places in it."""

from collections.abc import Callable, Iterator
from typing import Any

from tokenmill.constrain.schema_parts import SchemaError

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


def with_schemas(value: Any, make: Callable[[dict[str, Any]], Any], place: str = "") -> Any:
    """The same with what a function makes of each schema. SchemaErrors of the function get the place of the schema."""
    if isinstance(value, list):
        return [with_schemas(each, make, f"{place}[{number}]") for number, each in enumerate(value)]
    if not isinstance(value, dict):
        return value
    made = {}
    for key, each in value.items():
        inner = f"{place}.{key}" if place else key
        if key in _NAMES and isinstance(each, dict):
            try:
                made[key] = make(each)
            except SchemaError as error:
                raise error.inside(inner) from None
        else:
            made[key] = with_schemas(each, make, inner)
    return made
