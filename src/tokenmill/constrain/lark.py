"""JSON schemas in Lark grammars for llguidance, with the options by which they are read here."""

import json
from collections.abc import Mapping
from typing import Any

JSON_OPTIONS = {"whitespace_flexible": False, "lenient": False}
"""No white space outside of strings, which could go on for ever; keywords that are not implemented are errors."""


def with_options(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON schema with the options by which it is read here."""
    return {**schema, "x-guidance": JSON_OPTIONS}


def json_value(schema: Mapping[str, Any]) -> str:
    """A value that fits a JSON schema."""
    return "%json " + json.dumps(with_options(schema), ensure_ascii=False)
