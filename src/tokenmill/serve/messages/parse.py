"""A body of /v1/messages becomes the one request.

The first system text of Claude Code holds a line about billing that changes with every request. It is left out, since
no prompt would begin as the one before it.
"""

import json
from collections.abc import Callable
from typing import Any

from tokenmill.serve.http.errors import ApiError
from tokenmill.serve.messages.body import IGNORED, CountBody, MessagesBody
from tokenmill.serve.messages.tools import take_tools
from tokenmill.serve.request.ask import Translated, field_of
from tokenmill.value_reader import brief

BILLING = "x-anthropic-billing-header:"
KINDS = ("enabled", "adaptive", "between_tools", "disabled")  # of thinking; where it stands is up to the model
Json = dict[str, Any]


def translate(body: CountBody) -> Translated:
    """The messages and fields of a ChatBody."""
    made = Translated()
    if system := _system(body.system, made):
        made.messages.append({"role": "system", "content": system})
    for number, message in enumerate(body.messages):
        made.messages += _Message(message, f"messages[{number}]", made).translated()
    made.open_last()
    _thinking(body, made)
    take_tools(body, made)
    if isinstance(body, MessagesBody):
        named = {"max_tokens": body.max_tokens, "stop": body.stop_sequences, "stream": body.stream}
        named |= {name: getattr(body, name) for name in ("temperature", "top_p", "top_k")}
        made.fields |= {name: value for name, value in named.items() if value is not None}
    made.take_others(body.model_extra, IGNORED)
    return made


def _system(given: str | list[Json] | None, made: Translated) -> str:
    """The system text, without what changes with every request."""
    blocks = [given] if isinstance(given, str) else [_text(each, "system", made) for each in given or ()]
    return "\n".join(text for each in blocks if (text := _without_billing(each)))


def _without_billing(text: str) -> str:
    return text.partition("\n")[2].lstrip("\n") if text.startswith(BILLING) else text


def _text(block: Any, where: str, made: Translated) -> str:
    """The text of a block that is no call; a note in the place of what is no text."""
    kind = field_of(block, "type", str, where)
    if kind == "text":
        return str(field_of(block, "text", str, where))
    if kind == "document" and isinstance(source := block.get("source"), dict) and source.get("type") == "text":
        return str(field_of(source, "data", str, f"{where}.source"))
    return made.placeholder(f"a block of type {kind[:40]!r}")


class _Message:
    """One message, which becomes one or several: each result of a tool is one of its own."""

    def __init__(self, given: Json, where: str, made: Translated) -> None:
        self._given, self._where, self._made = given, where, made
        self._found: list[Json] = []

    def translated(self) -> list[Json]:
        """The messages."""
        role, content = field_of(self._given, "role", str, self._where), self._given.get("content")
        make: Callable[[list[Json]], None] | None = {
            "user": self._of_user,
            "assistant": self._of_assistant,
            "system": self._of_system,
        }.get(role)
        if make is None:
            raise ApiError(
                400, f"{self._where}.role = {brief(role)} is not allowed: user, assistant or system", "messages"
            )
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        if not isinstance(content, list):
            raise ApiError(400, f"{self._where}.content: a text or a list of blocks is needed", "messages")
        make(content)
        return self._found

    def _of_user(self, blocks: list[Json]) -> None:
        texts: list[str] = []
        for block in blocks:
            if field_of(block, "type", str, self._where) == "tool_result":
                self._add_user(texts)
                texts = []
                call = field_of(block, "tool_use_id", str, self._where)
                self._found.append({"role": "tool", "tool_call_id": call, "content": self._result(block)})
            else:
                texts.append(_text(block, self._where, self._made))
        self._add_user(texts, needs_one=not self._found)

    def _add_user(self, texts: list[str], needs_one: bool = False) -> None:
        if texts or needs_one:
            self._found.append({"role": "user", "content": "\n".join(texts)})

    def _result(self, block: Json) -> str:
        content = block.get("content")
        if content is None or isinstance(content, str):
            return content or ""
        if not isinstance(content, list):
            raise ApiError(
                400, f"{self._where}: the content of a tool_result is a text or a list of blocks", "messages"
            )
        return "\n".join(_text(each, self._where, self._made) for each in content)

    def _of_assistant(self, blocks: list[Json]) -> None:
        texts, thoughts, calls = [], [], []
        for block in blocks:
            kind = field_of(block, "type", str, self._where)
            if kind == "thinking":
                thoughts.append(field_of(block, "thinking", str, self._where))
            elif kind == "tool_use":
                calls.append(self._call(block))
            elif kind == "text":
                texts.append(field_of(block, "text", str, self._where))
            elif kind != "redacted_thinking":
                self._made.warn(f"a block of type {kind[:40]!r} is left out")
        message: Json = {"role": "assistant", "content": "\n".join(texts)}
        message |= {"reasoning_content": "\n".join(thoughts)} if thoughts else {}
        self._found.append(message | ({"tool_calls": calls} if calls else {}))

    def _call(self, block: Json) -> Json:
        name, arguments = field_of(block, "name", str, self._where), field_of(block, "input", dict, self._where)
        function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
        return {"id": field_of(block, "id", str, self._where), "type": "function", "function": function}

    def _of_system(self, blocks: list[Json]) -> None:
        if text := _system(blocks, self._made):
            self._found.append({"role": "system", "content": text})


def _thinking(body: CountBody, made: Translated) -> None:
    """Whether the model thinks before it answers, and for how long. Without the field it does not."""
    given = body.thinking or {"type": "disabled"}
    kind = field_of(given, "type", str, "thinking")
    if kind not in KINDS:
        made.warn(f"thinking.type = {brief(kind)} is not known: the model thinks as with 'adaptive'")
    made.variables["enable_thinking"] = kind != "disabled"
    if kind == "enabled":
        made.thinking_budget = field_of(given, "budget_tokens", int, "thinking")
        if made.thinking_budget < 1:
            raise ApiError(
                400, f"thinking.budget_tokens = {made.thinking_budget} is not allowed: at least 1", "thinking"
            )
    effort = (body.output_config or {}).get("effort")
    if kind != "disabled" and isinstance(effort, str):
        made.effort = effort
