"""The functions of a request, and which of them may be called: read from the form of OpenAI's API and checked."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tokenmill.errors import RequestError
from tokenmill.value_reader import brief

NAME = re.compile(r"[\w-][\w.:/-]{0,255}", re.ASCII)
NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}
MODES = ("auto", "none", "required")


@dataclass(frozen=True)
class Function:
    """parameters: the JSON schema of its arguments. strict: True refuses a schema of which a part cannot be enforced,
    False enforces nothing of it but that the arguments are an object, None enforces what can be. lark: the grammar of
    the one parameter `input`, a text.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: NO_PARAMETERS)
    strict: bool | None = None
    lark: str | None = None

    @property
    def schema(self) -> Mapping[str, Any]:
        """What is enforced of its arguments."""
        return {"type": "object"} if self.strict is False else self.parameters

    def shown(self) -> dict[str, Any]:
        """The function as chat templates see it."""
        told = {"description": self.description} if self.description else {}
        return {"type": "function", "function": {"name": self.name, **told, "parameters": dict(self.parameters)}}


@dataclass(frozen=True)
class Choice:
    """mode: whether functions may or must be called. name: the one that must be. parallel: several calls may be."""

    mode: Literal["auto", "none", "required"] = "auto"
    name: str | None = None
    parallel: bool = True

    def among(self, functions: Sequence[Function]) -> tuple[Function, ...]:
        """The functions that may be called."""
        if self.mode == "none":
            return ()
        return tuple(function for function in functions if self.name in (None, function.name))


def refuse_if_strict(function: Function, words: Sequence[str]) -> None:
    """RequestError where a strict function's schema has words that a format cannot enforce."""
    if function.strict and words:
        raise RequestError(
            f"{function.name}: strict is not possible, because this model's way of calling cannot enforce "
            f"{', '.join(words)}: leave that out of its parameters, or leave out strict"
        )


def read_functions(tools: Sequence[Mapping[str, Any]]) -> tuple[Function, ...]:
    """The functions of a request's `tools`; RequestError for what is none, and for two of one name."""
    found = tuple(_function(tool, f"tools[{number}]") for number, tool in enumerate(tools))
    names = [function.name for function in found]
    for number, name in enumerate(names):
        if name in names[:number]:
            raise RequestError(f"tools[{number}]: a second function {name!r}: give each a name of its own")
    return found


def read_choice(given: Any, functions: Sequence[Function], parallel: bool | None = None) -> Choice:
    """A request's `tool_choice`, which is a mode or names a function; RequestError for any other."""
    parallel = True if parallel is None else parallel
    names = [function.name for function in functions]
    if isinstance(given, Mapping):
        inner = given.get("function", given)
        name = inner.get("name") if given.get("type") == "function" and isinstance(inner, Mapping) else None
        if not isinstance(name, str):
            raise RequestError(f'tool_choice = {brief(given)} is not allowed: {{"type": "function", "function": …}}')
        if name not in names:
            known = ", ".join(names) if names else "none"
            raise RequestError(f"tool_choice names the function {name!r}, which is not among tools: {known}")
        return Choice("required", name, parallel=False)
    mode: Any = given if given is not None else "auto"
    if mode not in MODES:
        raise RequestError(f"tool_choice = {brief(given)} is not allowed: one of {', '.join(MODES)}, or a function")
    if mode == "required" and not functions:
        raise RequestError("tool_choice = 'required' needs tools, and there are none: give them, or leave it out")
    return Choice(mode if functions else "none", None, parallel)


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
