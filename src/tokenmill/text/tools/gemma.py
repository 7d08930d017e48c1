"""Gemma's tool calls. FunctionGemma and Gemma 4 write them between special tokens, as
`call:f{a:<escape>x<escape>,b:[1,2]}` with sorted keys. The chat templates of Gemma 2 and 3 have no tools, so a system
message tells these models to write JSON in a code fence.
"""

import json
import re
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

from tokenmill.text.tools.functions import Function, refuse_unenforced
from tokenmill.text.tools.json_calls import JsonCall
from tokenmill.text.tools.kinds import (
    COMBINED,
    TOLD,
    json_of_literal,
    json_of_text,
    kinds_of,
    resolved,
    texts_of,
    with_definitions,
    words_of,
)
from tokenmill.text.tools.lark import ANYTHING, Lark, choice, quoted
from tokenmill.text.tools.named_calls import read_name
from tokenmill.text.tools.source import Reading, Source
from tokenmill.text.tools.tool_format import CallBody, Taker, ToolFormat

_WORD = re.compile(r"[-+.\w]*", re.ASCII)
_KEY = re.compile(r"[^:{}\[\],<>\s]+")
ENFORCED = TOLD | frozenset(
    """properties required additionalProperties items minItems maxItems anyOf oneOf $ref $defs definitions $schema $id
    minimum maximum exclusiveMinimum exclusiveMaximum multipleOf""".split()
)
DEEPEST = 20  # of lists and objects of a schema that are enforced
KEY = r"/[^:{}\[\],<>\s]+/"

MAX_DEPTH = 100  # of lists and objects, which are read one in the other


@dataclass(frozen=True)
class GemmaCall(CallBody):
    """A call with its arguments in braces. quote: the mark around a text."""

    quote: str

    def rule(self, lark: Lark, function: Function, name: str, before: str = "") -> str:
        refuse_unenforced(function, self.unenforced(function))
        begin = lark.literal(f"{before}call:{function.name}")
        return f"{begin} {self._object(lark, function, function.schema, name, 0)}"

    def unenforced(self, function: Function) -> list[str]:
        return sorted(words_of(function.schema) - ENFORCED)

    def read(self, source: Source, taker: Taker) -> Reading:
        if not (yield from source.frame("call:")):
            return False
        name = yield from read_name(source)
        yield from source.spaces()
        if taker.function(name) is None or not (yield from source.literal("{")):
            return False
        taker.begin(name)
        written = yield from self._read_members(source, 0)
        if written is None:
            return False
        taker.append(written)
        return True

    def first(self, name: str) -> str:
        return f"call:{name}"

    def texts(self) -> tuple[str, ...]:
        return (self.quote,)

    def text(self, name: str, arguments: Mapping[str, Any], number: int = 0) -> str:
        return f"call:{name}{self._written(arguments)}"

    def _written(self, value: Any) -> str:
        if isinstance(value, str):
            return f"{self.quote}{value}{self.quote}"
        if isinstance(value, Mapping):
            keys = sorted(value, key=str.lower)
            return f"{{{','.join(f'{key}:{self._written(value[key])}' for key in keys)}}}"
        if isinstance(value, list):
            return f"[{','.join(map(self._written, value))}]"
        return json.dumps(value, ensure_ascii=False)

    # ---- the grammar

    def _value(self, lark: Lark, function: Function, schema: Any, name: str, depth: int) -> str:
        root = function.schema
        if isinstance(schema, Mapping) and isinstance(place := schema.get("$ref"), str):
            name, is_new = lark.reference(function.name, place)
            return (
                lark.rule(name, self._value(lark, function, resolved(schema, root), f"{name}_is", 0))
                if is_new
                else name
            )
        kinds = kinds_of(schema, root)
        if depth > DEEPEST or not schema or not isinstance(schema, Mapping):
            return self._anything(lark)
        for word in COMBINED[:2]:
            if isinstance(inner := schema.get(word), list) and inner:
                each = enumerate(inner)
                return choice(self._value(lark, function, one, f"{name}_{number}", depth + 1) for number, one in each)
        found = []
        if "string" in kinds:
            texts = texts_of(schema, root)
            found += [self._text(lark)] if texts is None else [lark.literal(self._written(text)) for text in texts]
        if "array" in kinds:
            item = self._value(lark, function, schema.get("items", {}), f"{name}_item", depth + 1)
            found.append(_list_of(item, schema.get("minItems"), schema.get("maxItems")))
        if "object" in kinds:
            found.append(self._object(lark, function, schema, name, depth))
        if scalars := sorted(kinds - {"string", "array", "object"}):
            limits = {word: value for word, value in schema.items() if word not in ("type", "enum", "const")}
            values = {word: schema[word] for word in ("enum", "const") if word in schema}
            whole = with_definitions({**limits, **values, "type": scalars}, root)
            found.append(lark.json(name, whole, function.strict))
        return lark.rule(f"{name}_value", choice(found) if found else self._anything(lark))

    def _object(self, lark: Lark, function: Function, schema: Mapping[str, Any], name: str, depth: int) -> str:
        """Return an expression for an object in braces; keys that must be there come in the order of the others."""
        properties, required = schema.get("properties"), schema.get("required") or ()
        if not isinstance(properties, Mapping) or not (properties or schema.get("additionalProperties") is False):
            pair = f'{lark.rule("KEY", KEY)} ":" {self._anything(lark)}'
            return f'"{{" ({pair} ("," {pair})*)? "}}"'
        after, begin = "", ""  # what may follow an argument, and what may stand first, from this key on
        for number, key in reversed(list(enumerate(sorted(properties, key=str.lower)))):
            value = self._value(lark, function, properties[key], f"{name}_{number}", depth + 1)
            one = lark.rule(f"{name}_key_{number}", f"{quoted(key + ':')} {value} {after}")
            if key in required:
                begin, rest = one, f'"," {one}'
            else:
                begin = f"({one} | {begin})" if begin else f"({one})?"
                rest = f'("," {one} | {after})' if after else f'("," {one})?'
            after = lark.rule(f"{name}_after_{number}", rest)
        return f'"{{" {begin} "}}"'

    def _anything(self, lark: Lark) -> str:
        scalar = lark.json("any_scalar", {"type": ["number", "boolean", "null"]})
        pair = f'{lark.rule("KEY", KEY)} ":" any_value'
        lists = '"[" (any_value ("," any_value)*)? "]"'
        return lark.rule("any_value", f'{self._text(lark)} | {scalar} | {lists} | "{{" ({pair} ("," {pair})*)? "}}"')

    def _text(self, lark: Lark) -> str:
        """Return an expression for any text between its marks."""
        anything = lark.rule("TEXT_VALUE", f"/{ANYTHING}/")
        return f"{lark.literal(self.quote)} {lark.until('text_value', self.quote, anything)}"

    # ---- the parser: each method reads a part and returns it as JSON text, or None

    def _read_members(self, source: Source, depth: int) -> Generator[None, None, str | None]:
        """Read an object behind its first brace."""
        parts: list[str] = []
        while True:
            yield from source.spaces()
            if not parts and (yield from source.literal("}")):
                return "{}"
            key = yield from _read_word(source, _KEY)
            if not key or not (yield from source.frame(":")):
                return None
            value = yield from self._read_value(source, depth + 1)
            if value is None:
                return None
            parts.append(f'"{json_of_text(key)}": {value}')
            yield from source.spaces()
            if (yield from source.literal("}")):
                return f"{{{', '.join(parts)}}}"
            if not (yield from source.literal(",")):
                return None

    def _read_value(self, source: Source, depth: int) -> Generator[None, None, str | None]:
        yield from source.spaces()
        if depth > MAX_DEPTH:
            return None
        if (yield from source.literal(self.quote)):
            while (end := source.text.find(self.quote, source.at)) < 0:
                if source.ended:
                    return None
                yield
            written = source.text[source.at : end]
            source.at = end + len(self.quote)
            return f'"{json_of_text(written)}"'
        if (yield from source.literal("{")):
            return (yield from self._read_members(source, depth))
        if (yield from source.literal("[")):
            return (yield from self._read_items(source, depth))
        word = yield from _read_word(source, _WORD)
        return json_of_literal(word) if word else None

    def _read_items(self, source: Source, depth: int) -> Generator[None, None, str | None]:
        """Read a list behind its first bracket."""
        parts: list[str] = []
        while True:
            yield from source.spaces()
            if not parts and (yield from source.literal("]")):
                return "[]"
            value = yield from self._read_value(source, depth + 1)
            if value is None:
                return None
            parts.append(value)
            yield from source.spaces()
            if (yield from source.literal("]")):
                return f"[{', '.join(parts)}]"
            if not (yield from source.literal(",")):
                return None


