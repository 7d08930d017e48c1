"""Hunyuan's tool calls: a JSON list between `<tool_calls>` and `</tool_calls>`."""

from tokenmill.text.tools.json_calls import JsonCall
from tokenmill.text.tools.tool_format import ToolFormat

HUNYUAN = ToolFormat(
    name="hunyuan",
    words=("<tool_calls>[",),
    body=JsonCall(),
    mark="<tool_calls>",
    opening="<tool_calls>[",
    closing="]</tool_calls>",
    comma=", ",
)
