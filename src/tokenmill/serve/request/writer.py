"""The base of writers: each protocol writes a continuation with one, whole or as the events of a stream.

Texts of events, joined, are the text of the same request without streaming.
"""

import json
import secrets
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as List
from hashlib import sha256
from typing import Any

from tokenmill.engine.outputs import Completion, Piece
from tokenmill.loader.loaded import LoadedModel
from tokenmill.serve.http.errors import PLAIN, Json, Refusals
from tokenmill.serve.http.streams import KEEP_ALIVE, to_line
from tokenmill.serve.loop.resumption import Resumption
from tokenmill.serve.request.ask import Ask
from tokenmill.serve.request.prepare import Prepared
from tokenmill.text.tokenizer import Tokenizer

LARGEST = sys.float_info.max


def finite(value: Any) -> Any:
    """Replace numbers beyond the largest float, such as 1e999, by it: JSON could not say them again."""
    if isinstance(value, float):
        return min(max(value, -LARGEST), LARGEST)
    if isinstance(value, list):
        return [finite(each) for each in value]
    return {name: finite(each) for name, each in value.items()} if isinstance(value, dict) else value


def system_fingerprint(loaded: LoadedModel) -> str:
    """Make `system_fingerprint` of OpenAI's API. It is another one where a text may be another one: with another model,
    chat template, program, format or version.
    """
    facts = {name: value for name, value in loaded.compatibility.items() if name != "model"}  # which may be moved
    facts["chat_templates"] = [] if loaded.tokenizer is None else loaded.tokenizer.templates
    return f"fp_{sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]}"


def with_adapter(fingerprint: str, adapter: Any) -> str:
    """Make the fingerprint of texts that an adapter computes, or none does."""
    return fingerprint + ("" if adapter is None else f"_{adapter.digest.hex()[:8]}")


class Writer(ABC):
    """The writer of the answer to one request. An answer and its events have the same id, time and model.

    prefix: what ids begin with. refusals: the form of its errors. ending: the bytes after the last event. keep_alive:
    the bytes for a stream on which nothing has come for a while.
    """

    prefix: str
    refusals: Refusals = PLAIN
    ending = b""
    keep_alive = KEEP_ALIVE

    def __init__(self, ask: Ask, prepared: Prepared, model: str, fingerprint: str, tokenizer: Tokenizer | None) -> None:
        self._ask, self._prepared, self._tokenizer = ask, prepared, tokenizer
        self._model, self._fingerprint = model, fingerprint
        self._id, self._created = f"{self.prefix}{secrets.token_hex(12)}", int(time.time())
        self._warnings = prepared.warnings
        self._num_new = 0

    @property
    def id(self) -> str:
        """The id of the answer."""
        return self._id

    @property
    def begun(self) -> Json:
        """The facts that another answer needs to be this one: its id, its time, and its maker's fingerprint."""
        return {"id": self._id, "created": self._created, "system_fingerprint": self._fingerprint}

    def resume(self, written: Resumption, texts: Mapping[int, str]) -> None:
        """Go on with an answer of which events were written by another server. texts: by continuation."""
        self._id = str(written.begun.get("id", self._id))
        self._created = int(written.begun.get("created", self._created))
        self._warnings = [] if written.is_opened else self._warnings
        for index, tokens in written.tokens.items():
            self._count(tokens)
            if index not in written.ended:
                self._pass_over(Piece(texts.get(index, ""), tuple(tokens), index=index))

    @abstractmethod
    def answer(self, completions: List[Completion]) -> Json:
        """Write all continuations."""

    is_enough = False
    """The answer needs no further pieces, though the text has not ended."""

    def note(self, piece: Piece) -> None:
        """Take notice of a piece of an answer that is written whole."""
        return

    def opening(self) -> Iterator[Json]:
        """Yield events that are sent before the first piece."""
        yield from ()

    @abstractmethod
    def chunks(self, piece: Piece) -> Iterator[Json]:
        """Yield the events for what is new of one continuation."""

    def progress(self, told: Json) -> bytes:
        """Write how far the prompt is: as an event where it was asked for, else as a comment; see PrefillProgress."""
        if self.wants_progress and (chunk := self._progress_chunk) is not None:
            return self.event({**chunk, "prompt_progress": told})
        return f": prompt {told['processed']} of {told['total']} tokens\n\n".encode()

    @property
    def wants_progress(self) -> bool:
        """Tell whether the progress of the prompt was asked for."""
        return self._ask.wants_progress

    @property
    def _progress_chunk(self) -> Json | None:
        """The event without text to which the progress is added; None where the protocol has none."""
        return None

    def closing(self) -> Iterator[Json]:
        """Yield events after the last piece."""
        yield from ()

    def event(self, value: Json) -> bytes:
        """Write an event as bytes."""
        return b"data: " + to_line(value) + b"\n\n"

    def failure(self, error: Exception) -> bytes:
        """Write the last event of a stream that has failed."""
        return self.refusals.event_of(error, {})

    @abstractmethod
    def _pass_over(self, piece: Piece) -> None:
        """Note a piece that was written, where what follows depends on it."""

    def _count(self, tokens: List[int]) -> None:
        self._num_new += len(tokens) * (not self._prepared.only_prompts)

    def _warning_fields(self) -> Json:
        return {"warnings": self._warnings} if self._warnings else {}

    def _token_ids(self, done: Completion) -> Json:
        """Write the ids of the only prompt and of its continuation, if they are wanted."""
        if not self._ask.wants_ids:
            return {}
        return {"prompt_token_ids": self._prepared.prompts[0], "token_ids": list(done.tokens)}

    @property
    def _num_prompt(self) -> int:
        return sum(map(len, self._prepared.prompts))

    @property
    def _num_cached(self) -> int:
        return sum(each.num_cached_tokens or 0 for each in self._prepared.request.sequences[:: self._prepared.num_each])
