"""Custom tools, which take a text: to the model each is a function with one argument, `input`.

The text may have a grammar of its own, a regular expression or Lark. It becomes a pattern of the argument, so that
it is enforced inside the JSON text of a call; a template does not show the pattern.
"""

from collections.abc import Mapping
from collections.abc import Sequence as List
from dataclasses import dataclass
from typing import Any

import pydantic_core

from tokenmill.errors import RequestError
from tokenmill.text.tools.functions import Function, read_functions
from tokenmill.text.tools.history import INPUT
from tokenmill.text.tools.lark import Lark
from tokenmill.text.tools.lark_pattern import RefersToItself, grouped, pattern_of
from tokenmill.text.tools.lark_rules import text_in_json
from tokenmill.value_reader import brief

TEXT = {"type": "object", "properties": {INPUT: {"type": "string"}}, "required": [INPUT], "additionalProperties": False}


@dataclass(frozen=True)
class CustomTool(Function):
    """A tool that takes a text. pattern: an expression of the whole input; None for any text."""

    pattern: str | None = None

    @property
    def schema(self) -> Mapping[str, Any]:
        if self.pattern is None:
            return TEXT
        return {**TEXT, "properties": {INPUT: {"type": "string", "pattern": f"^{grouped(self.pattern)}$"}}}


def read_tools(tools: List[Mapping[str, Any]]) -> tuple[Function, ...]:
    """Read the functions of a request's `tools`, custom ones among them; RequestError for a wrong one."""
    plain = [_as_function(tool, f"tools[{number}]") for number, tool in enumerate(tools)]
    functions = read_functions(plain)
    return tuple(
        CustomTool(function.name, function.description, TEXT, **_form(tool["custom"], f"tools[{number}]"))
        if _is_custom(tool)
        else function
        for number, (tool, function) in enumerate(zip(tools, functions, strict=True))
    )


def input_of(arguments: str) -> str:
    """Read the text that a custom tool gets; of arguments that were cut, as much of it as is there."""
    try:
        found = pydantic_core.from_json(arguments or "{}", allow_partial="trailing-strings")
    except ValueError:
        return ""
    given = found.get(INPUT) if isinstance(found, dict) else None
    return given if isinstance(given, str) else ""


def is_json(text: str) -> bool:
    """Return whether the arguments of a call are whole."""
    try:
        pydantic_core.from_json(text)
    except ValueError:
        return False
    return True


def _is_custom(tool: Any) -> bool:
    return isinstance(tool, Mapping) and tool.get("type") == "custom"


def _as_function(tool: Any, where: str) -> Any:
    if not _is_custom(tool):
        return tool
    if not isinstance(inner := tool.get("custom"), Mapping):
        raise RequestError(f'{where} is not allowed: {{"type": "custom", "custom": {{"name": …}}}}')
    return {"type": "function", "function": {key: inner.get(key) for key in ("name", "description")}}


def _form(custom: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Read the pattern of a custom tool's text, or its grammar where it refers to itself; empty for any text."""
    form = custom.get("format") or {"type": "text"}
    if not isinstance(form, Mapping) or form.get("type") not in ("text", "grammar"):
        raise RequestError(f"{where}: format = {brief(form)} is not allowed: of type text or grammar")
    if form["type"] == "text":
        return {}
    told = form.get("grammar", form)
    syntax, definition = (
        (told.get(key) for key in ("syntax", "definition")) if isinstance(told, Mapping) else (None, None)
    )
    if syntax not in ("lark", "regex") or not isinstance(definition, str):
        raise RequestError(f"{where}: a grammar has a syntax, lark or regex, and a definition, which is a text")
    try:
        return _read(syntax, definition)
    except (ValueError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise RequestError(f"{where}: the grammar of {custom.get('name')!r} is not allowed: {why}") from None


def _read(syntax: str, definition: str) -> dict[str, Any]:
    if syntax == "regex":
        grouped(definition)  # which says what is wrong with it
        return {"pattern": definition}
    try:
        return {"pattern": pattern_of(definition)}
    except RefersToItself:
        text_in_json(Lark({}), definition, "text")  # which says what is wrong with it
        return {"lark": definition}
