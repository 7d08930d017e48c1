"""Tool calls of Qwen 3 Coder and Qwen 3.5: XML tags for the function and for each parameter."""

from tokenmill.text.tools.tool_format import ToolFormat
from tokenmill.text.tools.xml_calls import XmlCall

QWEN3_XML = ToolFormat(
    name="qwen3_xml",
    words=("<tool_call>", "<function=", "<parameter="),
    body=XmlCall(
        begin="<function=",
        after_name=">\n",
        key_begin="<parameter=",
        key_end=">",
        pad="\n",
        value_end="</parameter>",
        end="</function>",
        stop="</function>",
        python=True,
    ),
    mark="<tool_call>",
    opening="<tool_call>\n",
    closing="\n</tool_call>",
    lead="\n",
)
