"""A schema is spelled for llguidance: what it reads otherwise than the standard is said in other words.

Expressions are written in its dialect, and formats that it reads too wide are expressions of whole texts. It takes
February 29 of every year, the year 0 and second 60, durations of any length, and addresses in domains without a dot,
which jsonschema's format checker, pydantic or Python's datetime refuse.
"""

from collections.abc import Callable, Mapping
from typing import Any

from tokenmill.text.schema import ahead
from tokenmill.text.schema.expression import PatternError
from tokenmill.text.schema.pattern import of_schema

MAPS = ("properties", "patternProperties", "$defs", "definitions")
LISTS = ("anyOf", "allOf", "oneOf", "prefixItems", "items")
SINGLE = ("items", "additionalItems", "additionalProperties")

_YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_FOURTH = "(?:0[48]|[2468][048]|[13579][26])"  # the multiples of four up to 96
_LEAP_YEAR = f"(?:[0-9]{{2}}{_FOURTH}|{_FOURTH}00)"
_DAYS_31, _DAYS_30 = "(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])", "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
_DAY = f"(?:{_DAYS_31}|{_DAYS_30}|02-(?:0[1-9]|1[0-9]|2[0-8]))"
_DATE = f"(?:{_YEAR}-{_DAY}|{_LEAP_YEAR}-02-29)"
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:[zZ]|[+\-](?:[01][0-9]|2[0-3]):[0-5][0-9])"

_OF_DAYS = "(?:[0-9]{1,5}Y(?:[0-9]{1,5}M(?:[0-9]{1,7}D)?)?|[0-9]{1,5}M(?:[0-9]{1,7}D)?|[0-9]{1,7}D)"
_OF_HOURS = "T(?:[0-9]{1,6}H(?:[0-9]{1,6}M(?:[0-9]{1,7}S)?)?|[0-9]{1,6}M(?:[0-9]{1,7}S)?|[0-9]{1,7}S)"

_IN_NAME = r"[A-Za-z0-9!#$%&'*+\-/=?^_`{|}~]"
_NAME = rf"(?:{_IN_NAME}{{1,64}}|{_IN_NAME}(?:\.?{_IN_NAME}){{0,31}})"
_LABEL = "[A-Za-z0-9]{1,20}(?:-[A-Za-z0-9]{1,20}){0,2}"

FORMATS = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}[tT]{_TIME}$",
    "duration": f"^P(?:{_OF_DAYS}(?:{_OF_HOURS})?|{_OF_HOURS}|[0-9]{{1,7}}W)$",
    "email": rf"^{_NAME}@(?:{_LABEL}\.)+[A-Za-z]{{2,20}}$",
}
_OF_HOST = "[A-Za-z0-9](?:[A-Za-z0-9\\-]{0,61}[A-Za-z0-9])?"
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"

OTHERS = {
    "hostname": rf"^{_OF_HOST}(?:\.{_OF_HOST})*$",
    "ipv4": rf"^{_BYTE}(?:\.{_BYTE}){{3}}$",
    "uuid": "^[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$",
}
"""Formats that llguidance reads well, for texts of which it does not read the rest."""

LONGEST = {"email": 254, "hostname": 253}
"""The most characters that a text of a format has."""


def spelled(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Spell one schema, without the schemas inside it. PatternError for an expression that is refused."""
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
    """Spell a schema and the schemas inside it."""
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
