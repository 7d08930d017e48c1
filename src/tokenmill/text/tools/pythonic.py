"""Tool calls as Python writes them: a list that is the whole answer (Llama 3.2 and 4), or a list between marks."""

from tokenmill.text.tools.python_calls import PythonCall
from tokenmill.text.tools.tool_format import ToolFormat

PYTHONIC = ToolFormat(
    name="pythonic",
    words=("[func_name1(",),
    body=PythonCall(),
    opening="[",
    closing="]",
    comma=", ",
    is_alone=True,
)

OLMO3 = ToolFormat(
    name="olmo3",
    words=("<function_calls>",),
    body=PythonCall(single=True),
    mark="<function_calls>",
    opening="<function_calls>\n",
    closing="\n</function_calls>",
    comma="\n",
    lead="\n",
)

LFM2 = ToolFormat(
    name="lfm2",
    words=("<|tool_list_start|>",),
    body=PythonCall(),
    mark="<|tool_call_start|>",
    opening="<|tool_call_start|>[",
    closing="]<|tool_call_end|>",
    comma=", ",
)
