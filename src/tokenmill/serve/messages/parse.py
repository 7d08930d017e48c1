"""Bodies of /v1/messages become Asks. Types are strict for what is read; all else is accepted.

The first system text of Claude Code holds a line about billing that changes with every request. It is left out, since
no prompt would begin as the one before it.
"""

import json
from collections.abc import Callable
from typing import Any

from pydantic import Field

from tokenmill.serve.http.errors import ApiError, Json
from tokenmill.serve.request.ask import Ask, field_of
from tokenmill.serve.request.fields import Body, Int64, ListOf
from tokenmill.serve.request.prompt import Model
from tokenmill.value_reader import brief

FOREIGN = "claude-"  # names of models, which Anthropic's clients send whatever is served
BILLING = "x-anthropic-billing-header:"
KINDS = ("enabled", "adaptive", "between_tools", "disabled")  # of thinking; where it stands is up to the model
MODES = {"auto": "auto", "any": "required", "none": "none"}

IGNORED = {
    "metadata": "about the user",
    "cache_control": "the cache keeps what it has room for",
    "service_tier": "there is one",
    "speed": "there is one",
    "inference_geo": "there is one place",
    "user_profile_id": "about the user",
    "workspace_id": "about the user",
    "betas": "versions of the protocol",
    "diagnostics": "about the user",
    "context_management": "the conversation is computed as it comes",
}
"""Fields that change nothing of a text here, with the reason."""
NO_THREADS = "thread_unsupported_request"  # by which Anthropic's client goes on without one


