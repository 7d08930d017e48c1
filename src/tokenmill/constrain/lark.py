"""JSON schemas in Lark grammars for llguidance, with the options by which they are read here."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from tokenmill.text.schema.grammar import Style, rules_of

JSON_OPTIONS = {"whitespace_flexible": False, "lenient": False}
"""No white space outside of strings, which could go on for ever; keywords that are not implemented are errors."""
_STYLE = Style(JSON_OPTIONS)


def with_options(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON schema with the options by which it is read here."""
    return {**schema, "x-guidance": JSON_OPTIONS}


def json_grammar(schema: Mapping[str, Any], name: str = "") -> dict[str, Any]:
    """The grammar of the values that fit a JSON schema, which others may refer to. ValueError for one that cannot be.

    name: by default one that is made of the schema.
    """
    name = name or f"json-{hashlib.sha256(json.dumps(schema).encode()).hexdigest()[:16]}"
    if (made := rules_of(schema, "json", _STYLE)) is None:
        return {"name": name, "json_schema": with_options(schema)}
    first, rules = made
    lines = (f"{each}: {body}" for each, body in rules.items())
    return {"name": name, "lark_grammar": "\n".join([f"start: {first}", *lines, ""])}


def json_value(schema: Mapping[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    """An expression for a value that fits a JSON schema, and the grammar that it refers to, if it does."""
    made = json_grammar(schema)
    if "json_schema" in made:
        return "%json " + json.dumps(with_options(schema), ensure_ascii=False), []
    return f"@{made['name']}", [made]
