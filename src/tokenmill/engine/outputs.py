"""The results: Piece while a sequence grows, Completion when it has ended, Timing of both, and the Tracker that makes
them.

A Tracker follows one sequence from submission to its end: it turns accepted tokens into text that is safe to show,
notices stop strings, and keeps the clock readings from which every figure is derived.
"""

import asyncio
import math
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Mapping
from collections.abc import Sequence as List
from contextlib import AbstractAsyncContextManager as AsyncContextManager
from contextlib import AbstractContextManager as ContextManager
from dataclasses import dataclass, field
from hashlib import sha256
from inspect import GEN_CLOSED, GEN_RUNNING, getgeneratorstate
from typing import Any, NoReturn, Protocol

from tokenmill.engine.thread import EngineThread
from tokenmill.errors import ReceiptError
from tokenmill.sample.logprobs import TokenLogprobs
from tokenmill.schedule.sequence import WHOLE, Sequence
from tokenmill.text.detokenize import Detokenizer

MAX_UNDECODED = 32
"""Tokens that wait to be decoded together, at a fraction of the cost of decoding one by one."""

MAX_SHOWN = 80
"""Characters of a text in a completion's repr."""


def hash_tokens(tokens: List[int]) -> str:
    """Compute the first 8 hex digits of SHA-256 over the ids as comma-separated decimals, as any engine can do."""
    return sha256(",".join(map(str, tokens)).encode()).hexdigest()[:8]


class Origin(Protocol):
    """The prompt, settings and model of a text, noted when it ended."""

    def receipt(self, text: str, tokens: List[int], finish_reason: str, stop_reason: int | str | None) -> Any:
        """Make the Receipt of the text. ReceiptError where it cannot have one."""


