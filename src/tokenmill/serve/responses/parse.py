"""A body of /v1/responses becomes an Ask. Types are strict for what is read; all else is accepted.

Its input is a list of items. What the model wrote in one turn, thinking, text and calls of tools, is several of them
and becomes one message again, so that the chat template shows it as it was written.

Its tools are functions, functions of a namespace, and custom tools, which take a text. To the model all of them are
functions; a custom tool is one with a single argument, `input`.
"""

import json
from collections.abc import Callable
from collections.abc import Sequence as List
from dataclasses import dataclass
from typing import Any, ClassVar

import pydantic_core

from tokenmill.serve.http.errors import ApiError, Json
from tokenmill.serve.request.ask import Ask, field_of
from tokenmill.serve.request.fields import Body, Int64, ListOf
from tokenmill.serve.request.prompt import Model
from tokenmill.value_reader import brief

IGNORED = {
    "client_metadata": "about the user",
    "include": "what can be added is there, and a warning names the rest",
    "prompt_cache_key": "the cache finds what begins alike by itself",
    "prompt_cache_retention": "the cache keeps what it has room for",
    "prompt_cache_options": "the cache keeps what it has room for",
    "safety_identifier": "about the user",
    "service_tier": "there is one",
    "user": "about the user",
    "stream_options": "no event is padded",
}
"""Fields that change nothing of a text here, with the reason."""
INCLUDED = ("reasoning.encrypted_content",)
"""Values of `include` without a warning: Codex asks for it, and thinking is given in the clear."""
STORED = "this server keeps no responses: send the whole conversation as input"
TEXTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal", "summary_text": "text"}
TEXTS |= {"reasoning_text": "text"}
SEPARATOR = "__"  # between the names of a namespace and of a function in it
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
ECHOED = "instructions max_output_tokens metadata parallel_tool_calls reasoning temperature text tool_choice top_p"


class ResponsesBody(Body):
    """POST /v1/responses."""

    UNSERVED: ClassVar[dict[str, tuple[Any, ...]]] = {
        "previous_response_id": (),
        "conversation": (),
        "background": (False,),
        "prompt": (),
    }

    input: str | ListOf[dict[str, Any]] = ""
    instructions: str | ListOf[dict[str, Any]] | None = None
    max_output_tokens: Int64 | None = None
    max_tool_calls: Int64 | None = None
    metadata: dict[str, str] | None = None
    parallel_tool_calls: bool = True
    reasoning: dict[str, Any] | None = None
    store: bool = True
    stream: bool = False
    return_progress: bool = False
    temperature: float | None = None
    text: dict[str, Any] | None = None
    tool_choice: str | dict[str, Any] = "auto"
    tools: ListOf[dict[str, Any]] | None = None
    top_logprobs: Int64 | None = None
    top_p: float | None = None
    truncation: str = "disabled"

    def check(self) -> None:
        """Refuse what is not served; names that are like others are ignored as all unknown ones are."""
        for name, nothing in self.UNSERVED.items():
            if (given := (self.model_extra or {}).get(name)) is not None and given not in nothing:
                why = "" if name == "background" else f": {STORED}"
                raise ApiError(400, f"{name} is not supported{why}", name, "unsupported_parameter")
        if self.truncation not in ("disabled", "auto"):
            raise ApiError(400, "truncation: a valid value is disabled or auto", "truncation")


def parse_responses(body: ResponsesBody, model: Model) -> Ask:
    """Read a conversation. Ask.own: what the answer repeats, and how it names the functions."""
    model.check_name(body.model)
    body.check()
    ask = Ask(stream=body.stream, wants_progress=body.return_progress)
    if isinstance(body.instructions, str) and body.instructions:
        ask.messages.append({"role": "system", "content": body.instructions})
    elif isinstance(body.instructions, list):  # as a response repeats the instructions of a prompt
        _Items(ask, "instructions").read(body.instructions)
    given = body.input or ""  # a probe of Codex asks nothing
    _Items(ask, "input").read([{"role": "user", "content": given}] if isinstance(given, str) else given)
    if body.truncation == "auto":
        ask.warn("truncation = 'auto' is not supported: nothing is ever cut, and a prompt that is too long is refused")
    named = {"max_tokens": body.max_output_tokens, "temperature": body.temperature, "top_p": body.top_p}
    without_effect = {"max_tool_calls": body.max_tool_calls, "top_logprobs": body.top_logprobs}
    without_effect["text.verbosity"] = (body.text or {}).get("verbosity")
    for name, value in without_effect.items():
        if value is not None:
            ask.warn(f"{name} changes nothing here")
    included = (body.model_extra or {}).get("include")
    for name in included if isinstance(included, list) else ():
        if name not in INCLUDED:
            ask.warn(f"include = {brief(name)} adds nothing here")
    names, about_tools = read_tools(body.tools or (), body.tool_choice, body.parallel_tool_calls, ask)
    ask.take_fields(named | about_tools | _form(body), body.model_extra, (*IGNORED, *ResponsesBody.UNSERVED))
    ask.take_effort((body.reasoning or {}).get("effort"))
    model.check_known(ask.unknown)
    ask.own = _echoed(body), names
    return ask


def _form(body: ResponsesBody) -> Json:
    if (form := (body.text or {}).get("format")) is None:
        return {}
    kind = field_of(form, "type", str, "text.format")
    inner = {name: each for name, each in form.items() if name != "type"}
    return {"response_format": {"type": kind} | ({"json_schema": inner} if kind == "json_schema" else {})}


