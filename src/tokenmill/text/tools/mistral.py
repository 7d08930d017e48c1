"""Mistral's tool calls: a JSON list after `[TOOL_CALLS]`; newer models write the name, `[ARGS]` and the arguments."""

from tokenmill.text.tools.json_calls import JsonCall
from tokenmill.text.tools.named_calls import NamedCall
from tokenmill.text.tools.tool_format import ToolFormat

MISTRAL = ToolFormat(
    name="mistral",
    words=("[TOOL_CALLS]",),
    body=JsonCall(),
    mark="[TOOL_CALLS]",
    opening="[TOOL_CALLS] [",
    closing="]",
    comma=", ",
    id_prefix="",
    id_length=9,
)

MISTRAL_ARGS = ToolFormat(
    name="mistral_args",
    words=("[TOOL_CALLS]", "[ARGS]"),
    body=NamedCall(after="[ARGS]", also="[CALL_ID]"),
    mark="[TOOL_CALLS]",
    opening="[TOOL_CALLS]",
    closing="",
    id_prefix="",
    id_length=9,
)
