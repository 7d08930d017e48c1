"""A text that grows: its tokens, and their rows in the cache, kept from call to call.

    session = engine.session("Once upon a time")
    session.generate(max_new_tokens=20)
    other = session.fork()
    session.rewind(4)
    session.save("tale.kv")

Sessions of one engine share blocks until one of them writes. When room runs out, those of a session that waits are
taken and computed again at its next turn: the same text, only later. Closing or losing a session frees its blocks.
"""

import weakref
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from tokenmill.cache.compatibility import whose
from tokenmill.cache.snapshot import Snapshot, read_snapshot, write_snapshot
from tokenmill.config import SamplingParams, as_keywords, from_keywords
from tokenmill.engine.engine import Engine
from tokenmill.engine.outputs import Completion, Piece
from tokenmill.engine.requests import Prompt
from tokenmill.engine.scoring import until_scored
from tokenmill.errors import CapacityError, RequestError, SnapshotError
from tokenmill.schedule.sequence import Sequence

__all__ = ["Session", "open_session"]

PER_CALL = ("max_new_tokens", "min_new_tokens", "n")
"""Settings that a call does not hand on to the next."""

REQUEST = ("tokens", "num_prompt_tokens", "max_tokens", "params", "seed", "stop_ids", "counted_from")
"""What of a sequence belongs to what was asked for, and not to its rows."""


