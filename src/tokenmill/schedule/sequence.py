"""One sequence, with its tokens and the entries that the cache keeps of them; the records Work, Load, Store and Plan.

There are no phases. A step lets `kept.num_computed` catch up with the tokens: prefill, a chunk of it, decode (one
behind), verification (1 + k behind) and re-prefill after preemption all are the same record (sequence, start, count).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tokenmill.schedule.choosing import Choosing
from tokenmill.schedule.keeps import Kept, RowSource
from tokenmill.settings.sampling_params import SamplingParams

UNKNOWN = -1
"""A draft whose token the program finds in the same step: the one with the largest logit at that position."""

WHOLE = "whole"
"""The finish reason of a text whose constraint admits nothing more, although its last token is no end token."""


def unread_mark(row: int) -> int:
    """Make the placeholder in `Sequence.tokens` for a token that `row` chose on the device and that is not read yet."""
    return UNKNOWN - 1 - row


@dataclass(eq=False, slots=True, weakref_slot=True)
class Sequence:
    """Prompt and output of one text: its tokens, the settings that decide the next one, and its entries in the cache.

    tokens: prompt and output. While a step is in flight the last one may be an `unread_mark`. A list of tokens only
    grows, except for that mark: code that takes tokens away or replaces them makes a new list, which matchers notice.
    max_tokens: the length, prompt included, at which it ends. score_from: set when nothing is sampled and the logits of
    every position from this one on are still wanted. keep: keep the cached entries after the end, so that the sequence
    can be resumed. earlier: if its prompt ends in the midst of a text that it continues, where that text begins and its
    settings. client: for whom it runs; clients share the places in equal parts. priority: lower runs first; arrival
    orders sequences of equal priority and is set by the scheduler. num_cached_tokens: rows that it found, in the cache
    or in a file, when it first ran; None before that. num_recomputed_tokens: the tokens after them whose rows were
    there too, computed again as no state was kept there. on_logits: called with each work item and the logits that it
    wanted, when the sequence is scored.
    """

    id: int
    tokens: list[int]
    num_prompt_tokens: int
    max_tokens: int
    choosing: Choosing = field(default_factory=Choosing)
    kept: Kept = field(default_factory=Kept)
    score_from: int | None = None
    finish_reason: str | None = None
    keep: bool = False
    earlier: tuple[int, SamplingParams] | None = None
    client: bytes = b""
    priority: int = 0
    arrival: int = 0
    num_cached_tokens: int | None = None
    num_recomputed_tokens: int = 0
    on_logits: "Callable[[Work, Any], None] | None" = None

    @property
    def num_pending_tokens(self) -> int:
        """Count the tokens that are not computed yet; the last one is left out where nothing of it is wanted."""
        is_filled = self.score_from is not None and self.score_from >= len(self.tokens)
        return max(len(self.tokens) - is_filled - self.kept.num_computed, 0)

    @property
    def has_unread_token(self) -> bool:
        """Say whether the last token is chosen on the device and not read yet."""
        return bool(self.tokens) and self.tokens[-1] < 0

    @property
    def first_logits(self) -> int:
        """Find the first position whose logits are wanted: the last token's, or when scoring an earlier one or none."""
        if self.score_from is None:
            return len(self.tokens) - 1
        return len(self.tokens) if self.on_logits is None else self.score_from

    @property
    def end_reason(self) -> str | None:
        """Say why its tokens end the text, if they do: a stop token that was generated, or the length."""
        if self.score_from is not None or len(self.tokens) <= self.num_prompt_tokens or self.has_unread_token:
            return None
        return self.choosing.stop_ids.get(self.tokens[-1]) or (
            "length" if len(self.tokens) >= self.max_tokens else None
        )


class Work(NamedTuple):
    """Feed `count` tokens of `sequence` from position `start` on; logits of the last `num_logits` of them.

    drafts: the guessed tokens among them, which follow the sequence's own. num_certain: the first so many drafts are
    the only tokens that a constraint admits at their positions, so no logits are computed and nothing is sampled for
    them.
    """

    sequence: Sequence
    start: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which is not needed here
    num_logits: int
    drafts: tuple[int, ...] = ()
    num_certain: int = 0

    @property
    def certain(self) -> tuple[int, ...]:
        """List the drafts that are not verified."""
        return self.drafts[: self.num_certain]

    @property
    def verified(self) -> tuple[int, ...]:
        """List the drafts that are verified: logits are computed at the token before each of them."""
        return self.drafts[self.num_certain :][: max(self.num_logits - 1, 0)]


class Copy(NamedTuple):
    """Copy a block, about to be written while others share it, into the one that takes its place."""

    kind: int
    source: int
    target: int


class Load(NamedTuple):
    """Fill `blocks` of one kind, which belong to `sequence`, with entries [first, last) of `source`, in order."""

    kind: int
    sequence: Sequence
    blocks: tuple[int, ...]
    source: RowSource
    first: int
    last: int


class Store(NamedTuple):
    """A full block of one kind, and the name under which it may be written to disk."""

    kind: int
    name: bytes
    block: int


@dataclass(slots=True)
class Plan:
    """One step, complete: the runner carries out the moves and then runs the work.

    moves: in the order in which the blocks were allocated: loaded blocks may be copied later, and copied blocks
    overwritten. found: sequences, kept by sessions, that need no work once the moves are made.
    """

    work: list[Work] = field(default_factory=list)
    moves: list[Copy | Load] = field(default_factory=list)
    found: list[Sequence] = field(default_factory=list)

    @property
    def loads(self) -> list[Load]:
        return [move for move in self.moves if isinstance(move, Load)]

    def drop(self, sequence: Sequence) -> None:
        """Remove a sequence that has lost its blocks. Copies may stay: the next owner of a block overwrites it."""
        self.work = [work for work in self.work if work.sequence is not sequence]
        self.moves = [move for move in self.moves if isinstance(move, Copy) or move.sequence is not sequence]
        self.found = [each for each in self.found if each is not sequence]
