"""Calls of Gemma 2 and 3, whose templates show no functions: a JSON object in a code fence, as they are told to."""

from tokenmill.text.tools.json_calls import JsonCall
from tokenmill.text.tools.tool_format import ToolFormat

GEMMA = ToolFormat(
    name="gemma",
    words=(),
    body=JsonCall("parameters"),
    mark="```tool_code",
    opening="```tool_code\n",
    closing="\n```",
    lead="\n",
)
