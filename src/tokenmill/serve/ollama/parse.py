"""Bodies of Ollama's routes that generate become Asks. Types are strict for what is read; what is not known is named in
`warnings`.

Calls have no ids in older clients, and results name the function or nothing: each is given to the first call before it
that waits for one.
"""

import json
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from tokenmill.serve.http.errors import ApiError, Json
from tokenmill.serve.ollama.names import check_served, spelled_options, take_options, unloads
from tokenmill.serve.ollama.writer import Own, loaded
from tokenmill.serve.request.ask import Ask, field_of
from tokenmill.serve.request.constraints import Schema
from tokenmill.serve.request.fields import Body, Int64, ListOf, NumTop
from tokenmill.serve.request.prompt import Model
from tokenmill.settings.recommended import OLLAMA
from tokenmill.text.infill import Infill
from tokenmill.value_reader import brief

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
LEVELS = ("low", "medium", "high", "max")  # of thinking
AS_FITS = -1
PLAIN = "/api/generate takes a prompt as text"

IGNORED = {
    "truncate": "a prompt that is too long is refused, and nothing is ever cut",
    "shift": "no text is ever dropped from a context",
}
"""Fields that change nothing of a text here, with the reason."""


class OllamaBody(Body):
    """The fields of both routes that generate. Names that are like others are ignored as all unknown ones are."""

    model: str = Field(min_length=1)
    stream: bool = True
    format: Schema | None = None
    options: dict[str, Any] | None = None
    keep_alive: float | str | None = None
    think: bool | str | None = None
    logprobs: bool = False
    top_logprobs: NumTop | None = None

    @classmethod
    def spelled(cls, given: Mapping[str, Any]) -> dict[str, str]:
        options = given.get("options")
        return (spelled_options(options) if isinstance(options, dict) else {}) | super().spelled(given)


class OllamaChatBody(OllamaBody):
    """POST /api/chat. Without messages it asks whether the model is loaded."""

    messages: ListOf[dict[str, Any]] | None = None
    tools: ListOf[dict[str, Any]] | None = None


class OllamaGenerateBody(OllamaBody):
    """POST /api/generate. Without a prompt it asks whether the model is loaded."""

    prompt: str = ""
    suffix: str = ""
    system: str = ""
    template: str = ""
    context: ListOf[Int64] | None = None
    raw: bool = False
    images: ListOf[str] | None = None


def parse_chat(body: OllamaChatBody, model: Model) -> Ask | Json:
    """Read a conversation; without messages, the whole answer, which says that the model is loaded."""
    arrived_s, wants_unload = time.perf_counter(), _checked(body, model)
    if not body.messages:
        return loaded(body.model, {"message": {"role": "assistant", "content": ""}}, wants_unload, model.may_go)
    _check_writes(body, model, "chat")
    if not model.has_template:
        raise ApiError(400, f'"{body.model}" does not support chat: it has no chat template. {PLAIN}', "messages")
    ask, calls = Ask(stream=body.stream, defaults=OLLAMA), _Calls()
    named = _fields(body, ask, model)
    for number, message in enumerate(body.messages):
        ask.messages.append(_message(message, f"messages[{number}]", calls))
    if body.tools:
        named["tools"] = [_tool(tool, f"tools[{number}]") for number, tool in enumerate(body.tools)]
    _take(named | ask.open_last(), body, ask, model)
    ask.own = Own(body.model, arrived_s, may_call=bool(body.tools))
    return ask


def unloaded(route: Any, given: Any) -> Json | None:
    """Write the answer to a request that wants a model unloaded which is not loaded; None for any other request."""
    name, empty = given.get("model"), Json()
    if route.parse is parse_chat and not given.get("messages"):
        empty = {"message": {"role": "assistant", "content": ""}}
    elif route.parse is parse_generate and not given.get("prompt"):
        empty = {"response": ""}
    return loaded(str(name), empty, True, True) if empty else None


def parse_generate(body: OllamaGenerateBody, model: Model) -> Ask | Json:
    """Read a prompt: a conversation of one turn, or a plain prompt without a template."""
    arrived_s, wants_unload = time.perf_counter(), _checked(body, model)
    if not body.prompt:
        return loaded(body.model, {"response": ""}, wants_unload, model.may_go)
    _check_writes(body, model, "generate")
    _check_generate(body, model)
    ask = Ask(stream=body.stream, defaults=OLLAMA)
    named = _fields(body, ask, model)
    ask.after = list(body.context or ())
    if body.suffix:
        ask.infill = Infill(body.prompt, body.suffix)
    elif body.raw or not model.has_template:
        ask.prompts = [body.prompt]
    else:
        if body.system and ask.after:
            ask.warn("system is not said again: the context has what was said to the model at its beginning")
        elif body.system:
            ask.messages.append({"role": "system", "content": body.system})
        ask.messages.append({"role": "user", "content": body.prompt})
    _take(named, body, ask, model)
    ask.own = Own(body.model, arrived_s, has_context=not body.raw)
    return ask


