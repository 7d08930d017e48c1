"""Texts of whose schemas llguidance does not read all: their patterns look ahead, or it cannot tell whether any text
fits.
"""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from llguidance import LLMatcher, LLTokenizer

from tokenmill.text.schema import ahead
from tokenmill.text.schema.charset import ANY
from tokenmill.text.schema.expression import Set, Times
from tokenmill.text.schema.merge import MergeError
from tokenmill.text.schema.pattern import in_json
from tokenmill.text.schema.spelled import FORMATS, OTHERS

KEYWORDS = ("pattern", "format", "minLength", "maxLength")
UNDECIDED = "Unable to determine if regex is empty"
_UNREAD = ("uri", "ipv6")
_KEPT = 512


def is_ahead(schema: Mapping[str, Any]) -> bool:
    """Return whether the pattern of a schema looks ahead."""
    return isinstance(pattern := schema.get("pattern"), str) and ahead.looks(pattern)


def is_misread(schema: Mapping[str, Any]) -> bool:
    """Return whether llguidance does not read what a schema, and the parts that `spelled` made, say of texts."""
    if is_ahead(schema):
        return True
    joined = schema.get("allOf")
    others = [each for each in joined if isinstance(each, Mapping)] if isinstance(joined, list) else []
    parts = [{key: each[key] for key in KEYWORDS if key in each} for each in (schema, *others)]
    if sum(map(len, parts)) < 2 or not any("pattern" in each for each in parts) or any(map(is_ahead, parts)):
        return False
    return error_of({"type": "string", "allOf": [each for each in parts if each]}).startswith(UNDECIDED)


def error_of(schema: Mapping[str, Any]) -> str:
    """Return what llguidance has against a schema of texts; empty for nothing."""
    return _error_of(json.dumps({**schema, "x-guidance": {"whitespace_flexible": False, "lenient": False}}))


@lru_cache(_KEPT)
def _error_of(schema: str) -> str:
    error = LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(schema))
    return error.splitlines()[0].rpartition("failed to compile JSON schema: ")[2] if error else ""


def terminal_of(parts: Sequence[Mapping[str, Any]]) -> str | None:
    """Return a terminal for the JSON of the texts that fit all parts; None where no text does. MergeError for a format
    of which no expression is known.
    """
    made = list[str]()
    for each in parts:
        if isinstance(pattern := each.get("pattern"), str):
            made.append(ahead.terminal(pattern))
        if (name := each.get("format")) in _UNREAD:
            raise MergeError(
                f"the format {name!r} is not possible beside a pattern like this one: leave one of them out"
            )
        if expression := (FORMATS | OTHERS).get(str(name)):
            made.append(ahead.terminal(expression))
        least, most = each.get("minLength", 0), each.get("maxLength")
        if least or most is not None:
            made.append(f"/{in_json(Times(Set(ANY), int(least), None if most is None else int(most)))}/")
    terminal = f'"\\"" ({" & ".join(dict.fromkeys(made))}) "\\""'
    return None if _is_empty(terminal) else terminal


@lru_cache(_KEPT)
def _is_empty(terminal: str) -> bool:
    grammar = json.dumps({"grammars": [{"lark_grammar": f"start: T\nT: {terminal}\n"}]})
    matcher = LLMatcher(LLTokenizer("byte"), grammar, log_level=0)
    if matcher.is_error():
        raise MergeError(matcher.get_error().splitlines()[0])
    return not matcher.consume_token(ord('"'))
