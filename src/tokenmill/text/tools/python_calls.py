"""A tool call as Python writes it, with keyword arguments: `f(a=1, b="x")`.

The grammar writes values as JSON, and truth values and nothing as Python does; the parser reads either.
"""

import re
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

from tokenmill.text.tools.functions import Function
from tokenmill.text.tools.kinds import kinds_of, texts_of, unenforced, with_definitions
from tokenmill.text.tools.lark import Lark, choice, quoted
from tokenmill.text.tools.lark_rules import text_in_json
from tokenmill.text.tools.named_calls import read_name
from tokenmill.text.tools.source import Reading, Source
from tokenmill.text.tools.tool_format import Taker
from tokenmill.text.tools.values import json_of_literal, json_of_text, spelled

_PLAIN = re.compile(r"[^'\"()\[\]{},\\]+")
_IN_TEXT = re.compile(r"[^'\"\\]+")
_CLOSED_BY = {"(": ")", "[": "]", "{": "}"}
_SINGLE = r"/'([^'\\\n]|\\[\\'nrt])*'/"  # a text between single quotation marks
_ESCAPES = str.maketrans({"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r", "\t": "\\t"})


@dataclass(frozen=True)
class PythonCall:
    """single: texts stand between single quotation marks; else they are JSON."""

    single: bool = False

    def rule(self, lark: Lark, function: Function, name: str, before: str = "") -> str:
        if function.lark is not None:
            begin, end = quoted(f'{before}{function.name}(input="'), quoted('")')
            return f"{begin} {text_in_json(lark, function.lark, name)} {end}"
        root = function.schema
        properties, required = root.get("properties"), root.get("required") or ()
        if not isinstance(properties, Mapping) or not (properties or root.get("additionalProperties") is False):
            any_one = lark.rule(
                "any_argument", rf"/[A-Za-z_]\w*/ {quoted('=')} {self._value(lark, {}, {}, 'any_value')}"
            )
            return f"{quoted(f'{before}{function.name}(')} ({any_one} ({lark.literal(', ')} {any_one})*)? {quoted(')')}"
        written = [
            (lark.rule(f"{name}_argument_{number}", f"{quoted(key + '=')} {value}"), key in required)
            for number, (key, inner) in enumerate(properties.items())
            for value in [self._value(lark, inner, root, f"{name}_{number}", function.strict)]
        ]
        return f"{quoted(f'{before}{function.name}(')} {_listed(lark, written, name)} {quoted(')')}"

    def unenforced(self, function: Function) -> list[str]:
        return []

    def read(self, source: Source, taker: Taker) -> Reading:
        name = yield from read_name(source)
        if taker.function(name) is None or not (yield from source.literal("(")):
            return False
        taker.begin(name)
        num_read, is_more = 0, True
        while is_more:
            yield from source.spaces()
            key = yield from read_name(source)
            if not key:
                break
            if not (yield from source.frame("=")):
                return False
            value = yield from _read_literal(source)
            if value is None or (json := json_of_literal(value)) is None:
                return False
            taker.append(f'{", " if num_read else "{"}"{json_of_text(key)}": {json}')
            num_read += 1
            is_more = yield from source.literal(",")
        if not (yield from source.literal(")")):
            return False
        taker.append("}" if num_read else "{}")
        return True

    def first(self, name: str) -> str:
        return f"{name}("

    def texts(self) -> tuple[str, ...]:
        return ()

    def text(self, name: str, arguments: Mapping[str, Any], number: int = 0) -> str:
        return f"{name}({', '.join(f'{key}={self._written(value)}' for key, value in arguments.items())})"

    def _written(self, value: Any) -> str:
        if self.single and isinstance(value, str):
            return f"'{value.translate(_ESCAPES)}'"
        return "True" if value is True else "False" if value is False else "None" if value is None else spelled(value)

    def _value(self, lark: Lark, schema: Any, root: Mapping[str, Any], name: str, strict: bool | None = None) -> str:
        kinds = kinds_of(schema, root)
        values = [lark.json(name, with_definitions(schema, root), strict)]
        for kind, words in (("boolean", ("True", "False")), ("null", ("None",))):
            values += [quoted(word) for word in words if kind in kinds]
        if self.single and (texts := texts_of(schema, root)) is not None:
            values += [quoted(self._written(text)) for text in texts]
        elif self.single and "string" in kinds and not unenforced(schema, root):
            values.append(lark.rule("SINGLE", _SINGLE))
        return choice(values)


def _listed(lark: Lark, written: list[tuple[str, bool]], name: str) -> str:
    """An expression for arguments in their order with commas between them; each is given with whether it must be there.

    A rule for each place says what may follow an argument there.
    """
    comma, tails = lark.literal(", "), [""]
    for number, (rule, is_required) in reversed(list(enumerate(written[1:], start=1))):
        one = f"{comma} {rule}" if is_required else f"({comma} {rule})?"
        tails.insert(0, lark.rule(f"{name}_after_{number}", f"{one} {tails[0]}"))
    expression = ""
    for (rule, is_required), tail in zip(reversed(written), reversed(tails), strict=False):
        one = f"{rule} {tail}".strip()
        expression = one if is_required else f"({one} | {expression})" if expression else f"({one})?"
    return expression


def _read_literal(source: Source) -> Generator[None, None, str | None]:
    """Read up to the comma or parenthesis that ends an argument, and not that; None where brackets do not fit."""
    pieces: list[str] = []
    opened, quote = "", ""
    while True:
        if source.at == len(source.text):
            if source.ended:
                return None
            yield
            continue
        letter = source.text[source.at]
        plain = (_IN_TEXT if quote else _PLAIN).match(source.text, source.at)
        if plain:
            pieces.append(plain[0])
            source.at = plain.end()
            continue
        if letter == "\\":  # with the letter that it escapes
            if source.at + 1 == len(source.text) and not source.ended:
                yield
                continue
            letter = source.text[source.at : source.at + 2]
        elif quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in _CLOSED_BY:
            opened += _CLOSED_BY[letter]
        elif not opened and letter in ",)":
            return "".join(pieces)
        elif letter != ",":
            if not opened.endswith(letter):
                return None
            opened = opened[:-1]
        pieces.append(letter)
        source.at += len(letter)
