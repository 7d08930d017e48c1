"""The answers of Ollama's API: one object, or objects in lines, the last of which says how long it took.

A call comes whole, when it has ended. One that a limit has cut is no call that anybody should run: it is given as text.
"""

import json
import time
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as List
from dataclasses import dataclass
from typing import Any

import pydantic_core

from tokenmill.engine.outputs import Completion, Piece
from tokenmill.sample.logprobs import TokenLogprobs
from tokenmill.serve.http.errors import NOT_SPELLED, ApiError, Json, Refusals, Spelled
from tokenmill.serve.http.streams import to_line
from tokenmill.serve.loop.resumption import Resumption
from tokenmill.serve.ollama.names import nanoseconds, now
from tokenmill.serve.openai.choices import logprob_entries
from tokenmill.serve.request.ask import Ask
from tokenmill.serve.request.prepare import Prepared
from tokenmill.serve.request.reading import Reading
from tokenmill.serve.request.writer import Writer, finite
from tokenmill.text.parts import CallArguments, CallBegin, Part, TextPart, ThinkingPart
from tokenmill.text.token_bytes import Spelling

ABSENT = (
    "there is no such route here: one model is served, and no model is made, copied, deleted or uploaded over HTTP; "
    "`tokenmill --help` has the commands"
)
STAYS = "the model stays loaded as long as the server runs"


class OllamaRefusals(Refusals):
    """The form of errors of /api, as Ollama has it: one text, which is a line of its own in a stream."""

    def body(self, error: ApiError, spelled: Spelled = NOT_SPELLED) -> Json:
        return {"error": self.message(error, spelled)}

    def event(self, body: Json, begun: Json) -> bytes:
        return to_line(body) + b"\n"


REFUSALS = OllamaRefusals()


@dataclass(frozen=True)
class Own:
    """The facts that an answer needs beside, see Ask.own. model: as the client names it. arrived_s: time.perf_counter
    then.

    has_context: whether the answer has the ids of its text. may_call: whether it may call functions.
    """

    model: str
    arrived_s: float
    has_context: bool = False
    may_call: bool = False


