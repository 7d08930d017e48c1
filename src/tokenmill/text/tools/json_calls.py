"""A tool call as a JSON object, `{"name": "f", "arguments": {…}}`, which several formats share."""

import json
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any

from tokenmill.text.tools.functions import Function
from tokenmill.text.tools.lark import Lark, quoted
from tokenmill.text.tools.lark_rules import arguments_of
from tokenmill.text.tools.source import JsonScanner, Reading, Source, read_json
from tokenmill.text.tools.tool_format import CallBody, Taker

ARGUMENTS = ("arguments", "parameters")  # families differ, and models mix them up
OTHERS = ("id", "type")


@dataclass(frozen=True)
class JsonCall(CallBody):
    """A call as a JSON object. arguments: the key of the arguments. may_lack: a call may have none."""

    arguments: str = "arguments"
    may_lack: bool = True

    def rule(self, lark: Lark, function: Function, name: str, before: str = "") -> str:
        begin = f'{before}{{"name": {json.dumps(function.name)}, "{self.arguments}": '
        return f"{quoted(begin)} {arguments_of(lark, function, name)} {quoted('}')}"

    def read(self, source: Source, taker: Taker) -> Reading:
        """See CallBody. The keys may stand in any order; where the name is first, the arguments go on as they come."""
        if not (yield from source.literal("{")):
            return False
        members, is_more = _Members(taker), True
        while is_more:
            if not (yield from members.read(source)):
                return False
            yield from source.spaces()
            is_more = yield from source.literal(",")
        return (yield from source.literal("}")) and members.finish(self.may_lack)

    def first(self, name: str) -> str:
        return f'{{"name": {json.dumps(name)}'

    def text(self, name: str, arguments: Mapping[str, Any], number: int = 0) -> str:
        return json.dumps({"name": name, self.arguments: arguments}, ensure_ascii=False)


class _Members:
    """The members of a call's object, as far as they are read."""

    def __init__(self, taker: Taker) -> None:
        self._taker = taker
        self._name: str | None = None
        self._pieces: list[str] = []  # of arguments that stand before the name
        self._is_given = False

    def read(self, source: Source) -> Reading:
        """Read one member."""
        yield from source.spaces()
        key = yield from _read_text(source)
        yield from source.spaces()
        if key is None or not (yield from source.literal(":")):
            return False
        yield from source.spaces()
        if key == "name" and self._name is None:
            self._name = yield from _read_text(source)
            return self._name is not None and self._taker.function(self._name) is not None
        if key in OTHERS:
            return (yield from read_json(source, lambda _: None))
        if key not in ARGUMENTS or self._is_given:
            return False
        self._is_given = True
        if self._name is None:
            return (yield from _read_object(source, self._pieces.append))
        self._taker.begin(self._name)
        return (yield from _read_object(source, self._taker.append))

    def finish(self, may_lack: bool) -> bool:
        """Return whether the object, now at its end, is a call. may_lack: also without arguments."""
        if self._name is None or not (self._is_given or may_lack):
            return False
        if self._pieces or not self._is_given:
            self._taker.begin(self._name)
            self._taker.append("".join(self._pieces) or "{}")
        return True


def _read_text(source: Source) -> Generator[None, None, str | None]:
    """Read a JSON string; return its text, or None."""
    pieces: list[str] = []
    while source.at == len(source.text) and not source.ended:
        yield
    if not source.text.startswith('"', source.at) or not (yield from read_json(source, pieces.append)):
        return None
    return str(json.loads("".join(pieces)))


def _read_object(source: Source, take: Callable[[str], None]) -> Reading:
    """Read a JSON object, or a JSON text that holds one."""
    while source.at == len(source.text) and not source.ended:
        yield
    if source.text.startswith("{", source.at):
        return (yield from read_json(source, take))
    scanner, spelled = JsonScanner(), (yield from _read_text(source))
    is_object = spelled is not None and spelled.startswith("{")
    if spelled is None or not is_object or scanner.scan(spelled, 0) < len(spelled) or not scanner.is_done:
        return False
    take(spelled)
    return True
