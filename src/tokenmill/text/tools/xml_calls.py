"""A tool call in XML tags, one for each argument: strings are written as they are, other values as JSON.

A text ends at the first closing tag after which the call can go on, so that one inside a text that no grammar made
does no harm; a closing tag that stands twice is read once. The grammar admits no closing tag inside a text.
"""

import json
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

from tokenmill.text.schema.ahead import terminal
from tokenmill.text.tools.functions import Function, refuse_unenforced
from tokenmill.text.tools.kinds import (
    json_of_text,
    json_of_value,
    kinds_of,
    resolved,
    texts_of,
    unenforced,
    with_definitions,
)
from tokenmill.text.tools.lark import ANYTHING, Lark, choice, escaped, quoted
from tokenmill.text.tools.named_calls import read_name
from tokenmill.text.tools.source import SPACES, JsonScanner, Reading, Source, begun
from tokenmill.text.tools.tool_format import CallBody, Taker

TEXT = frozenset({"string"})


@dataclass(frozen=True)
class XmlCall(CallBody):
    """A call of the form: begin name after_name (key_begin key key_end pad value pad value_end after_value)… end.

    stop: what stands behind the last argument. python: truth values and nothing are spelled as in Python too, since the
    chat template writes them so.
    """

    begin: str
    after_name: str
    key_begin: str
    key_end: str
    value_end: str
    end: str
    stop: str
    pad: str = ""
    after_value: str = "\n"
    python: bool = False

    def rule(self, lark: Lark, function: Function, name: str, before: str = "") -> str:
        refuse_unenforced(function, self.unenforced(function))
        schema = function.schema
        properties, required = schema.get("properties"), schema.get("required") or ()
        parts = [lark.literal(before + self.begin + function.name + self.after_name)]
        if isinstance(properties, Mapping) and (properties or schema.get("additionalProperties") is False):
            for number, (key, inner) in enumerate(properties.items()):
                value = self._value(lark, function, key, inner, f"{name}_{number}")
                written = f"{lark.literal(self.key_begin + key + self.key_end + self.pad)} {value}"
                rule = lark.rule(f"{name}_argument_{number}", f"{written} {quoted(self.after_value)}")
                parts.append(rule if key in required else f"{rule}?")
        else:
            key = lark.rule("KEY", r"/[^<>\"\n]+/")
            written = f"{lark.literal(self.key_begin)} {key} {lark.literal(self.key_end + self.pad)}"
            any_one = lark.rule("any_argument", f"{written} {self._text(lark)} {quoted(self.after_value)}")
            parts.append(f"{any_one}*")
        return " ".join([*parts, lark.literal(self.end)])

    def unenforced(self, function: Function) -> list[str]:
        """See CallBody. Texts stand as they are, so of their schemas only patterns and lists of texts are enforced."""
        root, found = function.schema, []
        properties = root.get("properties")
        for key, schema in properties.items() if isinstance(properties, Mapping) else ():
            kinds = kinds_of(schema, root)
            words = unenforced(schema, root) if "string" in kinds else []
            found += [f"{word} of {key!r}" for word in words if word != "pattern" or kinds != TEXT]
        return found

    def read(self, source: Source, taker: Taker) -> Reading:
        if not (yield from source.frame(self.begin)):
            return False
        name = yield from read_name(source)
        if (function := taker.function(name)) is None or not (yield from source.frame(self.after_name)):
            return False
        num_read = 0
        yield from source.spaces()
        while (yield from source.literal(self.key_begin)):
            key = yield from self._key(source)
            if key is None:
                return False
            if not num_read:
                taker.begin(name)
            taker.append(f'{", " if num_read else "{"}"{json_of_text(key)}": ')
            num_read += 1
            if not (yield from self._read_value(source, taker, _kinds(function, key))):
                return False
            yield from source.spaces()
            while (yield from source.literal(self.value_end)):
                yield from source.spaces()
        if self.end and not (yield from source.frame(self.end)):
            return False
        if not num_read:
            taker.begin(name)
        taker.append("}" if num_read else "{}")
        return True

    def first(self, name: str) -> str:
        return self.begin + name

    def texts(self) -> tuple[str, ...]:
        return self.begin, self.after_name, self.key_begin, self.key_end, self.value_end, self.end

    def text(self, name: str, arguments: Mapping[str, Any], number: int = 0) -> str:
        parts = [f"{self.begin}{name}{self.after_name}"]
        for key, value in arguments.items():
            written = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            parts.append(f"{self.key_begin}{key}{self.key_end}{self.pad}{written}{self.pad}{self.value_end}")
            parts.append(self.after_value)
        return "".join([*parts, self.end])

    def _value(self, lark: Lark, function: Function, key: str, schema: Any, name: str) -> str:
        """Return an expression for a value and what ends it."""
        root = function.schema
        kinds, end = kinds_of(schema, root), lark.literal(self.pad + self.value_end)
        if "string" not in kinds:
            value = lark.json(name, with_definitions(schema, root), function.strict)
            others = {"boolean": ["True", "False"], "null": ["None"]} if self.python else {}
            python = [quoted(other) for kind, words in others.items() if kind in kinds for other in words]
            return f"{choice([value, *python])} {end}"
        if kinds == TEXT and isinstance(pattern := resolved(schema, root).get("pattern"), str):
            return lark.rule(f"{name}_text", self._pattern(pattern), "[lazy]")
        if kinds == TEXT and (texts := texts_of(schema, root)):
            return f"{choice(map(quoted, texts))} {end}"
        return self._text(lark)

    def _text(self, lark: Lark) -> str:
        """Return an expression for any text without the closing tag, and for the tag."""
        if self.value_end in lark.control:
            anything = lark.rule("VALUE_TEXT", f"/{ANYTHING}{escaped(self.pad)}/")
            return f"{anything} {lark.literal(self.value_end)}"
        ends = escaped(self.pad + self.value_end)
        pattern = f"/{ANYTHING}{ends}/"
        if self.pad:
            pattern += f" & ~/({ANYTHING}[^{escaped(self.pad)}])?{escaped(self.value_end)}{ANYTHING}/"
        return lark.rule("text_value", pattern, "[lazy]")

    def _pattern(self, pattern: str) -> str:
        """Return a terminal for a text that fits a pattern, and for its closing tag, which is spelled nowhere in it.

        ValueError for a wrong pattern.
        """
        inner = terminal(pattern, is_json=False)
        end, pad = escaped(self.value_end), escaped(self.pad)
        before = f" & ~/({ANYTHING}[^{pad}])?{end}/" if pad else ""
        return f"({inner} /{pad}{end}/) & ~/{ANYTHING}{end}(.|\\n)+/{before}"

    def _key(self, source: Source) -> Generator[None, None, str | None]:
        """Read a key and what ends it; return None where there is no such thing."""
        first, *rest = self.key_end.split()
        while (end := source.text.find(first, source.at)) < 0 and not source.ended:
            if "\n" in source.text[source.at :]:
                return None
            yield
        key = source.text[source.at : end]
        if end < 0 or "\n" in key:
            return None
        source.at = end + len(first)
        return key if (yield from source.frame(" ".join(rest))) else None

    def _read_value(self, source: Source, taker: Taker, kinds: frozenset[str]) -> Reading:
        """Read a value and what ends it: a text as it comes, any other when it is there."""
        if self.pad:
            yield from source.literal(self.pad)
        pieces: list[str] = []
        is_text = kinds == TEXT
        if is_text:
            taker.append('"')
        elif "string" not in kinds and (written := (yield from self._read_json(source))) is not None:
            taker.append(written)
            return True
        while True:
            text, at = source.text, source.at
            end = text.find(self.value_end, at)
            goes_on = None if end < 0 else self._goes_on(source, end + len(self.value_end))
            if goes_on:
                stop = end - len(self.pad) if self.pad and text.endswith(self.pad, at, end) else end
            elif goes_on is False:
                stop = end + len(self.value_end)
            elif source.ended:
                return False
            else:
                wanted = self.pad + self.value_end if end < 0 else ""
                stop = len(text) - begun(text, at, wanted, self.value_end) if end < 0 else max(at, end - len(self.pad))
            piece = text[at:stop]
            source.at = stop
            if is_text and piece:
                taker.append(json_of_text(piece))
            elif piece:
                pieces.append(piece)
            if goes_on:
                source.at = end + len(self.value_end)
                taker.append('"' if is_text else json_of_value("".join(pieces), kinds))
                return True
            if goes_on is None:
                yield

    def _read_json(self, source: Source) -> Generator[None, None, str | None]:
        """Read a list or object and its closing tag, which counts in no text; return None for any other value."""
        yield from source.spaces()
        scanner, length = JsonScanner(), 0
        while True:
            text, at = source.text, source.at
            if at < len(text) and text[at] not in "[{":
                return None
            length = scanner.scan(text, at + length) - at
            if scanner.is_done:
                break
            if scanner.is_wrong or source.ended:
                return None
            yield
        # The closing tag is read from here, and where it is missing the value is read anew.
        end = length
        while True:
            text, at = source.text, source.at
            while at + end < len(text) and text[at + end] in SPACES:
                end += 1
            if text.startswith(self.value_end, at + end):
                source.at = at + end + len(self.value_end)
                return text[at : at + length]
            if source.ended or not self.value_end.startswith(text[at + end : at + end + len(self.value_end)]):
                return None
            yield

    def _goes_on(self, source: Source, at: int) -> bool | None:
        """Return whether behind a closing tag the call goes on; None where more text will tell."""
        text = source.text
        while at < len(text) and text[at] in SPACES:
            at += 1
        words = (self.key_begin, self.stop, self.value_end)
        if any(text.startswith(word, at) for word in words):
            return True
        rest = text[at : at + max(map(len, words))]
        if any(word.startswith(rest) for word in words):
            return True if source.ended else None
        return False


def _kinds(function: Function, key: str) -> frozenset[str]:
    properties = function.parameters.get("properties")
    known = isinstance(properties, Mapping) and key in properties
    return kinds_of(properties[key] if known else {}, function.parameters)  # type: ignore[index]
