"""The answers of /v1/responses: a response whole, or the events of a stream, in items: text, thinking, and calls of
functions and of custom tools, each with its events.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as List
from hashlib import blake2b
from typing import Any, ClassVar

from tokenmill.engine.outputs import Completion, Piece
from tokenmill.serve.http.errors import NOT_SPELLED, ApiError, Json, Refusals, Spelled
from tokenmill.serve.http.streams import to_line
from tokenmill.serve.loop.resumption import Resumption
from tokenmill.serve.request.ask import Ask
from tokenmill.serve.request.custom_tools import input_of
from tokenmill.serve.request.prepare import Prepared
from tokenmill.serve.request.reading import Reading
from tokenmill.serve.request.writer import Writer
from tokenmill.serve.responses.parse import Named
from tokenmill.text.parts import CallArguments, CallBegin, Part, TextPart, ThinkingPart

MAX_EVENTS = 8  # of one token, for the numbers of a stream that goes on at another server
CODES = ("server_error", "rate_limit_exceeded", "invalid_prompt")  # of a response that has failed
NO_RESPONSE: Json = {
    "object": "response",
    "output": [],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
}
LAST_NUMBER = 2**31 - 1  # of an event after others that somebody else has counted


class ResponsesRefusals(Refusals):
    """The form of errors of /v1/responses. Codex reads the codes, and how long it should wait out of the message."""

    NAMES: ClassVar[dict[str, str]] = {
        "max_tokens": "max_output_tokens",
        "messages": "input",
        "reasoning_effort": "reasoning.effort",
        "response_format": "text.format",
    }

    def body(self, error: ApiError, spelled: Spelled = NOT_SPELLED) -> Json:
        return {"error": super().body(error, spelled)["error"] | self._told(error, spelled)}

    def event(self, body: Json, begun: Json) -> bytes:
        begun = dict(begun)
        number, code = begun.pop("sequence_number", LAST_NUMBER), body["error"]["code"]
        told = {"code": code if code in CODES else "server_error", "message": body["error"]["message"]}
        about = {"id": "", "created_at": begun.get("created", 0), "model": ""}
        failed = {**about, **NO_RESPONSE, **begun, "status": "failed", "error": told}
        event = {"type": "response.failed", "sequence_number": number, "response": failed}
        return b"event: response.failed\ndata: " + to_line(event) + b"\n\n"

    def _told(self, error: ApiError, spelled: Spelled) -> Json:
        message = self.message(error, spelled)
        if error.status == 429:
            message = f"{message.rstrip('.')}. Please try again in {error.retry_after_s}s."
            return {"code": "rate_limit_exceeded", "message": message}
        return {"code": error.code or ("server_error" if error.status >= 500 else "invalid_prompt"), "message": message}


REFUSALS = ResponsesRefusals()


class Item(ABC):
    """One item. place: its index in the output. answer: the id of the response. status: of its text."""

    prefix: str

    def __init__(self, place: int, answer: str) -> None:
        self._place, self._pieces, self.status = place, list[str](), "in_progress"
        digest = blake2b(f"{answer}:{place}".encode(), digest_size=12).hexdigest()
        self._id = f"{self.prefix}_{digest}"

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._pieces)

    def begin(self) -> Iterator[Json]:
        """Yield the first events."""
        yield self._about("response.output_item.added", item=self.whole(is_empty=True))

    def add(self, text: str) -> Iterator[Json]:
        """Yield the events for more text."""
        self._pieces.append(text)
        yield self._delta(text)

    def end(self, is_cut: bool = False) -> Iterator[Json]:
        """Yield the last events. is_cut: a limit has ended the text."""
        self.status = "incomplete" if is_cut else "completed"
        yield from self._ending()
        yield self._about("response.output_item.done", item=self.whole())

    @abstractmethod
    def whole(self, is_empty: bool = False) -> Json:
        """Return the item, with what is there of it."""

    @abstractmethod
    def _delta(self, text: str) -> Json:
        """Return the event for more text."""

    @abstractmethod
    def _ending(self) -> Iterator[Json]:
        """Yield the events before the one that has the whole item."""

    def _about(self, kind: str, **more: Any) -> Json:
        item = {} if "item" in more else {"item_id": self._id}
        return {"type": kind, **item, "output_index": self._place, **more}


class TextItem(Item):
    """A message."""

    prefix = "msg"

    def whole(self, is_empty: bool = False) -> Json:
        content = [] if is_empty else [_part(self.text)]
        return {"type": "message", "id": self._id, "role": "assistant", "status": self.status, "content": content}

    def begin(self) -> Iterator[Json]:
        yield from super().begin()
        yield self._about("response.content_part.added", content_index=0, part=_part(""))

    def _delta(self, text: str) -> Json:
        return self._about("response.output_text.delta", content_index=0, delta=text, logprobs=[])

    def _ending(self) -> Iterator[Json]:
        yield self._about("response.output_text.done", content_index=0, text=self.text, logprobs=[])
        yield self._about("response.content_part.done", content_index=0, part=_part(self.text))


class ThinkingItem(Item):
    """The thinking of the model."""

    prefix = "rs"

    def whole(self, is_empty: bool = False) -> Json:
        content = [] if is_empty else [{"type": "reasoning_text", "text": self.text}]
        return {"type": "reasoning", "id": self._id, "summary": [], "content": content, "encrypted_content": None}

    def _delta(self, text: str) -> Json:
        return self._about("response.reasoning_text.delta", content_index=0, delta=text)

    def _ending(self) -> Iterator[Json]:
        yield self._about("response.reasoning_text.done", content_index=0, text=self.text)


class FunctionItem(Item):
    """A call of a function, whose arguments are JSON text."""

    prefix = "fc"

    def __init__(self, place: int, answer: str, call: str, named: Named) -> None:
        super().__init__(place, answer)
        space = {} if named.space is None else {"namespace": named.space}
        self._named = {"call_id": call, "name": named.name} | space

    def whole(self, is_empty: bool = False) -> Json:
        return {"type": "function_call", "id": self._id, **self._named, "arguments": self.text, "status": self.status}

    def _delta(self, text: str) -> Json:
        return self._about("response.function_call_arguments.delta", delta=text)

    def _ending(self) -> Iterator[Json]:
        name = self._named["name"]
        yield self._about("response.function_call_arguments.done", name=name, arguments=self.text)


class CustomItem(FunctionItem):
    """A call of a custom tool. Its input stands in the JSON text of the model's call, so it is shown when that ends."""

    prefix = "ctc"

    def whole(self, is_empty: bool = False) -> Json:
        given = "" if is_empty else input_of(self.text)
        return {"type": "custom_tool_call", "id": self._id, **self._named, "input": given, "status": self.status}

    def add(self, text: str) -> Iterator[Json]:
        self._pieces.append(text)
        yield from ()

    def _ending(self) -> Iterator[Json]:
        yield self._about("response.custom_tool_call_input.delta", delta=input_of(self.text))
        yield self._about("response.custom_tool_call_input.done", input=input_of(self.text))


