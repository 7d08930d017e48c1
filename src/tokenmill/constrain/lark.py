"""JSON schemas in Lark grammars for llguidance, with the options by which they are read here."""

from collections.abc import Mapping
from typing import Any

from tokenmill.text.schema.grammar import JsonStyle, rules_of

JSON_OPTIONS = {"whitespace_flexible": False, "lenient": False}
"""No white space outside of strings, which could go on for ever; keywords that are not implemented are errors."""
_STYLE = JsonStyle(JSON_OPTIONS)


def with_options(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON schema with the options by which it is read here."""
    return {**schema, "x-guidance": JSON_OPTIONS}


def json_grammar(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Make the grammar of the values that fit a JSON schema. ValueError for a schema of which none can be made."""
    if (made := rules_of(schema, "json", _STYLE)) is None:
        return {"name": "schema", "json_schema": with_options(schema)}
    first, rules = made
    lines = (f"{each}: {body}" for each, body in rules.items())
    return {"name": "schema", "lark_grammar": "\n".join([f"start: {first}", *lines, ""])}