class Ended(Protocol):
    """The port that is told of each finished text and checks receipts later: engine/verify.py answers it."""

    @property
    def model(self) -> Mapping[str, Any]:
        """Describe the model, with the digests of its files, read at the first use. ReceiptError without files."""

    def note(self, sequence: Sequence) -> Origin:
        """Note what a sequence was computed from, when it ends."""

    def verify(self, core: Any, receipt: Any) -> Any:
        """Check a receipt with that Core; see Engine.verify."""

    def verify_each(self, core: Any, receipts: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        """Check several receipts; see Engine.verify_each."""


@dataclass(frozen=True)
class Timing:
    """Seconds that a completion took. ttft_s: submission to first token. itl_s: gaps between the tokens after it.
    total_s: their sum. Tokens with which a request was resumed do not count.
    """

    ttft_s: float
    itl_s: tuple[float, ...]

    @property
    def total_s(self) -> float:
        """Add up the seconds from the submission to the last token."""
        return self.ttft_s + sum(self.itl_s)

    @property
    def tokens_per_s(self) -> float:
        """Divide the number of tokens after the first by the time they took; 0 when there is only one token."""
        decode_s = sum(self.itl_s)
        return len(self.itl_s) / decode_s if decode_s else 0.0


@dataclass(frozen=True, repr=False)
class Completion:
    """One finished sequence.

    tokens: the new ids only, with the end-of-sequence token if it ended the text. finish_reason: "eos" for the model's
    own end, "stop" for a stop text or id, "length" for max_new_tokens or the context. stop_reason: which stop text or
    id it was. others: the other completions of the same prompt, in a call with n above 1; their `others` are empty.
    origin: the source of `receipt`.
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: str
    timing: Timing
    num_prompt_tokens: int
    seed: int
    logprobs: tuple[TokenLogprobs, ...] | None = None
    stop_reason: int | str | None = None
    others: tuple["Completion", ...] = ()
    origin: Origin | None = field(default=None, compare=False)

    def receipt(self) -> Any:
        """Make the Receipt, which tells how this text was computed; `Engine.verify` and `tokenmill verify` check it.

        An engine's first receipt reads the model's files for their digests. ReceiptError where there can be no receipt.
        """
        if self.origin is None:
            raise ReceiptError("this completion was not made by an engine, or was pickled since, so it has no receipt")
        return self.origin.receipt(self.text, self.tokens, self.finish_reason, self.stop_reason)

    @property
    def completions(self) -> tuple["Completion", ...]:
        """List all n completions of the prompt, this one first: `for each in done.completions` is right for every n."""
        return (self, *self.others)

    @property
    def texts(self) -> tuple[str, ...]:
        """List the texts of `completions`."""
        return tuple(each.text for each in self.completions)

    def __repr__(self) -> str:
        text = self.text if len(self.text) <= MAX_SHOWN else f"{self.text[:MAX_SHOWN]} …"
        return f"<tokenmill.Completion {text!r}, {len(self.tokens)} tokens, {self.finish_reason}, hash {self.hash}>"

    @property
    def hash(self) -> str:
        return hash_tokens(self.tokens)


@dataclass(frozen=True)
class Piece:
    """The new part of one continuation: text that is safe to show, tokens, and their log-probabilities if wanted.

    done: the completion, on the last piece. index: which of a request's n continuations it belongs to.
    """

    text: str
    tokens: tuple[int, ...]
    done: Completion | None = None
    logprobs: tuple[TokenLogprobs, ...] | None = None
    index: int = 0


@dataclass
class Tracker:
    """The follower of one sequence: it turns tokens into text that is safe to show, and keeps what a completion
    reports.

    Tokens are decoded when text is taken, at the latest when MAX_UNDECODED are waiting, and one by one if the request
    has stop strings. started_s: the clock at submission. index: see Piece. deadline_s: see Request. ended: see Ended.
    """

    sequence: Sequence
    detokenizer: Detokenizer | None
    started_s: float
    index: int = 0
    deadline_s: float = math.inf
    ended: Ended | None = None
    tokens: list[int] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)
    logprobs: dict[int, TokenLogprobs | None] = field(default_factory=dict)  # by position
    completion: Completion | None = None
    error: BaseException | None = None
    num_emitted: int = 0  # tokens with which the request was resumed, see Core.request; they have no times
    _num_shown: int = field(default=0, init=False)  # characters of the text that were taken
    _num_taken: int = field(default=0, init=False)  # tokens that were taken
    _is_over: bool = field(default=False, init=False)  # whether the last piece was taken, or the error raised

    @property
    def has_ended(self) -> bool:
        """Say whether the sequence has ended: with a completion or an error, also after these were taken."""
        return self.completion is not None or self.error is not None or self._is_over

    def resume(self) -> None:
        """Begin after the tokens that the sequence has beyond its prompt, as if they and their text had been taken."""
        sequence = self.sequence
        if not (tokens := sequence.tokens[sequence.num_prompt_tokens :]):
            return
        self.tokens, self.num_emitted = tokens, len(tokens)
        sequence.finish_reason = sequence.finish_reason or sequence.end_reason
        if self._decode():
            sequence.finish_reason = "stop"
        if sequence.finish_reason is not None:
            self.finish(sequence.finish_reason)
        self._num_shown, self._num_taken, self._is_over = len(self._text), len(self.tokens), self.has_ended

    def push(self, tokens: List[int], now_s: float) -> bool:
        """Append accepted tokens; True if a stop string has ended the text."""
        self.times_s += [now_s] * len(tokens)
        self.tokens += tokens
        if self.detokenizer is None:
            return False
        is_due = len(self.tokens) - self.detokenizer.num_tokens_used >= MAX_UNDECODED
        return (is_due or self.detokenizer.has_stops) and self._decode()

    def take(self) -> Piece | None:
        """Take the new piece, or None; raise the error that has ended the sequence, once."""
        if self._is_over:
            return None
        if self.error is not None:
            self.raise_error()
        done = self.completion
        self._decode()
        text = self._text[self._num_shown :]
        tokens, first = tuple(self.tokens[self._num_taken :]), self._num_taken
        self._num_shown += len(text)
        self._num_taken, self._is_over = len(self.tokens), done is not None
        if not (text or tokens or done):
            return None
        return Piece(text, tokens, done, self._logprobs(first, len(self.tokens)), self.index)

    def raise_error(self) -> NoReturn:
        """Raise the error that has ended the sequence, and forget it."""
        try:
            assert self.error is not None, "it has failed"
            raise self.error
        finally:
            self.forget_error()

    def forget_error(self) -> None:
        """Forget an error that was raised, if there is one. Its traceback would hold the waiting caller's frames, and
        the frames of the step with their tensors, until the garbage collector finds the circle.
        """
        if self.error is not None:
            self.error, self._is_over = None, True

    @property
    def _text(self) -> str:
        return self.detokenizer.text if self.detokenizer is not None else ""

    def _logprobs(self, first: int, last: int) -> tuple[TokenLogprobs, ...] | None:
        """Look up the log-probabilities of the generated tokens [first, last); None if the request wants none."""
        if self.sequence.choosing.params.logprobs is None:
            return None
        start = self.sequence.num_prompt_tokens
        noted = (self.logprobs.get(position) for position in range(start + first, start + last))
        return tuple(entry for entry in noted if entry is not None)

    def _decode(self, final: str | None = None) -> bool:
        """Decode the tokens that are not decoded yet. True if a stop string was found; tokens after it are removed.

        final: the finish reason, if the text ends here. In a session others may follow a limit: then the text that is
        held back is shown with them.
        """
        if self.detokenizer is None:
            return False
        # The token that stops a sequence is not part of the text.
        end = len(self.tokens) - (self.sequence.finish_reason in ("eos", "stop"))
        self.detokenizer.push(self.tokens[self.detokenizer.num_tokens_used : end])
        if final is not None and not (final == "length" and self.sequence.keep):
            self.detokenizer.finish(cut=final == "length")
        if self.detokenizer.stopped is None:
            return False
        num_used = self.detokenizer.num_tokens_used
        del self.tokens[num_used:], self.times_s[max(num_used - self.num_emitted, 0) :]
        return True

    def finish(self, reason: str) -> None:
        """Flush the text that was held back and make the completion. A stop string may be found only now.

        A character that a limit cuts is left out: its bytes would come back as another one, with the next prompt.
        """
        if self._decode(final=reason):
            reason = "stop"
        gaps = tuple(b - a for a, b in zip(self.times_s, self.times_s[1:], strict=False))
        first_s = self.times_s[0] - self.started_s if self.times_s else 0.0
        self.completion = Completion(
            self._text,
            tuple(self.tokens),
            "stop" if reason == WHOLE else reason,
            Timing(first_s, gaps),
            self.sequence.num_prompt_tokens,
            self.sequence.choosing.seed,
            self._logprobs(0, len(self.tokens)),
            self._stop_reason() if reason == "stop" else None,
            origin=None if self.ended is None else self.ended.note(self.sequence),
        )

    def _stop_reason(self) -> int | str:
        stopped = self.detokenizer.stopped if self.detokenizer is not None else None
        return self.tokens[-1] if stopped is None else stopped


class Stream(Iterator[Piece], AsyncIterator[Piece], ContextManager["Stream"], AsyncContextManager["Stream"]):
    """An iterator of pieces, made by Engine.stream and Session.stream. `close`, or its context, ends its sequences."""

    def __init__(self, pieces: Generator[Piece, None, None], cancel: Callable[[], None], thread: EngineThread) -> None:
        """Keep what the stream needs. cancel: ends the wait of a thread for the next piece. thread: makes the steps."""
        self._pieces, self._cancel, self._thread = pieces, cancel, thread
        self._lock = threading.RLock()  # a generator must not be closed while another thread is within it

    def __next__(self) -> Piece:
        with self._lock:
            return next(self._pieces)

    def close(self) -> None:
        """End the sequences and release their blocks. Pieces that were read stay valid.

        A thread that waits for the next piece meanwhile gets RequestError after the step that is being made.
        """
        self._cancel()
        if self._lock.acquire(blocking=not self._thread.is_current):  # an observer would wait for a reader of its step
            try:
                if getgeneratorstate(self._pieces) != GEN_RUNNING:  # running: a signal handler has interrupted `next`
                    self._pieces.close()
            finally:
                self._lock.release()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<tokenmill.Stream {'ended' if getgeneratorstate(self._pieces) == GEN_CLOSED else 'open'}>"

    async def __anext__(self) -> Piece:
        try:
            if (piece := await asyncio.to_thread(next, self, None)) is not None:
                return piece
        except BaseException:  # the task was cancelled, while its thread still waits
            await self.aclose()
            raise
        raise StopAsyncIteration

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the stream; it waits for a step that is being made."""
        await asyncio.to_thread(self.close)
