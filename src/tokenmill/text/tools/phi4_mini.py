"""Phi-4-mini's tool calls: a JSON list between special tokens, or after the word `functools`."""

from tokenmill.text.tools.json_calls import JsonCall
from tokenmill.text.tools.tool_format import ToolFormat

PHI4_MINI = ToolFormat(
    name="phi4_mini",
    words=("<|tool|>", "<|/tool|>"),
    body=JsonCall(),
    mark="<|tool_call|>",
    opening="<|tool_call|>[",
    closing="]<|/tool_call|>",
    comma=", ",
)

PHI4_MINI_JSON = ToolFormat(
    name="phi4_mini_json",
    words=("functools[",),
    body=JsonCall(),
    mark="functools[",
    opening="functools[",
    closing="]",
    comma=", ",
)
