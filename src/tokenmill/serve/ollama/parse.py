"""A body of Ollama's API becomes the one request.

Calls have no ids in older clients, and results name the function or nothing: each is given to the first call before it
that waits for one.
"""

import json
from collections import deque
from collections.abc import Mapping
from typing import Any

from tokenmill.serve.http.errors import ApiError
from tokenmill.serve.ollama.body import IGNORED, OllamaBody, OllamaChatBody
from tokenmill.serve.ollama.options import take_options
from tokenmill.serve.request.ask import Translated, field_of
from tokenmill.settings.recommended import OLLAMA
from tokenmill.value_reader import brief

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
LEVELS = ("low", "medium", "high", "max")  # of thinking
Json = dict[str, Any]


def translate_chat(body: OllamaChatBody, thinks: bool, num_positions: int) -> Translated:
    """The messages and fields of a ChatBody. thinks: whether the model does. num_positions: see take_options."""
    made, calls = translate_fields(body, thinks, num_positions), _Calls()
    for number, message in enumerate(body.messages or ()):
        made.messages.append(_message(message, f"messages[{number}]", calls))
    if body.tools:
        made.fields["tools"] = [_tool(tool, f"tools[{number}]") for number, tool in enumerate(body.tools)]
    made.open_last()
    return made


def translate_fields(body: OllamaBody, thinks: bool, num_positions: int) -> Translated:
    """All but the messages."""
    made = Translated(protocol=OLLAMA)
    made.fields["stream"] = body.stream
    if body.format is not None and body.format != "":
        made.fields["format"] = body.format
    take_options(body.options or {}, made, num_positions)
    if body.think is not None:
        _take_think(body, made, thinks)
    if body.logprobs:
        made.fields |= {"logprobs": True, "top_logprobs": body.top_logprobs}
    elif body.top_logprobs:
        raise ApiError(400, "top_logprobs needs logprobs: true", "top_logprobs")
    made.take_others(body.model_extra, IGNORED)
    return made


def check_images(images: Any, where: str) -> None:
    """ApiError for any image, since a model that cannot see one would answer all the same."""
    if images:
        raise ApiError(400, f"{where} is not served: this model reads text alone, so leave images out", "images")


def _take_think(body: OllamaBody, made: Translated, thinks: bool) -> None:
    """Whether the model thinks before it answers, and for how long."""
    if isinstance(body.think, str) and body.think not in LEVELS:
        names = ", ".join(f'"{level}"' for level in LEVELS)
        raise ApiError(400, f"think = {brief(body.think)} is not allowed: true, false, {names}", "think")
    if not thinks:
        if body.think:
            raise ApiError(400, f'"{body.model}" does not support thinking', "think")
    elif body.think is True:
        made.variables["enable_thinking"] = True
    else:
        made.effort = body.think or "none"


def _message(given: Json, where: str, calls: "_Calls") -> Json:
    role = ROLES.get(named := field_of(given, "role", str, where).lower())
    if role is None:
        raise ApiError(400, f"{where}.role = {brief(named)} is not allowed: {', '.join(ROLES)}", "messages")
    check_images(given.get("images"), f"{where}.images")
    content = field_of({"content": "", **_given(given)}, "content", str, where)
    if role == "tool":
        return {"role": role, "tool_call_id": calls.answered(given), "content": content}
    message: Json = {"role": role, "content": content}
    if role == "assistant":
        calls.begin()
        if given.get("thinking"):
            message["reasoning_content"] = field_of(given, "thinking", str, where)
        if given.get("tool_calls"):
            message["tool_calls"] = [
                calls.add(call, f"{where}.tool_calls") for call in field_of(given, "tool_calls", list, where)
            ]
    return message


def _given(given: Mapping[str, Any]) -> Json:
    """An object without what is null."""
    return {name: value for name, value in given.items() if value is not None}


def _tool(given: Json, where: str) -> Json:
    """A function; its type may be left out, as Ollama's client does."""
    field_of(given, "function", dict, where)
    return {**given, "type": given.get("type") or "function"}


class _Calls:
    """The calls of a conversation, and which of them have no result yet. Each look-up takes a moment, however many."""

    def __init__(self) -> None:
        self._count = 0
        self._known = set[str]()
        self._waiting: dict[str, None] = {}  # ids of the conversation, in their order
        self._by_id: dict[str, str] = {}  # by the ids that the client gives
        self._by_name: dict[str, deque[str]] = {}

    def begin(self) -> None:
        """The assistant speaks again: calls without a result stay so."""
        self._waiting, self._by_id, self._by_name = {}, {}, {}

    def add(self, given: Any, where: str) -> Json:
        """A call of the assistant."""
        function = field_of(given, "function", dict, where)
        name = field_of(function, "name", str, where)
        arguments = field_of({"arguments": {}, **_given(function)}, "arguments", (dict, str), where)
        number, self._count = self._new_id(given.get("id")), self._count + 1
        self._waiting[number] = None
        self._by_name.setdefault(name, deque()).append(number)
        if isinstance(own := given.get("id"), str):
            self._by_id[own] = number
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        return {"id": number, "type": "function", "function": {"name": name, "arguments": text}}

    def _new_id(self, own: Any) -> str:
        """The client's own id, where it is another one than all before it."""
        made = own if isinstance(own, str) and own else f"call_{self._count}"
        while made in self._known:
            made += "_"
        self._known.add(made)
        return made

    def answered(self, given: Json) -> str | None:
        """The id of the call that a message is the result of; None if none waits for one."""
        own, name = given.get("tool_call_id"), given.get("tool_name") or given.get("name")
        number = self._by_id.get(own) if isinstance(own, str) else None
        if number not in self._waiting:
            number = self._first_of(name) if isinstance(name, str) else None
        if number is None:
            number = next(iter(self._waiting), None)
        if number is not None:
            del self._waiting[number]
        return number

    def _first_of(self, name: str) -> str | None:
        """The first call of a function that waits."""
        numbers = self._by_name.get(name, deque())
        while numbers and numbers[0] not in self._waiting:
            numbers.popleft()
        return numbers[0] if numbers else None
