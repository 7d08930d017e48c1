"""A request, and the texts of its answer, whole or joined from the events of a stream, by either route. No network.

What a server leaves out is None, never an empty value: what is not there cannot be compared.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tokenmill.bench.load_report import EventStream, message_of, printable

CHAT, PLAIN = "chat/completions", "completions"


@dataclass(frozen=True)
class ProofRequest:
    """A route, a prompt, and the fields that decide the text. A conversation is one message of a user."""

    route: str
    prompt: str | tuple[int, ...]
    fields: Mapping[str, Any] = field(default_factory=dict)

    def body(self, model: str | None, stream: bool) -> dict[str, Any]:
        """Make the body of the request."""
        named = {} if model is None else {"model": model}
        streamed = {"stream": True} if stream else {}
        return {**named, **self._input(), **self.fields, **streamed}

    def _input(self) -> dict[str, Any]:
        if self.route == CHAT:
            return {"messages": [{"role": "user", "content": self.prompt}]}
        return {"prompt": self.prompt if isinstance(self.prompt, str) else list(self.prompt)}

    def having(self, **fields: Any) -> "ProofRequest":
        """Return the same request with other fields; None takes one away."""
        merged = {**self.fields, **fields}
        return replace(self, fields={name: value for name, value in merged.items() if value is not None})


class Unreadable(Exception):
    """An answer that is not what OpenAI's API says; the message says what it is."""


@dataclass(frozen=True)
class Text:
    """One text. ids, tokens, logprobs: for each token, where the server gives them."""

    text: str
    reason: str | None
    ids: tuple[int, ...] | None = None
    tokens: tuple[str, ...] | None = None
    logprobs: tuple[float | None, ...] | None = None

    @property
    def length(self) -> int:
        """Tokens where the server tells them, else characters."""
        return len(next((units for units in (self.ids, self.tokens) if units is not None), self.text))


Answer = list[Text]


@dataclass
class _Parts:
    """The parts of one text so far. A list that nothing came for stays None."""

    text: list[str] = field(default_factory=list)
    reason: str | None = None
    ids: list[int] | None = None
    tokens: list[str] | None = None
    logprobs: list[float | None] | None = None

    def add(self, choice: Mapping[str, Any]) -> None:
        message = choice.get("message") or choice.get("delta") or choice
        if not isinstance(message, dict):
            raise Unreadable("a choice whose message is no object")
        # Thoughts are a part of the text; servers call them by one of two names.
        for name in ("reasoning_content", "reasoning", "content", "text"):
            if isinstance(part := message.get(name), str):
                self.text.append(part)
        self.reason = choice.get("finish_reason") or self.reason
        if isinstance(ids := choice.get("token_ids"), list):
            self.ids = [*(self.ids or ()), *ids]
        if isinstance(logprobs := choice.get("logprobs"), dict):
            self._add_logprobs(logprobs)

    def _add_logprobs(self, found: Mapping[str, Any]) -> None:
        if isinstance(content := found.get("content"), list):  # of a conversation
            if not all(isinstance(each, dict) for each in content):
                raise Unreadable("log-probabilities of tokens that are no objects")
            tokens, values = [each.get("token") for each in content], [each.get("logprob") for each in content]
        else:
            tokens, values = found.get("tokens") or [], found.get("token_logprobs") or []
        if not (isinstance(tokens, list) and isinstance(values, list) and all(map(_may_be, values))):
            raise Unreadable("log-probabilities that are no list of numbers")
        self.tokens = [*(self.tokens or ()), *map(str, tokens)]
        self.logprobs = [*(self.logprobs or ()), *values]

    def joined(self) -> Text:
        lists = [None if each is None else tuple(each) for each in (self.ids, self.tokens, self.logprobs)]
        return Text("".join(self.text), self.reason, *lists)  # type: ignore[arg-type]


def _may_be(logprob: object) -> bool:
    return logprob is None or (isinstance(logprob, int | float) and not isinstance(logprob, bool))


class TextsReader:
    """The texts of one answer, gathered from JSON documents: the whole answer, or the events of a stream."""

    def __init__(self) -> None:
        self._parts: dict[int, _Parts] = {}
        self.model: str | None = None
        self.fingerprint: str | None = None

    def add(self, document: Any) -> None:
        """Take one document. Unreadable if it holds no choices, and no usage either."""
        if not isinstance(document, dict):
            raise Unreadable("JSON that is no object")
        choices = document.get("choices")
        if not isinstance(choices, list) or not all(isinstance(each, dict) for each in choices):
            raise Unreadable(f"JSON without choices ({', '.join(map(str, list(document)[:5])) or 'empty'})")
        self.fingerprint = document.get("system_fingerprint") or self.fingerprint
        for place, choice in enumerate(choices):
            index = choice.get("index", place)
            self._parts.setdefault(index if type(index) is int else place, _Parts()).add(choice)

    @property
    def texts(self) -> Answer:
        """The texts, in the order of their index."""
        return [self._parts[index].joined() for index in sorted(self._parts)]


class Events:
    """The texts of a stream, from its bytes as they come in."""

    def __init__(self) -> None:
        self.reader, self.num_events, self.done = TextsReader(), 0, False
        self._stream = EventStream()

    def feed(self, block: bytes) -> None:
        """Take more bytes of the stream."""
        for data in self._stream.feed(block):
            self._event(data)

    def _event(self, data: bytes) -> None:
        if self.done or data == b"[DONE]":
            self.done = True
            return
        try:
            event = json.loads(data)
        except (ValueError, RecursionError):
            raise Unreadable(f"an event that is no JSON: {data[:60].decode(errors='replace')}") from None
        if isinstance(event, dict) and event.get("error"):
            raise Unreadable(f"an event that tells of an error: {message_in(event)}")
        self.num_events += 1
        self.reader.add(event)

    def texts(self) -> Answer:
        """Return the texts, once the stream has ended. Unreadable if it was cut."""
        found = self.reader.texts
        if not self.done and not (found and all(each.reason for each in found)):
            raise Unreadable("a stream that ends without finish_reason or [DONE]")
        return found


def message_in(document: Any) -> str:
    """Return the message of an error, in one line of at most 200 characters, however the server writes it."""
    return printable(message_of(document))
