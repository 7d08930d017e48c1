"""The nodes of formats with a language of their own: JSON schemas, regular expressions, grammars."""

import re
from typing import Any

from tokenmill.constrain.gbnf import is_gbnf, lark_of_gbnf
from tokenmill.constrain.lark import json_value
from tokenmill.constrain.schema import read_schema
from tokenmill.constrain.schema_parts import SchemaError
from tokenmill.constrain.tags import terminals
from tokenmill.constrain.tags.check import FormatError
from tokenmill.constrain.tags.nodes import Node, Value
from tokenmill.constrain.tags.words import Word
from tokenmill.errors import ConfigError
from tokenmill.text.schema.expression import PatternError
from tokenmill.text.schema.pattern import plain, whole
from tokenmill.text.tools.kinds import kinds_of
from tokenmill.text.tools.lark_pattern import Pattern, RefersToItself, pattern_of_text, rules_of, tokens_of

_FIRST = {
    "object": b"{",
    "array": b"[",
    "string": b'"',
    "boolean": b"tf",
    "null": b"n",
    **dict.fromkeys(("number", "integer"), b"-0123456789"),
}
_SIMPLE = {
    "integer": "-?(0|[1-9][0-9]*)",
    "number": r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+\-]?[0-9]+)?",
    "boolean": "true|false",
    "null": "null",
}


def value_node(place: str, schema: Any) -> Node:
    """The node of a JSON value that fits a schema. A plain number, boolean or null is a word: anything may follow."""
    known = read(place, schema)
    simple = _SIMPLE.get(str(known.get("type")))
    if simple and known.keys() <= {"type", "title", "description"}:
        return Word(place, f"/{simple}/")
    kinds = kinds_of(known, known)
    first = frozenset(byte for kind in kinds for byte in _FIRST[kind])
    last = f"/{_SIMPLE['number']}/" if kinds & {"number", "integer"} else ""
    try:
        body, grammars = json_value(known)
    except ValueError as error:
        raise FormatError(place, str(error)) from None
    return Value(place, body, first, last, grammar=grammars[0] if grammars else None)


def read(place: str, schema: Any) -> dict[str, Any]:
    """Read a schema as the setting json_schema is read."""
    if not isinstance(schema, dict | bool):
        raise FormatError(place, "must be a JSON schema: an object, or true")
    try:
        return read_schema(schema, is_open=True)  # those of the whole tag are closed before this
    except SchemaError as error:
        raise FormatError(place, str(error)) from None


def pattern_node(place: str, pattern: str) -> Word:
    """The word of the texts that a regular expression matches as a whole. It is read as in xgrammar."""
    try:
        made = f"/{plain(whole(pattern, for_xgrammar=True))}/"
        terminals.facts(made)
    except (PatternError, terminals.TerminalError) as error:
        raise FormatError(place, f"= {pattern!r:.60}: {error}") from None
    return Word(place, made)


def grammar_node(place: str, text: str, name: str) -> Node:
    """The node of a grammar in GBNF: one word, or, for a recursive grammar, a value that refers to it by `name`."""
    if not is_gbnf(text):
        raise FormatError(place, "must be a grammar in EBNF (GBNF) with a rule root ::= …")
    try:
        lark = lark_of_gbnf(text)
    except ConfigError as error:
        raise FormatError(place, error.allowed) from None
    try:
        rules = rules_of(lark.replace("%llguidance {}", "", 1))
        pattern = Pattern(rules).of_rule("start")
        made = f"/{_slashed(pattern)}/"
        terminals.facts(made)
        return Word(place, made)
    except RefersToItself:
        pass
    except (ValueError, terminals.TerminalError) as error:
        raise FormatError(place, str(error)) from None
    try:
        first, may_be_empty = terminals.facts_of(lark)
        last = _words(rules)
    except (ValueError, terminals.TerminalError) as error:
        raise FormatError(place, str(error)) from None
    return Value(place, f"@{name}", first, last, may_be_empty, {"name": name, "lark_grammar": lark}, is_json=False)


def _words(rules: dict[str, str]) -> str:
    """A terminal that matches whatever a terminal of this grammar matches; empty if the grammar has none."""
    pattern, words = Pattern(rules), list[str]()
    for name, body in rules.items():
        if name.isupper():
            words.append(pattern.of_rule(name))
        else:
            words += [pattern_of_text(text) for kind, text in tokens_of(body) if kind in ("string", "regex")]
    return f"({' | '.join(f'/{_slashed(word)}/' for word in dict.fromkeys(words))})" if words else ""


def _slashed(pattern: str) -> str:
    return re.sub(r"(\\.)|/", lambda found: found[1] or r"\/", pattern, flags=re.DOTALL)
