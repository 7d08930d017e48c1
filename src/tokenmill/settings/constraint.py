"""The settings that constrain a text: a JSON schema in any form as text, and at most one constraint at a time."""

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any

from tokenmill.errors import ConfigError
from tokenmill.value_reader import refuse_constant, without_doubles

CONSTRAINTS = ("json_schema", "regex", "grammar", "choice")
MAX_CONSTRAINT = 512 * 1024
"""Bytes of a constraint. llguidance takes a time that may grow with the square of it: seconds for this much."""
_SHOWN = 100  # characters of a value in a message


def shortened(text: str | tuple[str, ...]) -> str:
    """Cut a text, or several, for messages."""
    text = text if isinstance(text, str) else ", ".join(text)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} …"


def check_one(given: Mapping[str, Any]) -> None:
    """Raise ConfigError for two constraints at once, and for a constraint that is too long or no text in UTF-8."""
    for name, value in given.items():
        texts = (value,) if isinstance(value, str) else value
        try:
            size = sum(len(text.encode()) for text in texts)
        except UnicodeEncodeError:
            allowed = "text in UTF-8; it holds half of a surrogate pair"
            raise ConfigError(name, shortened(repr(value)), allowed) from None
        if size > MAX_CONSTRAINT:
            raise ConfigError(name, f"{size:,} bytes", f"at most {MAX_CONSTRAINT:,} bytes")
    if len(given) > 1:
        first, second, *_ = given
        raise ConfigError(second, shortened(given[second]), f"only one constraint at a time, and {first} is given")


def check_texts(given: Mapping[str, Any]) -> None:
    """Raise ConfigError for a path: it would be taken for the text that it spells."""
    for name, value in given.items():
        if isinstance(value, os.PathLike):
            raise ConfigError(name, str(value), "the text itself, not the path of a file with it")


def schema_text(name: str, value: Any) -> str:
    """Write a JSON schema as JSON text, without spaces and in its own order.

    It may be a text, a mapping, true, a pydantic model or its TypeAdapter, a dataclass, a TypedDict or another type
    that pydantic knows.
    """
    if isinstance(value, str):
        value = parsed_json(name, value)
    elif not isinstance(value, Mapping | bool):
        value = _of_type(name, value)
    if value is False:
        raise ConfigError(name, False, "a schema that some text fits; no value fits false")
    if not isinstance(value, Mapping) and value is not True:
        raise ConfigError(name, shortened(repr(value)), "a JSON object, or a class")
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (ValueError, TypeError, RecursionError) as error:
        shown = type(value).__name__ if isinstance(error, RecursionError) else shortened(repr(value))
        raise ConfigError(name, shown, f"a JSON object ({error or type(error).__name__})") from None
    return text


def parsed_json(name: str, text: str) -> Any:
    """Parse a JSON text. A key that is twice in an object is refused: one of its values would not count."""
    size = len(text)
    if size > MAX_CONSTRAINT:
        raise ConfigError(name, f"{size:,} characters", f"at most {MAX_CONSTRAINT:,} bytes")
    try:
        return json.loads(text, object_pairs_hook=without_doubles, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ConfigError(name, shortened(text), f"JSON ({error})") from None


def _of_type(name: str, value: Any) -> Any:
    """Make the schema of a class, or of an object that has a method that tells it."""
    for method in ("model_json_schema", "json_schema"):
        if callable(tell := getattr(value, method, None)):
            return tell()
    is_type = isinstance(value, type) or dataclasses.is_dataclass(value) or hasattr(value, "__origin__")
    if not is_type or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        raise ConfigError(name, shortened(repr(value)), "a JSON schema as text or mapping, or a class")
    try:
        from pydantic import TypeAdapter  # noqa: PLC0415  (of the server; an engine does without)

        return TypeAdapter(value).json_schema()
    except ImportError:
        raise ConfigError(name, value, "a JSON schema; a class needs pydantic: pip install pydantic") from None
    except (RuntimeError, TypeError, NameError, ValueError) as error:  # pydantic's errors are of these kinds
        raise ConfigError(
            name, shortened(repr(value)), f"a type that pydantic can make a schema of ({error})"
        ) from None