class OllamaWriter(Writer):
    """A writer for both routes."""

    prefix, refusals = "ollama-", REFUSALS

    def __init__(self, ask: Ask, prepared: Prepared, *more: Any) -> None:
        super().__init__(ask, prepared, *more)
        self._own: Own = ask.own
        self._ready_s = time.perf_counter()
        self._reading = Reading(prepared.readers.make())
        self._spelling: Spelling | None = None
        self._open: int | None = None  # the call that has not ended
        self._num_calls = 0  # that were given
        self._blanks = ""  # that may be the space before a call
        self._before_s = 0.0  # the time of another server that has begun this

    @property
    def begun(self) -> Json:
        return super().begun | {"keep_alive": self.keep_alive}

    @property
    def keep_alive(self) -> bytes:  # type: ignore[override]
        """See Writer: an object without text, since a line that is no JSON ends the stream for some clients."""
        return self.event(self._object(_Said()))

    def progress(self, told: Json) -> bytes:
        return self.keep_alive

    def resume(self, written: Resumption, texts: Mapping[int, str]) -> None:
        super().resume(written, texts)
        self._before_s = written.elapsed_s

    def answer(self, completions: List[Completion]) -> Json:
        (done,) = completions
        self._count(done.tokens)
        said = self._said(self._reading.take(Piece(done.text, done.tokens, done)), done)
        return self._object(said) | self._logprobs(done.tokens, done.logprobs) | self._end(done)

    def chunks(self, piece: Piece) -> Iterator[Json]:
        self._count(piece.tokens)
        said = self._said(self._reading.take(piece), piece.done)
        logprobs = self._logprobs(piece.tokens, piece.logprobs)
        if said.is_any or logprobs:
            yield self._object(said) | logprobs
        if piece.done is not None:
            yield self._object(_Said()) | self._end(piece.done)

    def event(self, value: Json) -> bytes:
        return to_line(value) + b"\n"

    def _pass_over(self, piece: Piece) -> None:
        self._said(self._reading.take(piece), None)
        wants_logprobs = self._prepared.request.sequences[0].choosing.params.logprobs is not None
        for token in piece.tokens if wants_logprobs else ():
            self._spell().go_on(token)

    # ---- what is said

    def _said(self, parts: list[Part], done: Completion | None) -> "_Said":
        said = _Said()
        for part in parts:
            if isinstance(part, TextPart):
                self._close(said)
                self._add_text(part.text, said)
            elif isinstance(part, ThinkingPart):
                said.thinking += part.text
            elif isinstance(part, CallBegin):
                self._close(said)
                self._open, self._blanks = part.index, ""
            else:
                assert isinstance(part, CallArguments)
        if done is not None:
            self._close(said)
            if not self._reading.calls:
                said.text, self._blanks = said.text + self._blanks, ""
        return said

    def _add_text(self, text: str, said: "_Said") -> None:
        """Add text; blanks wait for the text behind them, where a call may come instead."""
        text = self._blanks + text
        end = len(text.rstrip()) if self._own.may_call else len(text)
        said.text, self._blanks = said.text + text[:end], text[end:]

    def _close(self, said: "_Said") -> None:
        """Give the call that has ended, if there is one."""
        if self._open is None:
            return
        index, self._open = self._open, None
        name, pieces = self._reading.calls[index]
        if (arguments := _arguments("".join(pieces))) is None:
            said.text += f'{{"name": {json.dumps(name)}, "arguments": {"".join(pieces)}'
            return
        function = {"index": self._num_calls, "name": name, "arguments": arguments}
        call = self._prepared.readers.call_id(self._reading.ids[index], self._id, index)
        said.calls.append({"id": call, "function": function})
        self._num_calls += 1

    # ---- objects

    def _object(self, said: "_Said") -> Json:
        return {"model": self._own.model, "created_at": now(), **self._told(said), "done": False}

    def _told(self, said: "_Said") -> Json:
        raise NotImplementedError

    def _end(self, done: Completion) -> Json:
        """Return the fields of the last object: why the text has ended, and times. Cached tokens count as read."""
        total_s = time.perf_counter() - self._own.arrived_s
        load_s = self._ready_s - self._own.arrived_s
        prompt_s = done.timing.ttft_s
        decode_s = sum(done.timing.itl_s) or total_s - load_s - prompt_s  # of a single token: what is left
        total_s, decode_s = total_s + self._before_s, decode_s + self._before_s
        return {
            "done": True,
            "done_reason": "length" if done.finish_reason == "length" else "stop",
            **({"context": [*self._prepared.prompts[0], *done.tokens]} if self._own.has_context else {}),
            "total_duration": nanoseconds(total_s),
            "load_duration": nanoseconds(load_s),
            "prompt_eval_count": self._num_prompt,
            "prompt_eval_duration": nanoseconds(prompt_s),
            "eval_count": self._num_new,
            "eval_duration": nanoseconds(decode_s),
            **self._warning_fields(),
            **self._token_ids(done),
        }

    def _logprobs(self, tokens: List[int], entries: List[TokenLogprobs] | None) -> Json:
        if not entries:
            return {}
        found = logprob_entries(self._spell(), tokens, entries)
        return {"logprobs": [_without_empty(entry) for entry in found]}

    def _spell(self) -> Spelling:
        """Return the spelling of the next token."""
        if self._spelling is None:
            skips = self._ask.sampling["skip_special_tokens"]
            self._spelling = Spelling(self._tokenizer, self._prepared.prompts[0], skip_special=skips)
        return self._spelling


class OllamaChatWriter(OllamaWriter):
    """The writer of /api/chat."""

    def _told(self, said: "_Said") -> Json:
        message: Json = {"role": "assistant", "content": said.text}
        message |= {"thinking": said.thinking} if said.thinking else {}
        return {"message": message | ({"tool_calls": said.calls} if said.calls else {})}


class OllamaGenerateWriter(OllamaWriter):
    """The writer of /api/generate."""

    def _told(self, said: "_Said") -> Json:
        return {"response": said.text} | ({"thinking": said.thinking} if said.thinking else {})


class _Said:
    """The contents of one object: text, thinking, and calls that have ended."""

    def __init__(self) -> None:
        self.text, self.thinking = "", ""
        self.calls: list[Json] = []

    @property
    def is_any(self) -> bool:
        return bool(self.text or self.thinking or self.calls)


def loaded(model: str, fields: Json, wants_unload: bool, may_go: bool) -> Json:
    """Make the answer to a request that asks for no text, but whether the model is loaded. fields: of text. may_go: a
    server of several models unloads it.
    """
    head = {"model": model, "created_at": now(), **fields, "done": True}
    if not wants_unload:
        return head | {"done_reason": "load"}
    return head | {"done_reason": "unload"} | ({} if may_go else {"warnings": [STAYS]})


def _arguments(text: str) -> Json | None:
    """Read the arguments of a call; None for one that was cut."""
    try:
        found = pydantic_core.from_json(text)
    except ValueError:
        return None
    return finite(found) if isinstance(found, dict) else None


def _without_empty(entry: Json) -> Json:
    """Return an entry without an empty list of others, as Ollama leaves it out."""
    return {name: value for name, value in entry.items() if value != []}
