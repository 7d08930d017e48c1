"""Granite 3's tool calls: a JSON list after `<|tool_call|>`. Granite 4 writes them as Hermes does."""

from tokenmill.text.tools.json_calls import JsonCall
from tokenmill.text.tools.tool_format import ToolFormat

GRANITE = ToolFormat(
    name="granite",
    words=("<|tool_call|>", "<|start_of_role|>"),
    body=JsonCall(),
    mark="<|tool_call|>",
    opening="<|tool_call|>[",
    closing="]",
    comma=", ",
)