def _part(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


class ResponsesWriter(Writer):
    """A writer whose items are made as parts come; a whole response is made of the same.

    Ask.own: fields of the request that the answer repeats, and the names of the functions, as the answer has them.
    """

    prefix, refusals = "resp_", REFUSALS

    def __init__(self, ask: Ask, prepared: Prepared, *more: Any) -> None:
        super().__init__(ask, prepared, *more)
        self._echoed, self._names = ask.own
        self._reading = Reading(prepared.readers.make())
        self._items: list[Item] = []
        self._blanks = ""  # which are no text of their own if no text follows
        self._number = 0  # of the next event

    def answer(self, completions: List[Completion]) -> Json:
        (done,) = completions
        self._count(done.tokens)
        list(self._of_parts(self._reading.take(Piece(done.text, done.tokens, done))))
        list(self._close(self._cuts_item(done)))
        return self._response(done) | self._token_ids(done)

    def opening(self) -> Iterator[Json]:
        for name in ("created", "in_progress"):
            yield self._numbered({"type": f"response.{name}", "response": self._response(None)})

    def chunks(self, piece: Piece) -> Iterator[Json]:
        self._count(piece.tokens)
        for event in self._of_parts(self._reading.take(piece)):
            yield self._numbered(event)
        if piece.done is not None:
            for event in self._close(self._cuts_item(piece.done)):
                yield self._numbered(event)
            response = self._response(piece.done)
            yield self._numbered({"type": f"response.{response['status']}", "response": response})

    @property
    def _progress_chunk(self) -> Json:
        return self._numbered({"type": "response.in_progress", "response": self._response(None)})

    def event(self, value: Json) -> bytes:
        return b"event: %b\ndata: %b\n\n" % (str(value["type"]).encode(), to_line(value))

    def failure(self, error: Exception) -> bytes:
        return self.refusals.event_of(error, self._response(None) | {"sequence_number": self._number})

    def resume(self, written: Resumption, texts: Mapping[int, str]) -> None:
        super().resume(written, texts)
        told = (self._num_prompt + 1) * (written.is_opened and self.wants_progress)  # at most an event for each token
        self._number = 2 * written.is_opened + told + MAX_EVENTS * sum(map(len, written.tokens.values()))

    def _pass_over(self, piece: Piece) -> None:
        list(self._of_parts(self._reading.take(piece)))

    def _numbered(self, event: Json) -> Json:
        self._number += 1
        return {**event, "sequence_number": self._number - 1}

    def _cuts_item(self, done: Completion) -> bool:
        """Return whether the last item is not whole: a limit ended it, or a stop text or id inside a call."""
        return _is_cut(done) or (self._is_open(FunctionItem) and self._reading.is_cut)

    def _of_parts(self, parts: list[Part]) -> Iterator[Json]:
        for part in parts:
            if isinstance(part, TextPart):
                yield from self._add_text(part.text)
            elif isinstance(part, ThinkingPart):
                if not self._is_open(ThinkingItem):
                    yield from self._open(ThinkingItem(len(self._items), self._id))
                yield from self._items[-1].add(part.text)
            elif isinstance(part, CallBegin):
                call = self._prepared.readers.call_id(part.id, self._id, part.index)
                named = self._names[part.name]
                kind = CustomItem if named.is_custom else FunctionItem
                yield from self._open(kind(len(self._items), self._id, call, named))
            elif isinstance(part, CallArguments):
                yield from self._items[-1].add(part.text)

    def _add_text(self, text: str) -> Iterator[Json]:
        if not self._is_open(TextItem):
            self._blanks += text
            if not self._blanks.strip():
                return
            text = self._blanks
            yield from self._open(TextItem(len(self._items), self._id))
        yield from self._items[-1].add(text)

    def _is_open(self, kind: type[Item]) -> bool:
        return bool(self._items) and isinstance(last := self._items[-1], kind) and last.status == "in_progress"

    def _open(self, item: Item) -> Iterator[Json]:
        yield from self._close()
        self._items.append(item)
        self._blanks = ""
        yield from item.begin()

    def _close(self, is_cut: bool = False) -> Iterator[Json]:
        if self._items and self._items[-1].status == "in_progress":
            yield from self._items[-1].end(is_cut)

    def _response(self, done: Completion | None) -> Json:
        """Return the response as far as it is there."""
        is_cut = done is not None and _is_cut(done)
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": "in_progress" if done is None else "incomplete" if is_cut else "completed",
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "model": self._model,
            "output": [item.whole() for item in self._items],
            "usage": None if done is None else self._usage(),
            **self._echoed,
            **self._warning_fields(),
        }

    def _usage(self) -> Json:
        return {
            "input_tokens": self._num_prompt,
            "input_tokens_details": {"cached_tokens": self._num_cached, "cache_write_tokens": 0},
            "output_tokens": self._num_new,
            "output_tokens_details": {"reasoning_tokens": self._reading.count_thinking(self._tokenizer)},
            "total_tokens": self._num_prompt + self._num_new,
        }


def _is_cut(done: Completion) -> bool:
    """Return whether a limit has ended the text."""
    return done.finish_reason == "length"