class Session:
    """Made by Engine.session and Engine.open.

    params: the sampling settings of the last call, which the next one starts from. notes: whatever JSON can hold, kept
    with the session when it is saved.
    """

    def __init__(self, engine: Engine, sequence: Sequence | None = None, params: SamplingParams | None = None) -> None:
        self.engine, self.params = engine, params or engine.intake.params({})
        self.notes: dict[str, Any] = {}
        self._end: int | None = None  # where the last answer ended; what lies behind is yet to be cut off
        self._sequence = engine.intake.kept([]) if sequence is None else sequence
        with engine.alone():
            engine.scheduler.park(self._sequence)
        self._finalizer = weakref.finalize(self, _let_go, engine, self._sequence)

    # ---- what is there

    @property
    def tokens(self) -> tuple[int, ...]:
        """All tokens so far, prompts and answers."""
        return tuple(self._settled().tokens)

    @property
    def text(self) -> str:
        """The same as text; special tokens are shown. RequestError without a tokenizer."""
        if self.engine.tokenizer is None:
            raise RequestError("this model has no tokenizer: read the tokens")
        return self.engine.tokenizer.decode(self.tokens, skip_special=False)

    @property
    def num_cached(self) -> int:
        """Tokens whose rows are in the cache."""
        return self._settled().num_computed_tokens

    def __len__(self) -> int:
        return len(self._settled().tokens)

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- growing

    def append(self, prompt: Prompt) -> None:
        """Add text or token ids. They are computed with the next call that needs them."""
        sequence = self._open()
        tokens = self.engine.encode(prompt, after=sequence.tokens)
        self.engine.intake.check_length(len(sequence.tokens) + len(tokens))
        with self.engine.alone():
            sequence.tokens.extend(tokens)
            sequence.counted_from = len(sequence.tokens)

    def generate(self, prompt: Prompt | None = None, **settings: Any) -> Completion:
        """Go on, after `prompt` if there is one; what comes is part of the session.

        `settings` are the fields of SamplingParams. Those that are not given, the seed too, are as in the last call, so
        that a text is the same whether it came in one call or in several.
        """
        done = None
        for piece in self.stream(prompt, **settings):
            done = piece.done
        assert done is not None, "a stream ends with its completion"
        return done

    def stream(self, prompt: Prompt | None = None, **settings: Any) -> Iterator[Piece]:
        """As generate, piece by piece. Closed early, the session keeps the tokens that were shown."""
        sequence, params = self._open(), self._next_params(settings)
        tokens = list(sequence.tokens)
        if prompt is not None:
            tokens += self.engine.encode(prompt, after=tokens)
        if not tokens:
            raise RequestError("the session is empty: give a prompt")
        (asked,) = self.engine.intake.sequences(tokens, params)  # refused here, or not at all
        self.engine.scheduler.check(asked)
        asked.counted_from = len(tokens) if prompt is not None else self._counted_from
        self.params = replace(params, seed=asked.seed)
        return self._follow(asked, len(sequence.tokens))

    def _follow(self, asked: Sequence, before: int) -> Iterator[Piece]:
        sequence, shown = self._open(), None
        counted_from = sequence.counted_from
        if sequence.tokens != asked.tokens[:before]:
            raise RequestError("the session has changed since this stream was asked for: ask again")
        try:
            with self.engine.alone():
                for name in REQUEST:
                    setattr(sequence, name, getattr(asked, name))
            for piece in self.engine.follow([sequence]):
                shown = len(piece.done.tokens) if piece.done else (shown or 0) + len(piece.tokens)
                yield piece
        finally:
            if shown is None:
                sequence.counted_from = counted_from
            # Drafts and stop texts may have gone further than what was shown; what was refused leaves nothing.
            # Only noted here: an iterator may be collected in the middle of a step.
            self._end = before if shown is None else asked.num_prompt_tokens + shown

    @property
    def _counted_from(self) -> int:
        """Where what was given ends, and answers begin: penalties are the same in one call and in several."""
        start, length = self._sequence.counted_from, len(self._sequence.tokens)
        return length if start is None else min(start, length)

    def _settled(self) -> Sequence:
        """The sequence, cut off where the last answer ended."""
        if self._end is not None:
            end, self._end = self._end, None
            with self.engine.alone():
                self.engine.scheduler.park(self._sequence)
                self.engine.scheduler.rewind(self._sequence, min(end, len(self._sequence.tokens)))
        return self._sequence

    def _next_params(self, settings: dict[str, Any]) -> SamplingParams:
        kept = {name: value for name, value in as_keywords(self.params).items() if name not in PER_CALL}
        params: SamplingParams = from_keywords(SamplingParams, {**kept, **settings})
        if params.n != 1:
            raise RequestError(f"a session has one text: n = {params.n} needs Engine.generate, or forks")
        return params

    def prefill(self) -> None:
        """Compute the rows of all tokens but the last, which is fed with the next call."""
        sequence = self._open()
        if sequence.num_computed_tokens >= len(sequence.tokens) - 1 or not self.engine.scheduler.cache:
            return
        last = sequence.tokens[-1]
        try:
            with self.engine.alone():
                sequence.tokens.pop()
                sequence.score_from = sequence.max_tokens = len(sequence.tokens)
                self.engine.scheduler.resume(sequence)
            until_scored(self.engine, sequence)
        finally:
            with self.engine.alone():
                self.engine.scheduler.park(sequence)
                sequence.score_from = None
                sequence.tokens.append(last)

    # ---- branching and going back

    def fork(self) -> "Session":
        """Another session with the same past. What they share is stored once."""
        sequence = self._open()
        with self.engine.alone():
            child = self.engine.scheduler.fork(sequence, self.engine.intake.new_id(), keep=True)
        other = Session(self.engine, child, self.params)
        other.notes = dict(self.notes)
        return other

    def rewind(self, num_tokens: int) -> None:
        """Forget all but the first `num_tokens` tokens."""
        sequence = self._open()
        if not 0 <= num_tokens <= len(sequence.tokens):
            raise RequestError(f"rewind to {num_tokens} tokens: this session has 0 to {len(sequence.tokens)}")
        with self.engine.alone():
            self.engine.scheduler.rewind(sequence, num_tokens)

    def edit(self, position: int, prompt: Prompt) -> None:
        """Put `prompt` in the place of everything from `position` on."""
        self.rewind(position)
        self.append(prompt)

    def revise(self, tokens: list[int]) -> None:
        """Become exactly `tokens`; what they begin alike with what is there stays computed."""
        alike = 0
        for old, new in zip(self._open().tokens, tokens, strict=False):
            if old != new:
                break
            alike += 1
        self.engine.intake.check_length(len(tokens))
        self.rewind(alike)
        if tokens[alike:]:
            self.append(tokens[alike:])

    # ---- keeping

    def save(self, path: str | Path) -> int:
        """Write tokens, rows and sampling settings to a file; its size in bytes. What is missing is computed first."""
        sequence = self._open()
        if not sequence.tokens:
            raise RequestError("the session is empty: there is nothing to save")
        self.prefill()
        facts = {
            **whose(self.engine),
            "tokens": list(sequence.tokens),
            "num_rows": sequence.num_computed_tokens,
            "answer_from": self._counted_from,
            "sampling": asdict(self.params),
            "notes": self.notes,
        }
        with self.engine.alone():
            pool = self.engine.runner.pool
            rows = pool.read(pool.slots_of(sequence.blocks, sequence.num_computed_tokens))
        return write_snapshot(Path(path), facts, rows)

    def close(self) -> None:
        """Give the blocks back; the session cannot be used any more."""
        self._finalizer()

    def _open(self) -> Sequence:
        if not self._finalizer.alive:
            raise RequestError("this session is closed")
        sequence = self._settled()
        if sequence not in self.engine.scheduler.parked:
            raise RequestError("this session is in the midst of an answer: read its stream to the end, or close it")
        return sequence