def _echoed(body: ResponsesBody) -> dict[str, Any]:
    """Return the fields of a request that its answer repeats. Nothing is stored, whatever was asked.

    A number such as 1e999, which to a float is infinite, is null in it.
    """
    given = {**{name: getattr(body, name) for name in ECHOED.split()}, "truncation": body.truncation}
    given["tools"] = body.tools or []
    written = pydantic_core.from_json(pydantic_core.to_json(given, inf_nan_mode="null"))
    return {**written, "previous_response_id": None, "store": False}


def _text(content: Any, where: str, ask: Ask) -> str:
    """Read the text of a content, which is a text or a list of parts."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise ApiError(400, f"{where}: a text or a list of parts is needed, not {brief(content)}", "input")
    found = []
    for part in content:
        kind = field_of(part, "type", str, where)
        is_text = kind in TEXTS
        found.append(
            field_of(part, TEXTS[kind], str, where) if is_text else ask.placeholder(f"a part of type {kind[:40]!r}")
        )
    return "\n".join(found)


class _Items:
    """The items of a field, which are read one after the other. _turn: the message of the model that they add to."""

    def __init__(self, ask: Ask, field: str) -> None:
        self._ask, self._field = ask, field
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
                self._ask.warn(f"an item of type {brief(given)} is passed over")
        self._end_turn()

    def _message(self, item: Json, where: str) -> None:
        given = field_of(item, "role", str, where)
        if (role := ROLES.get(given)) is None:
            raise ApiError(400, f"{where}.role = {brief(given)} is not allowed: {', '.join(ROLES)}", self._field)
        content = _text(item.get("content"), where, self._ask)
        if role != "assistant":
            self._end_turn()
            self._ask.messages.append({"role": role, "content": content})
            return
        if self._turn is not None and "content" in self._turn and "tool_calls" not in self._turn:
            self._end_turn()
        turn = self._open_turn()
        turn["content"] = "\n".join([turn["content"], content]) if turn.get("content") else content

    def _reasoning(self, item: Json, where: str) -> None:
        """Read thinking, which begins a turn. Only its own text counts; a summary where there is none."""
        text = _text(item.get("content") or item.get("summary"), where, self._ask)
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
        call, text = field_of(item, "call_id", str, where), _text(item.get("output"), where, self._ask)
        self._ask.messages.append({"role": "tool", "tool_call_id": call, "content": text})

    def _open_turn(self) -> Json:
        if self._turn is None:
            self._turn = {"role": "assistant"}
        return self._turn

    def _end_turn(self) -> None:
        """Add the model's message; thinking alone, of an answer that broke off, is no message."""
        if self._turn is not None and set(self._turn) - {"role", "reasoning_content"}:
            self._ask.messages.append({"content": "", **self._turn})
        self._turn = None


@dataclass(frozen=True)
class Named:
    """The name by which an answer calls a function."""

    name: str
    space: str | None = None
    is_custom: bool = False


def flat_name(name: str, space: str | None) -> str:
    """Return the one name of a function in a namespace."""
    return name if space is None else f"{space}{SEPARATOR}{name}"


def read_tools(
    given: List[Json], choice: str | Json, is_parallel: bool, ask: Ask
) -> tuple[dict[str, Named], dict[str, Any]]:
    """Return how answers name the functions, and the tools and the choice among them as fields of an Ask."""
    names: dict[str, Named] = {}
    tools: list[Json] = []
    for number, each in enumerate(given):
        _Tool(f"tools[{number}]", ask, names, tools).take(each)
    fields: Json = {"tools": tools, "parallel_tool_calls": is_parallel} if tools else {}
    return names, fields | ({"tool_choice": _choice(choice)} if tools or choice != "auto" else {})


@dataclass
class _Tool:
    """An entry of the tools, which is added to both names and tools."""

    where: str
    ask: Ask
    names: dict[str, Named]
    tools: list[Json]

    def take(self, given: Json, space: str | None = None) -> None:
        """Take an entry; what a server would run is left out."""
        kind = field_of(given, "type", str, self.where)
        if kind in ("function", "custom"):
            named = Named(field_of(given, "name", str, self.where), space, kind == "custom")
            keys = ("description", "format") if named.is_custom else ("description", "parameters", "strict")
            self._add(named, kind, {key: given.get(key) for key in keys})
        elif kind == "namespace" and space is None:
            inner = field_of(given, "name", str, self.where)
            for each in field_of(given, "tools", list, self.where):
                self.take(each, inner)
        else:
            self.ask.warn(f"a tool of type {brief(kind)} is left out, since nothing here runs it")

    def _add(self, named: Named, kind: str, told: Json) -> None:
        flat = flat_name(named.name, named.space)
        if flat in self.names:
            raise ApiError(400, f"{self.where}: a second tool {flat!r}: give each a name of its own", "tools")
        self.names[flat] = named
        self.tools.append({"type": kind, kind: told | {"name": flat}})


def _choice(given: str | Json) -> str | Json:
    if isinstance(given, str):
        return given
    if given.get("type") != "allowed_tools":
        return _named(given)
    tools = [_named(each) for each in field_of(given, "tools", list, "tool_choice")]
    return {"type": "allowed_tools", "allowed_tools": {"mode": given.get("mode"), "tools": tools}}


def _named(given: Any) -> Json:
    kind = field_of(given, "type", str, "tool_choice")
    if kind not in ("function", "custom"):
        raise ApiError(
            400, f"tool_choice.type = {brief(kind)} is not allowed: function, custom or allowed_tools", "tool_choice"
        )
    name, space = field_of(given, "name", str, "tool_choice"), given.get("namespace")
    flat = flat_name(name, space if isinstance(space, str) else None)
    return {"type": "function", "function": {"name": flat}}
