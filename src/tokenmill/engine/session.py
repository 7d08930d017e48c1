"""A session: a text that grows, whose tokens and rows in the cache are kept from call to call.

Sessions of one engine share blocks until one of them writes. When blocks run out, the blocks of an idle session are
taken, and its rows are computed again when it next runs: the same text, only later. A session frees its blocks when it
is closed or garbage-collected.
"""

from collections.abc import Callable, Generator
from dataclasses import asdict, replace
from functools import partial, wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack, cast

from torch import Tensor

from tokenmill.engine.core import Core, Held
from tokenmill.engine.outputs import Completion, Piece, Stream
from tokenmill.engine.requests import Prompt, Request, plain, token_ids
from tokenmill.engine.saved import read_saved, snapshot_of, write_snapshot
from tokenmill.errors import RequestError
from tokenmill.schedule.sequence import Sequence
from tokenmill.settings.sampling_params import SamplingKeywords, SamplingParams
from tokenmill.value_reader import path_of

P = ParamSpec("P")
T = TypeVar("T")

PER_CALL = ("max_new_tokens", "min_new_tokens", "n")
"""Settings that are not kept from one call to the next."""


def in_engine(method: Callable[Concatenate["Session", P], T]) -> Callable[Concatenate["Session", P], T]:
    """Have a method called in the engine's thread, between two steps."""

    @wraps(method)
    def call(self: "Session", *args: P.args, **given: P.kwargs) -> T:
        return self.core.call(lambda: method(self, *args, **given))

    return cast("Callable[Concatenate[Session, P], T]", call)


