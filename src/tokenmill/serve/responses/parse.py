"""A body of /v1/responses becomes the one request.

Its input is a list of items. What the model wrote in one turn, thinking, text and calls of tools, is several of them
and becomes one message again, so that the chat template shows it as it was written.
"""

import json
from collections.abc import Callable
from typing import Any

from tokenmill.serve.http.errors import ApiError
from tokenmill.serve.request.ask import Translated, field_of
from tokenmill.serve.responses.body import IGNORED, INCLUDED, ResponsesBody
from tokenmill.serve.responses.tools import Named, flat_name, take_tools
from tokenmill.value_reader import brief

TEXTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal", "summary_text": "text"}
TEXTS |= {"reasoning_text": "text"}
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
Json = dict[str, Any]


def translate(body: ResponsesBody) -> tuple[Translated, dict[str, Named]]:
    """The messages and fields of a ChatBody, and how the answer names the functions."""
    made = Translated()
    if isinstance(body.instructions, str) and body.instructions:
        made.messages.append({"role": "system", "content": body.instructions})
    elif isinstance(body.instructions, list):  # as a response repeats those of a prompt
        _Items(made, "instructions").read(body.instructions)
    asked = [
        {"role": "user", "content": body.input if isinstance(body.input, str) else ""}
    ]  # a probe of Codex asks nothing
    given = asked if isinstance(body.input, str) or not body.input else body.input
    _Items(made, "input").read(given)
    if body.truncation == "auto":
        made.warn("truncation = 'auto' is not supported: nothing is ever cut, and a prompt that is too long is refused")
    named = {"max_tokens": body.max_output_tokens, "temperature": body.temperature, "top_p": body.top_p}
    made.fields |= {name: value for name, value in named.items() if value is not None} | {"stream": body.stream}
    effort = (body.reasoning or {}).get("effort")
    made.effort = effort if isinstance(effort, str) else None
    without_effect = {"max_tool_calls": body.max_tool_calls, "top_logprobs": body.top_logprobs}
    without_effect["text.verbosity"] = (body.text or {}).get("verbosity")
    for name, value in without_effect.items():
        if value is not None:
            made.warn(f"{name} changes nothing here")
    included = (body.model_extra or {}).get("include")
    for name in included if isinstance(included, list) else ():
        if name not in INCLUDED:
            made.warn(f"include = {brief(name)} adds nothing here")
    names = take_tools(body, made)
    made.take_others(body.model_extra, IGNORED | dict.fromkeys(ResponsesBody.UNSERVED, ""))
    return made, names


def _text(content: Any, where: str, made: Translated) -> str:
    """The text of a content, which is a text or a list of parts."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise ApiError(400, f"{where}: a text or a list of parts is needed, not {brief(content)}", "input")
    found = []
    for part in content:
        kind = field_of(part, "type", str, where)
        is_text = kind in TEXTS
        found.append(
            field_of(part, TEXTS[kind], str, where) if is_text else made.placeholder(f"a part of type {kind[:40]!r}")
        )
    return "\n".join(found)


class _Items:
    """Items of a field that are read one after the other. _turn: the message of the model that they add to."""

    def __init__(self, made: Translated, field: str) -> None:
        self._made, self._field = made, field
        self._turn: Json | None = None

    def read(self, items: list[Json]) -> None:
        """Add the messages that the items make."""
        for number, item in enumerate(items):
            where = f"{self._field}[{number}]"
            kind = given if isinstance(given := item.get("type", "message"), str) else ""
            take: Callable[[Json, str], None] | None = {
                "message": self._message,
                "reasoning": self._reasoning,
                "function_call": self._function_call,
                "custom_tool_call": self._custom_call,
                "function_call_output": self._output,
                "custom_tool_call_output": self._output,
            }.get(kind)
            if take is not None:
                take(item, where)
            elif kind in TEXTS:
                self._message({"role": "system", "content": [item]}, where)
            elif kind == "item_reference":
                raise ApiError(400, f"{where}: this server keeps no items: send what it refers to", self._field)
            else:
                self._made.warn(f"an item of type {brief(given)} is passed over")
        self._end_turn()

    def _message(self, item: Json, where: str) -> None:
        given = field_of(item, "role", str, where)
        if (role := ROLES.get(given)) is None:
            raise ApiError(400, f"{where}.role = {brief(given)} is not allowed: {', '.join(ROLES)}", self._field)
        content = _text(item.get("content"), where, self._made)
        if role != "assistant":
            self._end_turn()
            self._made.messages.append({"role": role, "content": content})
            return
        if self._turn is not None and "content" in self._turn and "tool_calls" not in self._turn:
            self._end_turn()
        turn = self._open_turn()
        turn["content"] = "\n".join([turn["content"], content]) if turn.get("content") else content

    def _reasoning(self, item: Json, where: str) -> None:
        """Thinking begins a turn. Only its own text counts; a summary where there is none."""
        text = _text(item.get("content") or item.get("summary"), where, self._made)
        if self._turn is not None and set(self._turn) - {"role", "reasoning_content"}:
            self._end_turn()
        turn = self._open_turn()
        if text:
            turn["reasoning_content"] = "\n".join(filter(None, [turn.get("reasoning_content"), text]))

    def _function_call(self, item: Json, where: str) -> None:
        self._call(item, where, field_of(item, "arguments", str, where))

    def _custom_call(self, item: Json, where: str) -> None:
        given = field_of(item, "input", str, where)
        self._call(item, where, json.dumps({"input": given}, ensure_ascii=False))

    def _call(self, item: Json, where: str, arguments: str) -> None:
        space = item.get("namespace")
        name = flat_name(field_of(item, "name", str, where), space if isinstance(space, str) else None)
        function = {"name": name, "arguments": arguments}
        call = {"id": field_of(item, "call_id", str, where), "type": "function", "function": function}
        self._open_turn().setdefault("tool_calls", []).append(call)

    def _output(self, item: Json, where: str) -> None:
        self._end_turn()
        call, text = field_of(item, "call_id", str, where), _text(item.get("output"), where, self._made)
        self._made.messages.append({"role": "tool", "tool_call_id": call, "content": text})

    def _open_turn(self) -> Json:
        if self._turn is None:
            self._turn = {"role": "assistant"}
        return self._turn

    def _end_turn(self) -> None:
        """Add the model's message; thinking alone, of an answer that broke off, is none."""
        if self._turn is not None and set(self._turn) - {"role", "reasoning_content"}:
            self._made.messages.append({"content": "", **self._turn})
        self._turn = None
