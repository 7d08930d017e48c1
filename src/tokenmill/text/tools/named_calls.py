"""A tool call that writes the function's name, then its arguments as JSON: `name[ARGS]{…}`."""

import json
import re
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

from tokenmill.text.tools.functions import Function
from tokenmill.text.tools.lark import Lark
from tokenmill.text.tools.lark_rules import arguments_of
from tokenmill.text.tools.source import Reading, Source, read_json
from tokenmill.text.tools.tool_format import CallBody, Taker

IN_NAME = re.compile(r"[\w.:/-]", re.ASCII)
NUMBER = re.compile(r":\d+$")


@dataclass(frozen=True)
class NamedCall(CallBody):
    """A call of the form: before name after arguments end. also: a mark that may stand after the name, before an id and
    `after`.

    is_numbered: the name ends with a colon and the number of the call, and with it is the call's id.
    """

    after: str
    before: str = ""
    end: str = ""
    also: str = ""
    is_numbered: bool = False

    def rule(self, lark: Lark, function: Function, name: str, before: str = "") -> str:
        number = lark.rule("CALL_NUMBER", r"/:[0-9]{1,3}/") if self.is_numbered else ""
        parts = (lark.literal(before + self.before + function.name), number, lark.literal(self.after))
        return " ".join(part for part in (*parts, arguments_of(lark, function, name), lark.literal(self.end)) if part)

    def read(self, source: Source, taker: Taker) -> Reading:
        if not (yield from source.frame(self.before)):
            return False
        written = yield from read_name(source)
        name = NUMBER.sub("", written) if self.is_numbered else written
        if taker.function(name) is None:
            return False
        if self.also and (yield from source.frame(self.also)):
            yield from read_name(source)
        if not (yield from source.frame(self.after)):
            return False
        yield from source.spaces()
        while source.at == len(source.text) and not source.ended:
            yield
        if not source.text.startswith("{", source.at):
            return False
        taker.begin(name, f"functions.{written}" if self.is_numbered else None)
        return (yield from read_json(source, taker.append)) and (yield from source.frame(self.end, may_end=True))

    def first(self, name: str) -> str:
        return self.before + name

    def texts(self) -> tuple[str, ...]:
        return self.before, self.after, self.end, self.also

    def text(self, name: str, arguments: Mapping[str, Any], number: int = 0) -> str:
        written = f"{name}:{number}" if self.is_numbered else name
        return f"{self.before}{written}{self.after}{json.dumps(arguments, ensure_ascii=False)}{self.end}"


def read_name(source: Source) -> Generator[None, None, str]:
    """Read the name of a function, which may be empty; it ends with the first other character."""
    letters: list[str] = []
    yield from source.spaces()
    while True:
        while source.at < len(source.text):
            if not IN_NAME.match(letter := source.text[source.at]):
                return "".join(letters)
            letters.append(letter)
            source.at += 1
        if source.ended:
            return "".join(letters)
        yield
