"""The messages of a conversation, in memory and in the notes of a saved session, with their check when they are read
from a file.

A message has a role and a content. An answer that was stopped before its end also has `cut`, what stopped it, and
`tokens`, its ids, so that the model can go on from exactly there.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenmill.errors import RequestError, SnapshotError

Message = dict[str, Any]

MAX_BRIEF = 40  # characters


def is_question(messages: Sequence[Message]) -> bool:
    """Tell whether the last message waits for an answer."""
    return bool(messages) and messages[-1]["role"] == "user"


def is_answer(messages: Sequence[Message]) -> bool:
    """Tell whether the last message is an answer."""
    return bool(messages) and messages[-1]["role"] == "assistant"


def turns(messages: Sequence[Message]) -> list[int]:
    """Return the index at which each turn begins, with its question."""
    return [index for index, message in enumerate(messages) if message["role"] == "user"]


def template_messages(messages: Sequence[Message]) -> list[Message]:
    """Strip messages to what the model's template sees. Another model may go on from them: they lack the ids of a
    stopped answer, which mean something to one model alone.
    """
    return [{"role": message["role"], "content": message["content"]} for message in messages]


def brief(message: Message) -> str:
    """Quote the beginning of a message, on one line."""
    text = " ".join(message["content"].split())
    return f'"{text if len(text) <= MAX_BRIEF else text[: MAX_BRIEF - 1] + "…"}"'


def check_messages(notes: Mapping[str, Any], file: str) -> list[Message]:
    """Return the messages in the notes of a session. RequestError if there are none, or if one is wrong."""
    messages = notes.get("messages")
    if messages is None:
        raise RequestError(f"{file} holds no conversation: `tokenmill decode` goes on with plain text")
    if not isinstance(messages, list):
        raise RequestError(f"{file} is damaged: its messages are no list")
    roles = [message.get("role") if isinstance(message, dict) else None for message in messages]
    for number, message in enumerate(messages, start=1):
        turn = number - (roles[0] == "system")  # 0: the system message; then a question, an answer, and so on
        if problem := _problem(message, "system" if not turn else "user" if turn % 2 else "assistant"):
            raise RequestError(f"{file} is damaged: message {number} of its conversation {problem}")
    return [dict(message) for message in messages]


def holds_conversation(path: Path) -> bool:
    """Tell whether a file is a saved session with messages."""
    from tokenmill.cache.header import read_session_facts

    try:
        check_messages(read_session_facts(path)["notes"], str(path))
    except (SnapshotError, RequestError):
        return False
    return True


def _problem(message: Any, role: str) -> str:
    """Name the fault of a message that should have this role; empty if it has none."""
    if not isinstance(message, dict):
        return "is no JSON object"
    if message.get("role") != role:
        return f"should have the role {role}"
    tokens = message.get("tokens", [0])
    if not isinstance(tokens, list) or not tokens or not all(type(token) is int and token >= 0 for token in tokens):
        return "has wrong token ids"
    if not all(isinstance(message.get(name, ""), str) for name in ("content", "cut")):
        return "has a text that is no string"
    extra = message.keys() - {"role", "content"}
    if "content" not in message or (extra and (extra != {"cut", "tokens"} or role != "assistant")):
        return "has missing or unknown fields"
    return ""
