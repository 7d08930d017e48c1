"""Tool calls of Hunyuan and of Nemotron Nano 2: a JSON list between two marks."""

from dataclasses import replace

from tokenmill.text.tools.json_calls import JsonCall
from tokenmill.text.tools.tool_format import ToolFormat

HUNYUAN = ToolFormat(
    name="hunyuan",
    words=("<tool_calls>[",),
    body=JsonCall(),
    mark="<tool_calls>",
    opening="<tool_calls>[",
    closing="]</tool_calls>",
    comma=", ",
)

NEMOTRON = replace(
    HUNYUAN,
    name="nemotron_json",
    words=("<TOOLCALL>[",),
    mark="<TOOLCALL>",
    opening="<TOOLCALL>[",
    closing="]</TOOLCALL>",
    lead="\n\n",
)