def _list_of(item: str, least: Any, most: Any) -> str:
    """Return an expression for a list of so many items, where these are numbers."""
    least = least if isinstance(least, int) and least > 0 else 0
    if not isinstance(most, int):
        more = f'("," {item})' + ("*" if least < 2 else f"{{{least - 1},}}")
    elif most < 1:
        return '"[" "]"'
    else:
        more = f'("," {item}){{{max(least - 1, 0)},{most - 1}}}' if most > 1 else ""
    return f'"[" {item} {more} "]"' if least else f'"[" ({item} {more})? "]"'


def _read_word(source: Source, pattern: re.Pattern[str]) -> Generator[None, None, str]:
    """Read what fits a pattern, up to a letter that does not."""
    pieces: list[str] = []
    while True:
        found = pattern.match(source.text, source.at)
        if found:
            pieces.append(found[0])
            source.at = found.end()
        if source.at < len(source.text) or source.ended:
            return "".join(pieces)
        yield


GEMMA = ToolFormat(
    name="gemma",
    words=(),
    body=JsonCall("parameters"),
    mark="```tool_code",
    opening="```tool_code\n",
    closing="\n```",
    lead="\n",
)

FUNCTION_GEMMA = ToolFormat(
    name="functiongemma",
    words=("<start_function_call>",),
    body=GemmaCall("<escape>"),
    mark="<start_function_call>",
    opening="<start_function_call>",
    closing="<end_function_call>",
)

GEMMA4 = ToolFormat(
    name="gemma4",
    words=("<|tool_call>", '<|"|>'),
    body=GemmaCall('<|"|>'),
    mark="<|tool_call>",
    opening="<|tool_call>",
    closing="<tool_call|>",
)
