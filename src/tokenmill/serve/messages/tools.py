"""The tools of /v1/messages become those of a ChatBody."""

from typing import Any

from tokenmill.serve.http.errors import ApiError
from tokenmill.serve.messages.body import CountBody
from tokenmill.serve.request.ask import Translated, field_of
from tokenmill.value_reader import brief

MODES = {"auto": "auto", "any": "required", "none": "none"}
Json = dict[str, Any]


def take_tools(body: CountBody, made: Translated) -> None:
    """Take the tools, the choice among them, and the schema of the text."""
    tools = [tool for number, given in enumerate(body.tools or ()) if (tool := _tool(given, f"tools[{number}]", made))]
    if tools:
        made.fields["tools"] = tools
    if body.tool_choice is not None:
        made.fields |= _choice(body.tool_choice)
    given = (body.output_config or {}).get("format", body.output_format)
    if given is not None:
        if field_of(given, "type", str, "output_config.format") != "json_schema":
            raise ApiError(400, "output_config.format.type: json_schema is the one that there is", "output_config")
        schema = {"name": "output", "schema": given.get("schema")}
        made.fields["response_format"] = {"type": "json_schema", "json_schema": schema}


def _tool(given: Json, where: str, made: Translated) -> Json | None:
    """A function. Tools that a server runs, and those that are to be found later, are left out."""
    kind = given.get("type") or "custom"
    if kind != "custom":
        made.warn(f"a tool of type {brief(kind)} is left out, since nothing here runs it")
        return None
    name = field_of(given, "name", str, where)
    if given.get("defer_loading"):
        made.warn("a tool with defer_loading is left out, since nothing here finds it")
        return None
    function = {"name": name, "parameters": given.get("input_schema"), "strict": given.get("strict")}
    return {"type": "function", "function": function | {"description": given.get("description")}}


def _choice(given: Json) -> Json:
    kind = field_of(given, "type", str, "tool_choice")
    if kind == "tool":
        name = field_of(given, "name", str, "tool_choice")
        found: Json = {"tool_choice": {"type": "function", "function": {"name": name}}}
    elif kind in MODES:
        found = {"tool_choice": MODES[kind]}
    else:
        raise ApiError(400, f"tool_choice.type = {brief(kind)} is not allowed: auto, any, tool or none", "tool_choice")
    one = given.get("disable_parallel_tool_use")
    if not (one is None or isinstance(one, bool)):
        raise ApiError(400, f"tool_choice.disable_parallel_tool_use = {brief(one)}: true or false", "tool_choice")
    return found | ({"parallel_tool_calls": False} if one else {})
