"""Tool calls of Hermes and Qwen 2.5 and 3: a JSON object between `<tool_call>` and `</tool_call>`."""

from tokenmill.text.tools.json_calls import JsonCall
from tokenmill.text.tools.tool_format import ToolFormat

HERMES = ToolFormat(
    name="hermes",
    words=("<tool_call>", '"name"', '"arguments"'),
    body=JsonCall(),
    mark="<tool_call>",
    opening="<tool_call>\n",
    closing="\n</tool_call>",
    lead="\n",
)
