"""Pieces of Lark grammars for llguidance: texts, control tokens by their ids, JSON values, one of several texts."""

import json
import re
from collections.abc import Mapping
from typing import Any

JSON_OPTIONS = {"whitespace_flexible": False, "lenient": False}
"""No white space outside of strings, which could go on for ever; keywords that are not implemented are errors."""


def literal(text: str, control: Mapping[str, int]) -> str:
    """A text that must come as it stands; spellings of control tokens in it are those tokens."""
    if not control:
        return quoted(text)
    names = "|".join(map(re.escape, sorted(control, key=len, reverse=True)))
    parts = re.split(f"({names})", text)
    made = [token(control[part]) if number % 2 else quoted(part) for number, part in enumerate(parts) if part]
    return " ".join(made) or '""'


def token(number: int) -> str:
    """A control token."""
    return f"<[{number}]>"


def quoted(text: str) -> str:
    """A text of letters."""
    return json.dumps(text, ensure_ascii=False)


def with_options(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON schema with the options by which it is read here."""
    return {**schema, "x-guidance": JSON_OPTIONS}


def json_value(schema: Mapping[str, Any]) -> str:
    """A value that fits a JSON schema."""
    return "%json " + json.dumps(with_options(schema), ensure_ascii=False)


def one_of(texts: tuple[str, ...]) -> str:
    """A regular expression for one of several texts, without its slashes."""
    return "|".join(re.sub(r"[\\.+*?()|\[\]{}^$#&~/-]", r"\\\g<0>", text).replace("\n", r"\n") for text in texts)
