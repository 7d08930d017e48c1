"""Tool calls of Llama 3.1 to 4: JSON objects with `parameters`, which are the whole answer."""

from tokenmill.text.tools.json_calls import JsonCall
from tokenmill.text.tools.tool_format import ToolFormat

LLAMA3_JSON = ToolFormat(
    name="llama3_json",
    words=('{"name": ', '"parameters": '),
    body=JsonCall("parameters", may_lack=False),
    opening="",
    closing="",
    comma="; ",
    is_alone=True,
    is_single=True,
)