class CountBody(Body):
    """POST /v1/messages/count_tokens."""

    messages: ListOf[dict[str, Any]] = Field(min_length=1)
    system: str | ListOf[dict[str, Any]] | None = None
    tools: ListOf[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    output_format: dict[str, Any] | None = None

    def check(self) -> None:
        """Check what all bodies need, but for names that are like others: all unknown ones are ignored.

        A thread is refused at its first message, since those after it come without what was said before.
        """
        if (self.model_extra or {}).get("thread") is not None:
            message = "thread is not supported: this server keeps no conversations: send the whole one each time"
            raise ApiError(400, message, "thread", NO_THREADS)


class MessagesBody(CountBody):
    """POST /v1/messages."""

    max_tokens: Int64 = Field(ge=1)
    stop_sequences: ListOf[str] | None = None
    stream: bool = False
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None


def parse_messages(body: CountBody, model: Model) -> Ask:
    """Read a conversation: one to be answered, or to be counted."""
    if not (body.model or "").startswith(FOREIGN):
        model.check_name(body.model)
    body.check()
    ask = Ask()
    if system := _system(body.system, ask):
        ask.messages.append({"role": "system", "content": system})
    for number, message in enumerate(body.messages):
        ask.messages += _Message(message, f"messages[{number}]", ask).translated()
    named = ask.open_last() | _tool_fields(body, ask)
    if isinstance(body, MessagesBody):
        named |= {"max_tokens": body.max_tokens, "stop": body.stop_sequences}
        named |= {name: getattr(body, name) for name in ("temperature", "top_p", "top_k")}
        ask.stream = body.stream
    ask.take_fields(named, body.model_extra, IGNORED)
    _take_thinking(body, ask)
    model.check_known(ask.unknown)
    return ask


def _system(given: str | list[Json] | None, ask: Ask) -> str:
    """Read the system text, without what changes with every request."""
    blocks = [given] if isinstance(given, str) else [_text(each, "system", ask) for each in given or ()]
    texts = (each.partition("\n")[2].lstrip("\n") if each.startswith(BILLING) else each for each in blocks)
    return "\n".join(filter(None, texts))


def _text(block: Any, where: str, ask: Ask) -> str:
    """Read the text of a block that is no call; in the place of anything else, make a note."""
    kind = field_of(block, "type", str, where)
    if kind == "text":
        return str(field_of(block, "text", str, where))
    if kind == "document" and isinstance(source := block.get("source"), dict) and source.get("type") == "text":
        return str(field_of(source, "data", str, f"{where}.source"))
    return ask.placeholder(f"a block of type {kind[:40]!r}")


class _Message:
    """A message that is read. It becomes one or several: each result of a tool is a message of its own."""

    def __init__(self, given: Json, where: str, ask: Ask) -> None:
        self._given, self._where, self._ask = given, where, ask
        self._found: list[Json] = []

    def translated(self) -> list[Json]:
        """Return the messages."""
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
                texts.append(_text(block, self._where, self._ask))
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
        return "\n".join(_text(each, self._where, self._ask) for each in content)

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
                self._ask.warn(f"a block of type {kind[:40]!r} is left out")
        message: Json = {"role": "assistant", "content": "\n".join(texts)}
        message |= {"reasoning_content": "\n".join(thoughts)} if thoughts else {}
        self._found.append(message | ({"tool_calls": calls} if calls else {}))

    def _call(self, block: Json) -> Json:
        name, arguments = field_of(block, "name", str, self._where), field_of(block, "input", dict, self._where)
        function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
        return {"id": field_of(block, "id", str, self._where), "type": "function", "function": function}

    def _of_system(self, blocks: list[Json]) -> None:
        if text := _system(blocks, self._ask):
            self._found.append({"role": "system", "content": text})


def _take_thinking(body: CountBody, ask: Ask) -> None:
    """Read whether the model thinks before it answers, and for how long. Without the field it does not."""
    given = body.thinking or {"type": "disabled"}
    kind = field_of(given, "type", str, "thinking")
    if kind not in KINDS:
        ask.warn(f"thinking.type = {brief(kind)} is not known: the model thinks as with 'adaptive'")
    ask.hints["enable_thinking"] = kind != "disabled"
    if kind == "enabled":
        ask.budget = field_of(given, "budget_tokens", int, "thinking")
        if ask.budget < 1:
            raise ApiError(400, f"thinking.budget_tokens = {ask.budget} is not allowed: at least 1", "thinking")
    effort = (body.output_config or {}).get("effort")
    if kind != "disabled":
        ask.take_effort(effort)


def _tool_fields(body: CountBody, ask: Ask) -> Json:
    """Read the tools, the choice among them, and the schema of the text."""
    found = Json()
    tools = [tool for number, given in enumerate(body.tools or ()) if (tool := _tool(given, f"tools[{number}]", ask))]
    if tools:
        found["tools"] = tools
    if body.tool_choice is not None:
        found |= _choice(body.tool_choice)
    given = (body.output_config or {}).get("format", body.output_format)
    if given is not None:
        if field_of(given, "type", str, "output_config.format") != "json_schema":
            raise ApiError(400, "output_config.format.type: only json_schema is possible", "output_config")
        schema = {"name": "output", "schema": given.get("schema")}
        found["response_format"] = {"type": "json_schema", "json_schema": schema}
    return found


def _tool(given: Json, where: str, ask: Ask) -> Json | None:
    """Read a function. Tools that a server runs, and tools that are to be found later, are left out."""
    kind = given.get("type") or "custom"
    if kind != "custom":
        ask.warn(f"a tool of type {brief(kind)} is left out, since nothing here runs it")
        return None
    name = field_of(given, "name", str, where)
    if given.get("defer_loading"):
        ask.warn("a tool with defer_loading is left out, since nothing here finds it")
        return None
    function = {"name": name, "parameters": given.get("input_schema"), "strict": given.get("strict")}
    return {"type": "function", "function": function | {"description": given.get("description")}}


def _choice(given: Json) -> Json:
    kind = field_of(given, "type", str, "tool_choice")
    if kind == "tool":
        name = field_of(given, "name", str, "tool_choice")
        found: Json = {"tool_choice": {"type": "function", "function": {"name": name}}}
    elif kind in MODES:
        found = {"tool_choice": MODES[kind]}
    else:
        raise ApiError(400, f"tool_choice.type = {brief(kind)} is not allowed: auto, any, tool or none", "tool_choice")
    one = given.get("disable_parallel_tool_use")
    if not (one is None or isinstance(one, bool)):
        raise ApiError(400, f"tool_choice.disable_parallel_tool_use = {brief(one)}: true or false", "tool_choice")
    return found | ({"parallel_tool_calls": False} if one else {})
