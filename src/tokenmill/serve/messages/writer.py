"""The answers of /v1/messages: a message whole, or the events of a stream, in content blocks."""

from collections.abc import Iterator
from collections.abc import Sequence as List
from typing import Any, ClassVar

import pydantic_core

from tokenmill.engine.outputs import Completion, Piece
from tokenmill.serve.http.errors import NOT_SPELLED, ApiError, Json, Refusals, Spelled, TooLong
from tokenmill.serve.http.streams import to_line
from tokenmill.serve.request.ask import Ask
from tokenmill.serve.request.prepare import Prepared
from tokenmill.serve.request.reading import Reading
from tokenmill.serve.request.writer import Writer, finite
from tokenmill.text.parts import CallArguments, CallBegin, Part, TextPart, ThinkingPart

SIGNATURE = "tokenmill"  # of thinking, which clients send back; nothing here depends on it
DELTAS = {"text": "text_delta", "thinking": "thinking_delta", "tool_use": "input_json_delta"}
FIELDS = {"text": "text", "thinking": "thinking", "tool_use": "partial_json"}
CODES = ("thread_unsupported_request",)  # codes of ours that Anthropic's API has too


class MessagesRefusals(Refusals):
    """The form of errors of Anthropic's API. Claude Code reads the two numbers out of the refusal of a prompt."""

    NAMES: ClassVar[dict[str, str]] = {
        "reasoning_effort": "output_config.effort",
        "response_format": "output_config.format",
        "stop": "stop_sequences",
        "thinking_budget": "thinking.budget_tokens",
    }
    KINDS: ClassVar[dict[int, str]] = {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        413: "request_too_large",
        429: "rate_limit_error",
        500: "api_error",
        503: "overloaded_error",
        504: "timeout_error",
    }

    def body(self, error: ApiError, spelled: Spelled = NOT_SPELLED) -> Json:
        kind = self.KINDS.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
        message = self.message(error, spelled)
        if isinstance(error, TooLong):
            message = f"prompt is too long: {error.num_tokens} tokens > {error.limit - 1} maximum"
        details = {"details": {"error_code": error.code}} if error.code in CODES else {}
        return {"type": "error", "error": {"type": kind, "message": message, **details}}

    def event(self, body: Json, begun: Json) -> bytes:
        return b"event: error\ndata: " + to_line(body) + b"\n\n"


REFUSALS = MessagesRefusals()


class MessagesWriter(Writer):
    """A writer whose blocks are made as parts come; a whole message is made of the same events."""

    prefix, refusals = "msg_", REFUSALS

    def __init__(self, ask: Ask, prepared: Prepared, *more: Any) -> None:
        super().__init__(ask, prepared, *more)
        self._reading = Reading(prepared.readers.make())
        self._blocks: list[Json] = []  # with the text of each as a list of pieces
        self._is_open = False  # whether the last block is
        self._blanks = ""  # which are no text of their own if no text follows
        self._has_begun = False

    def answer(self, completions: List[Completion]) -> Json:
        (done,) = completions
        self._count(done.tokens)
        list(self._of_parts(self._reading.take(Piece(done.text, done.tokens, done))))
        usage, content = self._usage(), [_whole(block) for block in self._blocks]
        return self._message(usage, content, **self._end(done)) | self._warning_fields() | self._token_ids(done)

    def chunks(self, piece: Piece) -> Iterator[Json]:
        """See Writer. The first piece has the beginning before it: only then it is known what the cache had."""
        if not self._has_begun:
            self._has_begun = True
            yield {"type": "message_start", "message": self._message(self._usage(), []) | self._warning_fields()}
        self._count(piece.tokens)
        yield from self._of_parts(self._reading.take(piece))
        if piece.done is not None:
            yield from self._close()
            yield {"type": "message_delta", "delta": self._end(piece.done), "usage": self._usage()}
            yield {"type": "message_stop"}

    def event(self, value: Json) -> bytes:
        return b"event: %b\ndata: %b\n\n" % (str(value["type"]).encode(), to_line(value))

    def _pass_over(self, piece: Piece) -> None:
        self._has_begun = True
        list(self._of_parts(self._reading.take(piece)))

    def _of_parts(self, parts: list[Part]) -> Iterator[Json]:
        for part in parts:
            if isinstance(part, TextPart):
                yield from self._add("text", part.text)
            elif isinstance(part, ThinkingPart):
                yield from self._add("thinking", part.text)
            elif isinstance(part, CallBegin):
                call = self._prepared.readers.call_id(part.id, self._id, part.index)
                yield from self._open({"type": "tool_use", "id": call, "name": part.name, "input": {}})
            elif isinstance(part, CallArguments):
                yield from self._add("tool_use", part.text)

    def _add(self, kind: str, text: str) -> Iterator[Json]:
        """Yield more of a block of this kind, behind the beginning of a new one where the last is another."""
        if not self._is_open or self._blocks[-1]["type"] != kind:
            if kind == "text":
                text = self._blanks + text
                if not text.strip():
                    self._blanks = text
                    return
            yield from self._open({"type": kind, kind: ""} | ({"signature": ""} if kind == "thinking" else {}))
        self._blocks[-1]["pieces"].append(text)
        delta = {"type": DELTAS[kind], FIELDS[kind]: text}
        yield {"type": "content_block_delta", "index": len(self._blocks) - 1, "delta": delta}

    def _open(self, block: Json) -> Iterator[Json]:
        yield from self._close()
        self._blocks.append({**block, "pieces": []})
        self._is_open, self._blanks = True, ""
        yield {"type": "content_block_start", "index": len(self._blocks) - 1, "content_block": block}

    def _close(self) -> Iterator[Json]:
        if not self._is_open:
            return
        self._is_open, index = False, len(self._blocks) - 1
        if self._blocks[-1]["type"] == "thinking":
            delta = {"type": "signature_delta", "signature": SIGNATURE}
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}

    def _message(self, usage: Json, content: list[Json], **end: Any) -> Json:
        head = {"id": self._id, "type": "message", "role": "assistant", "model": self._model, "content": content}
        return {**head, "stop_reason": None, "stop_sequence": None, **end, "usage": usage}

    def _end(self, done: Completion) -> Json:
        """Return why the text has ended. A call that was cut is one whose arguments are no JSON: the reason says so."""
        stopped = done.stop_reason if isinstance(done.stop_reason, str) else None
        reason = "end_turn" if stopped is None else "stop_sequence"
        if done.finish_reason == "length":
            reason = "model_context_window_exceeded" if self._prepared.is_clamped else "max_tokens"
        elif self._reading.calls and stopped is None and not self._reading.is_cut:
            reason = "tool_use"
        return {"stop_reason": reason, "stop_sequence": stopped if reason == "stop_sequence" else None}

    def _usage(self) -> Json:
        cached, thinking = self._num_cached, self._reading.count_thinking(self._tokenizer)
        return {
            "input_tokens": self._num_prompt - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": self._num_new,
            **({"output_tokens_details": {"thinking_tokens": thinking}} if thinking else {}),
        }


def _whole(block: Json) -> Json:
    block = dict(block)
    text, kind = "".join(block.pop("pieces")), block["type"]
    if kind == "tool_use":
        return {**block, "input": _object(text)}
    return {**block, kind: text} | ({"signature": SIGNATURE} if kind == "thinking" else {})


def _object(text: str) -> Json:
    """Read the arguments of a call; of one that was cut, as much of them as is there."""
    try:
        found = pydantic_core.from_json(text or "{}", allow_partial="trailing-strings")
    except ValueError:
        found = {}
    return finite(found) if isinstance(found, dict) else {}
