"""Tool calls of GLM-4.5 to 4.7, of which 4.7 writes no new lines: the name, then each argument in two tags."""

from dataclasses import replace

from tokenmill.text.tools.tool_format import ToolFormat
from tokenmill.text.tools.xml_calls import XmlCall

_BODY = XmlCall(
    begin="",
    after_name="\n",
    key_begin="<arg_key>",
    key_end="</arg_key>\n<arg_value>",
    value_end="</arg_value>",
    end="",
    stop="</tool_call>",
)
GLM45 = ToolFormat(
    name="glm45",
    words=("<tool_call>", "<arg_key>"),
    body=_BODY,
    mark="<tool_call>",
    opening="<tool_call>",
    closing="</tool_call>",
    lead="\n",
)

GLM47 = replace(
    GLM45,
    name="glm47",
    words=("<tool_call>", "</arg_key><arg_value>"),
    body=replace(_BODY, after_name="", key_end="</arg_key><arg_value>", after_value=""),
    lead="",
)
