"""A conversation with calls as a chat template takes it: arguments as objects, results beside the names of functions.

Clients send the arguments of a call as JSON text; templates write an object down, and a text they would write as a
quoted one. A template that cannot show functions gets calls and results as texts of ordinary turns.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tokenmill.errors import RequestError
from tokenmill.text.literal import SpelledNumber
from tokenmill.text.tools.tool_format import ToolFormat
from tokenmill.value_reader import brief

Message = dict[str, Any]

TOLD = (
    "You may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n{functions}\n</tools>\n\n"
    "For each function call, write one in this form:\n{call}"
)
THOUGHTS = ("reasoning_content", "thinking", "reasoning")
INPUT = "input"  # the one argument of a custom tool, which is a function to the model
UNREAD = "arguments"  # the name of a text that is shown in the place of arguments
EXAMPLE = "<function-name>", {"<name>": "<value>"}


def with_objects(messages: Sequence[Mapping[str, Any]], form: ToolFormat, *, as_text: bool = False) -> list[Message]:
    """Return the messages with the arguments of calls as objects, ids as the format has them, and names beside results.

    as_text: the arguments stay JSON text, or become it, for a template that joins them with other texts. Arguments that
    are no JSON object, as where a call was cut, become an object that holds them as a text; see `unread`. A call of a
    custom tool becomes one of a function with the argument `input`. What else a client adds to a call, as OpenAI's does
    `parsed_arguments`, is left out: templates write a whole function down.

    RequestError for an entry that is no call, and for a result without a call.
    """
    made: list[Message] = []
    names: dict[str, str] = {}
    ids: dict[str, str] = {}  # as clients have them → as the template gets them
    num_calls = 0
    for number, message in enumerate(messages, start=1):
        where = f"message {number} of the chat"
        new = {name: value for name, value in message.items() if name != "tool_calls" or value}
        if message.get("role") == "assistant" and message.get("tool_calls"):
            calls = _calls(message["tool_calls"], where)
            new["tool_calls"] = [_call(call, form, where, as_text, at) for at, call in enumerate(calls, num_calls)]
            num_calls += len(calls)
            for old, call in zip(calls, new["tool_calls"], strict=True):
                names[str(old.get("id"))] = call["function"]["name"]
                ids[str(old.get("id"))] = str(call.get("id"))
        elif message.get("role") == "tool":
            given = message.get("tool_call_id")
            if not names or (given is not None and str(given) not in names):
                raise RequestError(
                    f"{where} is the result of a call, tool_call_id = {brief(given)}, which no message before it "
                    "makes: leave it out, or put the assistant's message with that call in tool_calls before it"
                )
            new["name"] = message.get("name") or names.get(str(given), list(names.values())[-1])
            if given is not None:
                new["tool_call_id"] = ids[str(given)]
        made.append(new)
    return _one_call_each(made) if form.is_single else made


def _one_call_each(messages: Sequence[Message]) -> list[Message]:
    """Give each call a turn of its own, followed by its result, with no text beside thinking in it."""
    made: list[Message] = []
    for message in messages:
        if message.get("role") == "tool":  # behind its own call, where that is known
            place = next((n for n, each in enumerate(made) if message.get("tool_call_id") in _ids(each)), len(made) - 1)
            while place + 1 < len(made) and made[place + 1].get("role") == "tool":
                place += 1
            made.insert(place + 1, message)
            continue
        calls = message.get("tool_calls") or ()
        for number, call in enumerate(calls):
            rest = {} if number else {name: value for name, value in message.items() if name != "tool_calls"}
            made.append({**_without_text(rest), "role": "assistant", "tool_calls": [call]})
        if not calls:
            made.append(message)
    return made


def _ids(message: Message) -> list[Any]:
    return [call["id"] for call in message.get("tool_calls") or () if call.get("id") is not None]


def _without_text(message: Message) -> Message:
    """Put the text of a turn at the end of its thinking, where it has both: templates show one before a call."""
    name = next((name for name in THOUGHTS if isinstance(message.get(name), str) and message[name]), None)
    if name is None or not isinstance(text := message.get("content"), str) or not text:
        return message
    return {**message, name: f"{message[name]}\n{text}", "content": None}


def known_id(given: str, form: ToolFormat, name: str, number: int) -> str:
    """Return an id as the format writes it: one of another form becomes, always, the same one of its own.

    name: of the function. number: of the call in the conversation, for a format whose ids have one and an id that does
    not say which the model wrote; see Readers.call_id.
    """
    if form.numbered:
        written = re.fullmatch(rf"{re.escape(form.numbered)}.+:\d+|.*_(\d{{1,3}})", given, re.DOTALL)
        own = written is not None and written[1] is None
        return given if own else f"{form.numbered}{name}:{written[1] if written else number}"
    if form.id_prefix or (len(given) == form.id_length and given.isalnum() and given.isascii()):
        return given
    return hashlib.sha256(given.encode("utf-8", "surrogatepass")).hexdigest()[: form.id_length]


def as_plain_turns(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], form: ToolFormat) -> list[Message]:
    """Return the messages for a template that shows no functions: `tools` are told in the system message, calls are
    text of the assistant, results are text of the user. Results that follow each other are one turn.
    """
    made: list[Message] = []
    follows_result = False
    for message in messages:
        content = message.get("content") or ""
        is_result = message.get("role") == "tool" and not message.get("tool_calls")
        if message.get("tool_calls"):
            new = with_calls_in_text(message, form)
        elif is_result:
            new = {"role": "user", "content": f"<tool_response>\n{content}\n</tool_response>"}
        else:
            new = dict(message)
        if is_result and follows_result:
            made[-1]["content"] += f"\n{new['content']}"
        else:
            made.append(new)
        follows_result = is_result
    if not tools:
        return made
    told = TOLD.format(
        functions="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools), call=form.text([EXAMPLE])
    )
    if made and made[0].get("role") == "system":
        made[0] = made[0] | {"content": f"{made[0].get('content') or ''}\n\n{told}".lstrip()}
        return made
    return [{"role": "system", "content": told}, *made]


def with_calls_in_text(message: Message, form: ToolFormat) -> Message:
    """Return a message whose text ends with its calls, as a model writes them, where it has calls."""
    if not message.get("tool_calls"):
        return message
    content = message.get("content") or ""
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message["tool_calls"]]
    content = f"{content}{form.lead if content else ''}{form.text(calls)}"
    return {name: value for name, value in message.items() if name != "tool_calls"} | {"content": content}


def _calls(given: Any, where: str) -> list[Mapping[str, Any]]:
    if not isinstance(given, list) or not all(isinstance(call, Mapping) for call in given):
        raise RequestError(f"{where}: tool_calls = {brief(given)} is not allowed: a list of calls")
    return given


def _call(call: Mapping[str, Any], form: ToolFormat, where: str, as_text: bool, number: int) -> Message:
    inner = _function(call)
    name = inner.get("name") if isinstance(inner, Mapping) else None
    if not isinstance(inner, Mapping) or not isinstance(name, str):
        raise RequestError(f'{where}: {brief(call)} is no call: {{"id": …, "type": "function", "function": …}}')
    given = inner.get("arguments")
    if not (given is None or isinstance(given, str | Mapping)):
        raise RequestError(f"{where}: the arguments of the call of {name!r} are no JSON text, {brief(given)}")
    found = _object(given)
    arguments: Any = {UNREAD: given} if found is None else found
    if as_text:
        is_written = isinstance(given, str) and given.strip() and found is not None
        arguments = given if is_written else json.dumps(arguments, ensure_ascii=False)
    new: Message = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return new | {"id": known_id(str(call["id"]), form, name, number)} if call.get("id") is not None else new


def _function(call: Mapping[str, Any]) -> Any:
    """Return the function of a call, with its arguments; of a custom tool, the function that it is to the model."""
    if call.get("type") != "custom":
        return call.get("function")
    custom = call.get("custom")
    if not isinstance(custom, Mapping) or not isinstance(given := custom.get("input"), str):
        return None
    return {"name": custom.get("name"), "arguments": {INPUT: given}}


def unread(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a warning for each call of a conversation whose arguments are no JSON object.

    A client sends them again at each turn, so that refusing them would end the conversation; as a text that the model
    sees nothing of them is lost.
    """
    return [
        f"message {number} of the chat: the arguments of the call of {brief(inner.get('name'))} are no JSON object, so "
        f"the model sees them as a text named {UNREAD!r}: {brief(inner['arguments'])}"
        for number, message in enumerate(messages, start=1)
        if message.get("role") == "assistant"
        for call in message.get("tool_calls") or ()
        if isinstance(inner := _function(call), Mapping) and _object(inner.get("arguments")) is None
    ]


def _object(given: Any) -> Any:
    """Read arguments as an object, empty where there are none or an empty text. Return None for anything else."""
    if given is None or (isinstance(given, str) and not given.strip()):
        return {}
    try:
        found = json.loads(given, parse_constant=_refuse, **NUMBERS) if isinstance(given, str) else given
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, Mapping) else None


def _number(spelling: str) -> int | float:
    number: int | float = int(spelling) if spelling.lstrip("-").isdigit() else float(spelling)
    return number if str(number) == spelling else SpelledNumber(spelling)


NUMBERS: dict[str, Any] = {"parse_int": _number, "parse_float": _number}


def _refuse(name: str) -> None:
    raise ValueError(name)
