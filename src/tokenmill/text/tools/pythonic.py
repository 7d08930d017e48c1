"""Tool calls as Python writes them, with keyword arguments, `f(a=1, b="x")`: a list that is the whole answer (Llama 3.2
and 4), or a list between marks.

The grammar writes values as JSON, and truth values and nothing as Python does; the parser reads either.
"""

import json
import re
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tokenmill.text.tools.functions import Function
from tokenmill.text.tools.kinds import json_of_literal, json_of_text, kinds_of, texts_of, unenforced, with_definitions
from tokenmill.text.tools.lark import Lark, choice, quoted
from tokenmill.text.tools.lark_rules import text_in_json
from tokenmill.text.tools.named_calls import read_name
from tokenmill.text.tools.source import Reading, Source
from tokenmill.text.tools.tool_format import CallBody, Taker, ToolFormat

_PLAIN = re.compile(r"[^'\"()\[\]{},\\]+")
_IN_TEXT = re.compile(r"[^'\"\\]+")
_CLOSED_BY = {"(": ")", "[": "]", "{": "}"}
_SINGLE = r"/'([^'\\\n]|\\[\\'nrt])*'/"  # a text between single quotation marks
_ESCAPES = str.maketrans({"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r", "\t": "\\t"})


@dataclass(frozen=True)
class PythonCall(CallBody):
    """A call with keyword arguments. single: texts stand between single quotation marks; else they are JSON."""

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
            if value is None or (literal := json_of_literal(value)) is None:
                return False
            taker.append(f'{", " if num_read else "{"}"{json_of_text(key)}": {literal}')
            num_read += 1
            is_more = yield from source.literal(",")
        if not (yield from source.literal(")")):
            return False
        taker.append("}" if num_read else "{}")
        return True

    def first(self, name: str) -> str:
        return f"{name}("

    def text(self, name: str, arguments: Mapping[str, Any], number: int = 0) -> str:
        return f"{name}({', '.join(f'{key}={self._written(value)}' for key, value in arguments.items())})"

    def _written(self, value: Any) -> str:
        if self.single and isinstance(value, str):
            return f"'{value.translate(_ESCAPES)}'"
        return str(value) if value is None or isinstance(value, bool) else json.dumps(value, ensure_ascii=False)

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
    """Return an expression for arguments in their order with commas between them; each is given with whether it must be
    there.

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
    """Read up to the comma or parenthesis that ends an argument; return None where brackets do not fit."""
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


PYTHONIC = ToolFormat(
    name="pythonic",
    words=("[func_name1(",),
    body=PythonCall(),
    opening="[",
    closing="]",
    comma=", ",
    is_alone=True,
)

OLMO3 = ToolFormat(
    name="olmo3",
    words=("<function_calls>",),
    body=PythonCall(single=True),
    mark="<function_calls>",
    opening="<function_calls>\n",
    closing="\n</function_calls>",
    comma="\n",
    lead="\n",
)

LFM2 = ToolFormat(
    name="lfm2",
    words=("List of tools: ",),
    body=PythonCall(),
    mark="<|tool_call_start|>",
    opening="<|tool_call_start|>[",
    closing="]<|tool_call_end|>",
    comma=", ",
)

LFM25 = replace(LFM2, name="lfm2_5", words=("List of tools: ", "<|tool_call_start|>"), body=PythonCall(single=True))