def _let_go(engine: Engine, sequence: Sequence) -> None:
    sequence.keep = False
    engine.abandon([sequence])


def open_session(engine: Engine, path: Path, convert: bool = False) -> Session:
    """See Engine.open."""
    snapshot = read_snapshot(path)
    try:
        return _checked(engine, path, snapshot, convert)
    except (KeyError, TypeError, AttributeError) as error:
        raise SnapshotError(f"{path} is damaged: its header lacks or misstates {error}") from error


def _checked(engine: Engine, path: Path, snapshot: Snapshot, convert: bool) -> Session:
    facts, ours = snapshot.facts, whose(engine)
    for name in ("fingerprint", "shape", "rope", "cache_format"):
        if facts[name] != ours[name]:
            raise SnapshotError(f"{path} is of another model or setting: {_difference(name, facts[name], ours[name])}")
    for name in ("dtype", "scheme"):
        if facts[name] != ours[name] and not convert:
            raise SnapshotError(
                f"{path} has {name} {facts[name]!r} and this engine {ours[name]!r}: the text would not be the same; "
                f"load the model with {name}={facts[name]!r}, or open it with convert"
            )
    session = Session(engine, None, _sampling(facts["sampling"]))
    session.notes = dict(facts["notes"])
    _fill(session, facts["tokens"], facts["num_rows"], snapshot.rows)
    session._sequence.counted_from = facts["answer_from"]
    return session


def _sampling(saved: Mapping[str, Any]) -> SamplingParams:
    bias = {int(token): amount for token, amount in saved["logit_bias"].items()}  # JSON's keys are texts
    return SamplingParams(**{**saved, "logit_bias": bias})


def _fill(session: Session, tokens: list[int], num_rows: int, rows: Mapping[str, Tensor]) -> None:
    """Tokens and rows of a file into a new session; at an error nothing is left of it."""
    engine = session.engine
    try:
        session.append(tokens)
        with engine.alone():
            if engine.scheduler.cache:
                sequence = session._open()
                if not engine.scheduler.adopt(sequence, num_rows):
                    allocator = engine.scheduler.allocator
                    needed, free = -(-num_rows // allocator.block_size), allocator.num_free
                    raise CapacityError(f"cache blocks of {allocator.block_size} tokens", needed, free, "cache_tokens")
                pool = engine.runner.pool
                pool.write(pool.slots_of(sequence.blocks, num_rows), rows)
    except BaseException:
        session.close()
        raise


def _difference(name: str, theirs: object, ours: object) -> str:
    if isinstance(theirs, dict) and isinstance(ours, dict):
        parts = [
            f"{key} {theirs.get(key)!r}, here {ours.get(key)!r}"
            for key in {**theirs, **ours}
            if theirs.get(key) != ours.get(key)
        ]
        return f"{name}: {'; '.join(parts)}"
    return f"{name} is {theirs!r}, here {ours!r}"
