"""Gemma's tool calls. FunctionGemma and Gemma 4 write them between special tokens. The chat templates of Gemma 2 and 3
have no tools, so a system message tells these models to write JSON in a code fence.
"""

from tokenmill.text.tools.gemma_calls import GemmaCall
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

FUNCTION_GEMMA = ToolFormat(
    name="functiongemma",
    words=("<start_function_call>",),
    body=GemmaCall("<escape>"),
    mark="<start_function_call>",
    opening="<start_function_call>",
    closing="<end_function_call>",
)

GEMMA4 = ToolFormat(
    name="gemma4",
    words=("<|tool_call>", '<|"|>'),
    body=GemmaCall('<|"|>'),
    mark="<|tool_call>",
    opening="<|tool_call>",
    closing="<tool_call|>",
)
