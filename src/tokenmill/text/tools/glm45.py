"""Tool calls of GLM-4.5 to 4.7: the name, then each argument in the tags `<arg_key>` and `<arg_value>`."""

from tokenmill.text.tools.tool_format import ToolFormat
from tokenmill.text.tools.xml_calls import XmlCall

GLM45 = ToolFormat(
    name="glm45",
    words=("<tool_call>", "<arg_key>"),
    body=XmlCall(
        begin="",
        after_name="\n",
        key_begin="<arg_key>",
        key_end="</arg_key>\n<arg_value>",
        value_end="</arg_value>",
        end="",
        stop="</tool_call>",
    ),
    mark="<tool_call>",
    opening="<tool_call>",
    closing="</tool_call>",
    lead="\n",
)
