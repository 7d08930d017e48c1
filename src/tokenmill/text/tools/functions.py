"""The functions of a request, and which of them may be called: read from the form of OpenAI's API and checked."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tokenmill.errors import RequestError
from tokenmill.value_reader import brief

NAME = re.compile(r"[\w-][\w.:/-]{0,255}", re.ASCII)
NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}
MODES = ("auto", "none", "required")
OTHER_MODES = {None: "auto", "any": "required"}
"""Other names of modes: of none at all, and Mistral's."""


@dataclass(frozen=True)
class Function:
    """A function of a request. parameters: the JSON schema of its arguments. strict: True refuses a schema of which a
    part cannot be enforced, False enforces only that the arguments are an object, None enforces what can
    be. lark: the grammar of the one parameter `input`, a text. read: the parameters as grammars are made of them, once
    they were read.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: NO_PARAMETERS)
    strict: bool | None = None
    lark: str | None = None
    read: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)

    @property
    def schema(self) -> Mapping[str, Any]:
        """The schema that is enforced of its arguments: an object also where their own schema leaves that open."""
        if self.strict is False:
            return {"type": "object"}
        known = self.parameters if self.read is None else self.read
        types = known.get("type", ["object"])
        return {**known, "type": "object"} if isinstance(types, list) and "object" in types else known

    def shown(self) -> dict[str, Any]:
        """Return the function as chat templates see it."""
        told = {"description": self.description} if self.description else {}
        return {"type": "function", "function": {"name": self.name, **told, "parameters": dict(self.parameters)}}


@dataclass(frozen=True)
class ToolChoice:
    """A choice among functions. mode: whether they may or must be called. name: the one that must be. parallel: several
    calls may be.

    allowed: the functions that may be called, if they are not all that are shown.
    """

    mode: Literal["auto", "none", "required"] = "auto"
    name: str | None = None
    parallel: bool = True
    allowed: tuple[str, ...] | None = None

    def among(self, functions: Sequence[Function]) -> tuple[Function, ...]:
        """Return the functions that may be called."""
        if self.mode == "none":
            return ()
        named = [function for function in functions if self.name in (None, function.name)]
        return tuple(function for function in named if self.allowed is None or function.name in self.allowed)


def refuse_unenforced(function: Function, words: Sequence[str]) -> None:
    """Raise RequestError for a tool's grammar that refers to itself, and for words of a strict schema, which a format
    cannot enforce.
    """
    if function.lark is not None:
        raise RequestError(
            f"{function.name}: a grammar that refers to itself is not possible, because this model's way of calling "
            "writes texts as they are, with nothing that says where they end"
        )
    if function.strict and words:
        raise RequestError(
            f"{function.name}: strict is not possible, because this model's way of calling cannot enforce "
            f"{', '.join(words)}: leave that out of its parameters, or leave out strict"
        )


def read_functions(tools: Sequence[Mapping[str, Any]]) -> tuple[Function, ...]:
    """Read the functions of a request's `tools`. RequestError for a wrong one, and for two of one name."""
    found = tuple(_function(tool, f"tools[{number}]") for number, tool in enumerate(tools))
    names = [function.name for function in found]
    for number, name in enumerate(names):
        if name in names[:number]:
            raise RequestError(f"tools[{number}]: a second function {name!r}: give each a name of its own")
    return found


def forced(functions: Sequence[Function], wanted: ToolChoice) -> tuple[Function, ...]:
    """Have arguments fit their schemas where a function has to be called: `strict: false` leaves arguments free that
    the model gives on its own.
    """
    if wanted.mode != "required":
        return tuple(functions)
    return tuple(replace(each, strict=None) if each.strict is False else each for each in functions)


def read_choice(given: Any, functions: Sequence[Function], parallel: bool | None = None) -> ToolChoice:
    """Read a request's `tool_choice`, which is a mode or names a function; RequestError for anything else."""
    parallel = True if parallel is None else parallel
    names = [function.name for function in functions]
    if isinstance(given, Mapping):
        if given.get("type") == "allowed_tools":
            return _allowed(given.get("allowed_tools", given), names, parallel)
        return ToolChoice("required", _name(given, names), parallel=False)
    mode: Any = OTHER_MODES.get(given, given) if given is None or isinstance(given, str) else given
    if mode not in MODES:
        raise RequestError(f"tool_choice = {brief(given)} is not allowed: one of {', '.join(MODES)}, or a function")
    if mode == "required" and not functions:
        raise RequestError(f"tool_choice = {brief(given)} needs tools, and there are none: give them, or leave it out")
    return ToolChoice(mode if functions else "none", None, parallel)


def _allowed(given: Any, names: Sequence[str], parallel: bool) -> ToolChoice:
    """Read a choice among some of the functions that are shown."""
    mode, tools = (given.get("mode"), given.get("tools")) if isinstance(given, Mapping) else (None, None)
    if mode not in ("auto", "required") or not isinstance(tools, list) or not (tools or mode == "auto"):
        raise RequestError(
            f"tool_choice = {brief(given)} is not allowed: the object allowed_tools has a mode, auto or required, and "
            'tools, a list of {"type": "function", "function": …}'
        )
    return ToolChoice(mode, None, parallel, tuple(_name(tool, names) for tool in tools))


def _name(given: Any, names: Sequence[str]) -> str:
    kind = given.get("type") if isinstance(given, Mapping) else None
    inner = given.get(kind, given) if kind in ("function", "custom") else None
    name = inner.get("name") if isinstance(inner, Mapping) else None
    if not isinstance(name, str):
        raise RequestError(f'tool_choice = {brief(given)} is not allowed: {{"type": "function", "function": …}}')
    if name not in names:
        known = ", ".join(names) if names else "none"
        raise RequestError(f"tool_choice names the function {name!r}, which is not among tools: {known}")
    return name


def _function(tool: Any, where: str) -> Function:
    inner = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(inner, Mapping) or tool.get("type", "function") != "function":
        raise RequestError(f'{where} is not allowed: {{"type": "function", "function": {{"name": …}}}}')
    name, told = inner.get("name"), inner.get("description") or ""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise RequestError(f"{where}: the name {brief(name)} is not allowed: letters, digits and _ - . : /")
    if not isinstance(told, str):
        raise RequestError(f"{where}: the description of {name!r} must be a text")
    parameters, strict = inner.get("parameters"), inner.get("strict")
    if parameters is None:
        parameters = NO_PARAMETERS
    elif not isinstance(parameters, Mapping):
        raise RequestError(f"{where}: the parameters of {name!r} must be a JSON schema, which is an object")
    if not (strict is None or isinstance(strict, bool)):
        raise RequestError(f"{where}: strict = {brief(strict)} is not allowed: true or false")
    return Function(name, told, parameters, strict)