def _checked(body: OllamaBody, model: Model) -> bool:
    """Check the model's name and keep_alive; return whether the model is to be unloaded."""
    check_served(body.model, model)
    return unloads(body.keep_alive)


def _check_writes(body: OllamaBody, model: Model, what: str) -> None:
    """Raise ApiError for a model that writes no text, in Ollama's words."""
    if not model.loaded.model_config.has_head:
        message = f'"{body.model}" does not support {what}: it gives vectors of texts, as /api/embed does'
        raise ApiError(400, message, "model", "not_supported")


def _fields(body: OllamaBody, ask: Ask, model: Model) -> Json:
    """Read the settings, by their names over HTTP."""
    named = Json() if body.format is None or body.format == "" else {"format": body.format}
    return named | take_options(body.options or {}, ask, model.num_positions)


def _take(named: Json, body: OllamaBody, ask: Ask, model: Model) -> None:
    """Take the settings, and what both routes have beside."""
    think = _think(body, ask, model)
    if body.top_logprobs and not body.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs: true", "top_logprobs")
    ask.take_fields(named, body.model_extra, IGNORED)
    ask.sampling["logprobs"] = (body.top_logprobs or 0) if body.logprobs else None
    ask.take_effort(think)
    model.check_known(ask.unknown)


def _check_generate(body: OllamaGenerateBody, model: Model) -> None:
    """Raise ApiError for what is not served, and for fields that contradict each other."""
    _check_images(body.images, "images")
    if body.raw and (body.template or body.system or body.context):
        raise ApiError(400, "raw mode does not support template, system, or context", "raw")
    if body.suffix and not model.fills_in:
        message = f'"{body.model}" does not support insert: its vocabulary has no marks for it'
        raise ApiError(400, message, "suffix", "unsupported_parameter")
    if body.suffix and (body.system or body.context):
        raise ApiError(
            400, "system and context are of texts that are continued, and a suffix asks for one between", "suffix"
        )
    if body.template:
        message = "template is not served: the model's own is used, or a Jinja template by `tokenmill serve "
        raise ApiError(400, f"{message}--chat-template FILE`", "template", "unsupported_parameter")
    if body.system and not model.has_template:
        raise ApiError(400, "system needs a chat template, and this model has none: put it into the prompt", "system")


def _check_images(images: Any, where: str) -> None:
    """Raise ApiError for any image, since a model that cannot see one would answer all the same."""
    if images:
        raise ApiError(400, f"{where} is not served: this model reads text alone, so leave images out", "images")


def _think(body: OllamaBody, ask: Ask, model: Model) -> str | None:
    """Read whether the model thinks before it answers; return the effort of it, if one is asked for."""
    if body.think is None:
        return None
    if isinstance(body.think, str) and body.think not in LEVELS:
        names = ", ".join(f'"{level}"' for level in LEVELS)
        raise ApiError(400, f"think = {brief(body.think)} is not allowed: true, false, {names}", "think")
    if not model.thinks:
        if body.think:
            raise ApiError(400, f'"{body.model}" does not support thinking', "think")
        return None
    if body.think is True:
        ask.hints["enable_thinking"] = True
        return None
    return body.think or "none"


def _message(given: Json, where: str, calls: "_Calls") -> Json:
    role = ROLES.get(named := field_of(given, "role", str, where).lower())
    if role is None:
        raise ApiError(400, f"{where}.role = {brief(named)} is not allowed: {', '.join(ROLES)}", "messages")
    _check_images(given.get("images"), f"{where}.images")
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
    """Return an object without null values."""
    return {name: value for name, value in given.items() if value is not None}


def _tool(given: Json, where: str) -> Json:
    """Read a function; its type may be left out, as Ollama's client does."""
    field_of(given, "function", dict, where)
    return {**given, "type": given.get("type") or "function"}


class _Calls:
    """The calls of a conversation, and which of them have no result yet. A look-up takes a moment, however many."""

    def __init__(self) -> None:
        self._count = 0
        self._known = set[str]()
        self._waiting: dict[str, None] = {}  # ids of the conversation, in their order
        self._by_id: dict[str, str] = {}  # by the ids that the client gives
        self._by_name: dict[str, deque[str]] = {}

    def begin(self) -> None:
        """Note that the assistant speaks again: calls without a result stay so."""
        self._waiting, self._by_id, self._by_name = {}, {}, {}

    def add(self, given: Any, where: str) -> Json:
        """Read a call of the assistant."""
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
        """Return the client's own id, where no call before has the same."""
        made = own if isinstance(own, str) and own else f"call_{self._count}"
        while made in self._known:
            made += "_"
        self._known.add(made)
        return made

    def answered(self, given: Json) -> str | None:
        """Return the id of the call whose result a message is; None if no call waits for one."""
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
        """Return the first call of a function that waits."""
        numbers = self._by_name.get(name, deque())
        while numbers and numbers[0] not in self._waiting:
            numbers.popleft()
        return numbers[0] if numbers else None
