"""Seed-OSS's tool calls: XML tags for the function and for each parameter, without line breaks around values."""

from tokenmill.text.tools.tool_format import ToolFormat
from tokenmill.text.tools.xml_calls import XmlCall

SEED_OSS = ToolFormat(
    name="seed_oss",
    words=("<seed:tool_call>", "<function="),
    body=XmlCall(
        begin="<function=",
        after_name=">\n",
        key_begin="<parameter=",
        key_end=">",
        value_end="</parameter>",
        end="</function>",
        stop="</function>",
        python=True,
    ),
    mark="<seed:tool_call>",
    opening="<seed:tool_call>\n",
    closing="\n</seed:tool_call>",
    lead="\n",
)
