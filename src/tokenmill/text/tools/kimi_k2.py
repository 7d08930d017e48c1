"""Kimi K2's tool calls between special tokens: the name with the call's number, then the arguments as JSON."""

from tokenmill.text.tools.named_calls import NamedCall
from tokenmill.text.tools.tool_format import ToolFormat

KIMI_K2 = ToolFormat(
    name="kimi_k2",
    words=("<|tool_calls_section_begin|>",),
    body=NamedCall(
        before="<|tool_call_begin|>functions.",
        after="<|tool_call_argument_begin|>",
        end="<|tool_call_end|>",
        is_numbered=True,
    ),
    mark="<|tool_calls_section_begin|>",
    opening="<|tool_calls_section_begin|>",
    closing="<|tool_calls_section_end|>",
    comma="",
    numbered="functions.",
)
