"""The tools of /v1/responses: functions, those of a namespace, and custom tools, which take a text.

To the model all of them are functions. A custom tool is one with a single argument, `input`.
"""

from collections.abc import Sequence as List
from dataclasses import dataclass
from typing import Any

from tokenmill.serve.http.errors import ApiError
from tokenmill.serve.request.ask import Ask, field_of
from tokenmill.value_reader import brief

SEPARATOR = "__"  # between the name of a namespace and that of a function in it
Json = dict[str, Any]


@dataclass(frozen=True)
class Named:
    """How an answer names what the model calls."""

    name: str
    space: str | None = None
    is_custom: bool = False


def flat_name(name: str, space: str | None) -> str:
    """The one name of a function in a namespace."""
    return name if space is None else f"{space}{SEPARATOR}{name}"


def read_tools(
    given: List[Json], choice: str | Json, is_parallel: bool, ask: Ask
) -> tuple[dict[str, Named], dict[str, Any]]:
    """Return how answers name the functions, and the tools and the choice among them as fields of an Ask."""
    names: dict[str, Named] = {}
    tools: list[Json] = []
    for number, each in enumerate(given):
        _Tool(f"tools[{number}]", ask, names, tools).take(each)
    fields: Json = {"tools": tools, "parallel_tool_calls": is_parallel} if tools else {}
    return names, fields | ({"tool_choice": _choice(choice)} if tools or choice != "auto" else {})


@dataclass
class _Tool:
    """One entry of the tools, which is added to both."""

    where: str
    ask: Ask
    names: dict[str, Named]
    tools: list[Json]

    def take(self, given: Json, space: str | None = None) -> None:
        """Take an entry; what a server would run is left out."""
        kind = field_of(given, "type", str, self.where)
        if kind == "function":
            self._take_function(given, space)
        elif kind == "custom":
            self._take_custom(given, space)
        elif kind == "namespace" and space is None:
            inner = field_of(given, "name", str, self.where)
            for each in field_of(given, "tools", list, self.where):
                self.take(each, inner)
        else:
            self.ask.warn(f"a tool of type {brief(kind)} is left out, since nothing here runs it")

    def _take_function(self, given: Json, space: str | None) -> None:
        name = field_of(given, "name", str, self.where)
        told = {key: given.get(key) for key in ("description", "parameters", "strict")}
        self._add(Named(name, space), {"type": "function", "function": told | {"name": flat_name(name, space)}})

    def _take_custom(self, given: Json, space: str | None) -> None:
        name = field_of(given, "name", str, self.where)
        told = {key: given.get(key) for key in ("description", "format")}
        self._add(Named(name, space, True), {"type": "custom", "custom": told | {"name": flat_name(name, space)}})

    def _add(self, named: Named, tool: Json) -> None:
        flat = flat_name(named.name, named.space)
        if flat in self.names:
            raise ApiError(400, f"{self.where}: a second tool {flat!r}: give each a name of its own", "tools")
        self.names[flat] = named
        self.tools.append(tool)


def _choice(given: str | Json) -> str | Json:
    if isinstance(given, str):
        return given
    if given.get("type") != "allowed_tools":
        return _named(given)
    tools = [_named(each) for each in field_of(given, "tools", list, "tool_choice")]
    return {"type": "allowed_tools", "allowed_tools": {"mode": given.get("mode"), "tools": tools}}


def _named(given: Any) -> Json:
    kind = field_of(given, "type", str, "tool_choice")
    if kind not in ("function", "custom"):
        raise ApiError(
            400, f"tool_choice.type = {brief(kind)} is not allowed: function, custom or allowed_tools", "tool_choice"
        )
    name, space = field_of(given, "name", str, "tool_choice"), given.get("namespace")
    flat = flat_name(name, space if isinstance(space, str) else None)
    return {"type": "function", "function": {"name": flat}}
