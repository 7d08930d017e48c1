"""MiniMax-M2's tool calls: XML tags with the names as attributes, all calls between one pair of tags."""

from tokenmill.text.tools.tool_format import ToolFormat
from tokenmill.text.tools.xml_calls import XmlCall

MINIMAX_M2 = ToolFormat(
    name="minimax_m2",
    words=("<minimax:tool_call>",),
    body=XmlCall(
        begin='<invoke name="',
        after_name='">\n',
        key_begin='<parameter name="',
        key_end='">',
        value_end="</parameter>",
        end="</invoke>",
        stop="</invoke>",
    ),
    mark="<minimax:tool_call>",
    opening="<minimax:tool_call>\n",
    closing="\n</minimax:tool_call>",
    comma="\n",
    lead="\n",
)
