"""DeepSeek's tool calls between special tokens: the name and JSON (V3.1), or the name and JSON in a code fence (V3)."""

from tokenmill.text.tools.named_calls import NamedCall
from tokenmill.text.tools.tool_format import ToolFormat

_CALLS, _CALL, _ENDS = "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"  # noqa: RUF001

DEEPSEEK_V31 = ToolFormat(
    name="deepseek_v31",
    words=(_CALLS, "<｜tool▁sep｜>"),  # noqa: RUF001
    body=NamedCall(before=_CALL, after="<｜tool▁sep｜>", end=_ENDS),  # noqa: RUF001
    mark=_CALLS,
    opening=_CALLS,
    closing="<｜tool▁calls▁end｜>",  # noqa: RUF001
    comma="",
)

DEEPSEEK_V3 = ToolFormat(
    name="deepseek_v3",
    words=(_CALLS, "```json"),
    body=NamedCall(
        before=f"{_CALL}function<｜tool▁sep｜>",  # noqa: RUF001
        after="\n```json\n",
        end=f"\n```{_ENDS}",
    ),
    mark=_CALLS,
    opening=_CALLS,
    closing="<｜tool▁calls▁end｜>",  # noqa: RUF001
    comma="\n",
)
