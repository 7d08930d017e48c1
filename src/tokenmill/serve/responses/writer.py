"""The answers of /v1/responses: a response whole, or the events of a stream, in items."""

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as List
from typing import Any

from tokenmill.engine.outputs import Completion, Piece
from tokenmill.serve.http.json_lines import to_line
from tokenmill.serve.http.refusals import event_of
from tokenmill.serve.loop.resumption import Resumption
from tokenmill.serve.request.fields import ChatBody
from tokenmill.serve.request.prepare import Prepared
from tokenmill.serve.request.reading import Reading
from tokenmill.serve.request.writer import Format, Json
from tokenmill.serve.responses.items import FunctionItem, Item, TextItem, ThinkingItem, call_item
from tokenmill.serve.responses.tools import Named
from tokenmill.text.parts import CallArguments, CallBegin, Part, TextPart, ThinkingPart

MAX_EVENTS = 8  # of one token, for the numbers of a stream that goes on at another server


class ResponsesFormat(Format):
    """The items are made as parts come; a whole response is made of the same.

    echoed: fields of the request that the answer repeats. names: of the functions, as the answer has them.
    """

    prefix, path = "resp_", "/v1/responses"

    def __init__(
        self,
        echoed: Mapping[str, Any],
        names: Mapping[str, Named],
        body: ChatBody,
        prepared: Prepared,
        *more: Any,
    ) -> None:
        super().__init__(body, prepared, *more)
        self._echoed, self._names = echoed, names
        self._reading = Reading(prepared.readers.make())
        self._items: list[Item] = []
        self._blanks = ""  # which are no text of their own if none follows
        self._number = 0  # of the next event

    def answer(self, completions: List[Completion]) -> Json:
        """See Format."""
        (done,) = completions
        self._count(done.tokens)
        self._end_all(self._reading.take(Piece(done.text, done.tokens, done)), done)
        return self._response(done) | self._token_ids(done)

    def opening(self) -> Iterator[Json]:
        """See Format."""
        for name in ("created", "in_progress"):
            yield self._numbered({"type": f"response.{name}", "response": self._response(None)})

    def chunks(self, piece: Piece) -> Iterator[Json]:
        """See Format."""
        self._count(piece.tokens)
        for event in self._of_parts(self._reading.take(piece)):
            yield self._numbered(event)
        if piece.done is not None:
            for event in self._close(self._cuts_item(piece.done)):
                yield self._numbered(event)
            response = self._response(piece.done)
            yield self._numbered({"type": f"response.{response['status']}", "response": response})

    def event(self, value: Json) -> bytes:
        """See Format."""
        return b"event: %b\ndata: %b\n\n" % (str(value["type"]).encode(), to_line(value))

    def failure(self, error: Exception) -> bytes:
        """See Format."""
        return event_of(error, self.path, self._response(None) | {"sequence_number": self._number})

    def resume(self, written: Resumption, texts: Mapping[int, str]) -> None:
        """See Format."""
        super().resume(written, texts)
        self._number = 2 * written.is_opened + MAX_EVENTS * sum(map(len, written.tokens.values()))

    def _pass_over(self, piece: Piece) -> None:
        for _ in self._of_parts(self._reading.take(piece)):
            pass

    def _numbered(self, event: Json) -> Json:
        self._number += 1
        return {**event, "sequence_number": self._number - 1}

    def _end_all(self, parts: list[Part], done: Completion) -> None:
        for _ in self._of_parts(parts):
            pass
        for _ in self._close(self._cuts_item(done)):
            pass

    def _cuts_item(self, done: Completion) -> bool:
        """Whether the last item is not whole: a limit has ended it, or a stop text or id that stood inside a call."""
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
                yield from self._open(call_item(len(self._items), self._id, call, self._names[part.name]))
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
        """The response as far as it is there."""
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
    """Whether a limit has ended the text."""
    return done.finish_reason == "length"
