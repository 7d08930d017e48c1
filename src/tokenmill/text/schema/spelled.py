"""A schema is spelled for llguidance: what it reads otherwise than the standard is said in other words.

Expressions are written in its dialect, and formats that it reads too wide are expressions.
"""

from collections.abc import Callable, Mapping
from typing import Any

from tokenmill.text.schema import ahead
from tokenmill.text.schema.expression import PatternError
from tokenmill.text.schema.formats import FORMATS, LONGEST
from tokenmill.text.schema.pattern import of_schema

MAPS = ("properties", "patternProperties", "$defs", "definitions")
LISTS = ("anyOf", "allOf", "oneOf", "prefixItems", "items")
SINGLE = ("items", "additionalItems", "additionalProperties")


def spelled(schema: Mapping[str, Any]) -> dict[str, Any]:
    """One schema, without those inside it. PatternError for an expression that is refused."""
    made = dict(schema)
    texts = [made["pattern"]] if isinstance(made.get("pattern"), str) else []
    if isinstance(given := made.get("format"), str):
        if given in LONGEST and isinstance(most := made.get("maxLength", LONGEST[given]), int):
            made["maxLength"] = min(most, LONGEST[given])
        if given in FORMATS:
            texts.append(FORMATS[made.pop("format")])
    expressions = [_expression(text, ahead.spelled) for text in texts]
    if expressions:
        made["pattern"] = expressions[0]
    if len(expressions) > 1:
        others = made.get("allOf", [])
        made["allOf"] = [*(others if isinstance(others, list) else [others]), {"pattern": expressions[1]}]
    if isinstance(named := made.get("patternProperties"), Mapping):
        made["patternProperties"] = {}
        for text, each in named.items():
            key = _expression(text, of_schema)
            former = made["patternProperties"].get(key)
            made["patternProperties"][key] = each if former is None else {"allOf": [former, each]}
    return made


def all_spelled(schema: Any) -> Any:
    """A schema and those inside it."""
    if not isinstance(schema, Mapping):
        return schema
    made = dict(schema)
    for key in MAPS:
        if isinstance(inner := made.get(key), Mapping):
            made[key] = {name: all_spelled(each) for name, each in inner.items()}
    for key in LISTS:
        if isinstance(inner := made.get(key), list):
            made[key] = [all_spelled(each) for each in inner]
    for key in SINGLE:
        if isinstance(made.get(key), Mapping):
            made[key] = all_spelled(made[key])
    return spelled(made)


def _expression(text: str, write: Callable[[str], str]) -> str:
    try:
        return write(text)
    except PatternError as error:
        raise PatternError(f"the pattern {text[:60]!r} is refused: {error}") from None