class Session:
    """A text that grows, made by Engine.session and Engine.open_session.

        session = engine.session("Once upon a time")
        session.generate(max_new_tokens=20)
        other = session.fork()
        session.save("tale.kv")

    params: the settings of the last call, from which the next one starts. notes: any JSON object, saved with it.
    """

    def __init__(
        self, core: Core, params: SamplingParams | None = None, salt: bytes = b"", adapter: Any = None
    ) -> None:
        core.check_open()
        self.core, self.params = core, params or core.inputs.params({})
        self.notes: dict[str, Any] = {}
        self._end: int | None = None  # where the last answer ended; tokens after it are still to be removed
        self._answer_from: int | None = None  # where the last prompt ended; without a place, at the end of the text
        self._constrained_from = 0  # where the last constraint began, if that is after `_answer_from`
        self._stream: object | None = None  # the stream that is being read
        self._sequence = core.inputs.kept([], salt=salt, adapter=adapter)
        self._held = Held(core, self._sequence)
        core.call(partial(core.scheduler.park, self._sequence))

    @property
    def tokens(self) -> tuple[int, ...]:
        """List all tokens so far, prompts and answers."""
        # This may be asked in the midst of a step: the sequence is not changed, and unread tokens are left out.
        return tuple(token for token in self._sequence.tokens[: self._end] if token >= 0)

    @property
    def text(self) -> str:
        """Decode all tokens, special tokens included. RequestError without a tokenizer."""
        tokenizer = self.core.loaded.tokenizer
        if tokenizer is None:
            raise RequestError("this model has no tokenizer: read the tokens")
        return tokenizer.decode(self.tokens, skip_special=False)

    @property
    def adapter(self) -> Any:
        """Return the adapter that computes the text, or None."""
        return self._sequence.kept.adapter

    @property
    def num_cached(self) -> int:
        """Count the tokens whose rows are in the cache, or in the file that the session was opened from."""
        sequence, end = self._sequence, self._end
        if end is None:
            return max(sequence.kept.num_computed, sequence.kept.num_saved)
        return max(min(sequence.kept.num_computed, max(end - 1, 0)), min(sequence.kept.num_saved, end))

    def __len__(self) -> int:
        return len(self.tokens)

    def __repr__(self) -> str:
        state = f"{len(self)} tokens, {self.num_cached} computed" if self._held.is_held else "closed"
        return f"<tokenmill.Session {state}>"

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def append(self, prompt: Prompt) -> None:
        """Append text or token ids. They are computed with the next call that needs them."""
        self.edit(len(self), prompt)

    def edit(self, position: int, prompt: Prompt) -> None:
        """Put `prompt` in the place of everything from `position` on. A refusal changes nothing."""
        if type(place := plain(position)) is not int or not 0 <= place <= len(self):
            raise RequestError(f"edit at {position!r}: this session has tokens 0 to {len(self)}")
        tokens = self.core.inputs.encode(prompt, after=self._open().tokens[:place])
        self.core.inputs.check_length(place + len(tokens))
        self._put(place, tokens)

    @in_engine
    def _put(self, place: int, tokens: list[int]) -> None:
        sequence = self._open()
        if place < len(sequence.tokens):
            self.core.scheduler.rewind(sequence, place)
        sequence.tokens.extend(tokens)
        self._answer_from = len(sequence.tokens)

    def generate(
        self, prompt: Prompt | None = None, params: SamplingParams | None = None, **settings: Unpack[SamplingKeywords]
    ) -> Completion:
        """Append `prompt`, if there is one, and continue the text; the answer becomes part of the session.

        `settings` are fields of SamplingParams. Settings that are not given, the seed too, are as in `params`, or else
        as in the last call, so that a text is the same in one call and in several. Where a limit ends a call, a last
        part that could still become another character or a stop text is shown by the call that continues the text.
        """
        *_, last = self.stream(prompt, params, **settings)
        assert last.done is not None, "a stream ends with its completion"
        return last.done

    def stream(
        self, prompt: Prompt | None = None, params: SamplingParams | None = None, **settings: Unpack[SamplingKeywords]
    ) -> Stream:
        """Generate piece by piece. If the stream is closed early, the session keeps the tokens that were yielded."""
        sequence = self._open()
        last = replace(self.params, **{name: getattr(SamplingParams, name) for name in PER_CALL})
        params = self.core.inputs.params(settings, last if params is None else params)
        if params.n != 1:
            raise RequestError(f"a session has one text: n = {params.n} needs Engine.generate, or forks")
        tokens = list(sequence.tokens)
        if prompt is not None:
            tokens += self.core.inputs.encode(prompt, after=tokens)
        if not tokens:
            raise RequestError("the session is empty: give a prompt")
        start = len(tokens) if prompt is not None else self._penalties_from
        begin = max(start, self._constrained_from) if params.is_constrained_as(self.params) else len(tokens)
        (wanted,) = self.core.inputs.sequences(tokens, params, constrained_from=min(begin, len(tokens)))  # may refuse
        self.core.scheduler.check_length(wanted.max_tokens)
        wanted.choosing = replace(wanted.choosing, penalties_from=start)
        wanted.earlier = (start, self.params) if start < len(tokens) else None
        self.params = replace(params, seed=wanted.choosing.seed)
        request = Request([sequence])
        pieces = self._follow(request, wanted, len(sequence.tokens))
        return Stream(pieces, partial(self.core.cancel, request), self.core.thread)

    def _follow(self, request: Request, wanted: Sequence, before: int) -> Generator[Piece, None, None]:
        sequence, stream = self._sequence, object()
        shown: int | None = None
        before_this = self._answer_from, self._constrained_from

        def prepare() -> None:
            if self._open().tokens != wanted.tokens[:before]:
                raise RequestError("the session has changed since this stream was asked for: ask again")
            self._stream, self._answer_from = stream, wanted.choosing.penalties_from
            self._constrained_from = wanted.choosing.constrained_from or 0
            sequence.tokens, sequence.num_prompt_tokens = wanted.tokens, wanted.num_prompt_tokens
            sequence.max_tokens, sequence.choosing = wanted.max_tokens, wanted.choosing
            sequence.earlier = wanted.earlier

        try:
            for piece in self.core.follow(request, prepare):
                shown = len(piece.done.tokens) if piece.done else (shown or 0) + len(piece.tokens)
                if piece.done:  # noted now: when this iterator is collected, another answer may have begun
                    self._end, self._stream = wanted.num_prompt_tokens + shown, None
                yield piece
        finally:
            if self._stream is stream:
                if shown is None:
                    self._answer_from, self._constrained_from = before_this
                # `_settled` cuts what was not shown, such as drafts or a stop text: here a step may be in the midst.
                self._end = before if shown is None else wanted.num_prompt_tokens + shown
                self._stream = None

    @property
    def _penalties_from(self) -> int:
        """Find the end of the last prompt: penalties count from there, the same in one call and in several."""
        length = len(self._sequence.tokens)
        return length if self._answer_from is None else min(self._answer_from, length)

    @in_engine
    def _settled(self) -> Sequence:
        """Cut tokens that lie after the end of the last answer; return the sequence."""
        if self._end is not None:
            self.core.scheduler.park(self._sequence)
            self.core.scheduler.rewind(self._sequence, min(self._end, len(self._sequence.tokens)))
            self._sequence.score_from = None
            self._end = None
        return self._sequence

    def prefill(self) -> None:
        """Compute the rows of all tokens. The next call feeds the last token again, since it needs the logits."""
        self._compute(lambda: self.num_cached)

    def load(self) -> None:
        """Do what `prefill` does, and load rows that lie in a file now, not with the next call."""
        self._compute(lambda: self._sequence.kept.num_computed)

    @in_engine
    def begin_load(self, client: bytes = b"") -> Callable[[], bool]:
        """Queue what `load` waits for, so that steps which are made for others do it. The function that is returned
        says whether that has ended; until then the session can do nothing else. client: see Sequence.
        """
        return self._queued(lambda: self._sequence.kept.num_computed, client)

    def _queued(self, num_there: Callable[[], int], client: bytes = b"") -> Callable[[], bool]:
        """Queue the sequence to compute or load all rows, unless they are there; see begin_load."""
        sequence = self._open()
        if num_there() >= len(sequence.tokens) - 1 or not self.core.scheduler.cache:
            return lambda: True
        self._end = length = len(sequence.tokens)  # `_settled` goes back to here if this breaks off
        sequence.score_from, sequence.max_tokens, sequence.client = length, length, client
        self.core.enqueue(sequence)

        def is_over() -> bool:
            self.core.check_scored(sequence)
            return sequence.finish_reason is not None

        return is_over

    def _compute(self, num_there: Callable[[], int], then: Callable[[], T | None] = lambda: None) -> T | None:
        """Compute or load all rows, unless they are there; then call a function, before another step is made."""

        def poll() -> tuple[T | None] | None:
            if not is_over():
                return None
            self._settled()
            return (then(),)

        try:
            is_over = self.core.call(lambda: self._queued(num_there))
            return self.core.wait(poll)[0]
        finally:
            self._settled()

    @in_engine
    def fork(self) -> "Session":
        """Make another session with the same past. Rows that both have are stored once."""
        other = Session(self.core, self.params)
        self.core.scheduler.share(self._open(), other._open())
        other.notes, other._answer_from = dict(self.notes), self._answer_from
        other._constrained_from = self._constrained_from
        return other

    @in_engine
    def rewind(self, num_tokens: int) -> None:
        """Keep the first `num_tokens` tokens and forget the others."""
        sequence = self._open()
        if type(place := plain(num_tokens)) is not int or not 0 <= place <= len(sequence.tokens):
            raise RequestError(f"rewind to {num_tokens!r} tokens: this session has 0 to {len(sequence.tokens)}")
        self.core.scheduler.rewind(sequence, place)

    def revise(self, tokens: list[int]) -> None:
        """Become exactly `tokens`; the rows of the common beginning stay computed."""
        tokens = token_ids(tokens, "value of `tokens`: that is a list of token ids")
        pairs = enumerate(zip(self._open().tokens, tokens, strict=False))
        alike = next((index for index, (old, new) in pairs if old != new), min(len(self), len(tokens)))
        if tokens[alike:]:
            self.edit(alike, tokens[alike:])
        else:
            self.rewind(alike)

    def save(self, path: str | Path) -> int:
        """Write tokens, rows and sampling settings to a file; return its bytes. Missing rows are computed first."""
        file = path_of(path)
        if not self._open().tokens:
            raise RequestError("the session is empty: there is nothing to save")
        if not isinstance(self.notes, dict):
            raise RequestError(f"notes = {self.notes!r}: give a dict of what JSON has")
        snapshot = self._compute(lambda: self.num_cached, self._snapshot)
        assert snapshot is not None, "the rows are there"
        return write_snapshot(file, *snapshot)

    def _snapshot(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        facts = {
            "answer_from": self._penalties_from,
            "constrained_from": min(self._constrained_from, len(self._sequence.tokens)),
            "sampling": asdict(self.params),
            "notes": self.notes,
        }
        return snapshot_of(self.core.loaded, self._sequence, self.num_cached, facts)

    @classmethod
    def open(cls, core: Core, path: Path, convert: bool, salt: bytes = b"") -> "Session":
        """Do what Engine.open_session does. The rows are loaded when the session first runs; it takes blocks then."""
        core.check_open()
        saved, adapter = read_saved(core, path, convert)
        session = cls(core, saved.sampling, salt, adapter)
        try:
            session.notes = saved.notes
            session.append(saved.tokens)
            core.scheduler.check_length(len(saved.tokens))
            session._answer_from, session._constrained_from = saved.answer_from, saved.constrained_from
            if core.scheduler.cache:  # rows that are not its own are never shared with another text
                kept, span = session._open().kept, (saved.first_row, saved.num_rows)
                core.scheduler.memory.open_saved(kept, saved.sources, *span, saved.is_own)
        except BaseException:
            session.close()
            raise
        return session

    def close(self) -> None:
        """Give the blocks back; the session cannot be used any more."""
        self._held.release()

    @in_engine
    def _open(self) -> Sequence:
        if not self._held.is_held:
            raise RequestError("this session is closed")
        self.core.check_open()
        # In this order: a stream in another thread sets `_end` before it sets `_stream`.
        if self._stream is None and (sequence := self._settled()) in self.core.scheduler.parked:
            return sequence
        raise RequestError("this session is in the midst of an answer: read its stream to the end, or close it")
