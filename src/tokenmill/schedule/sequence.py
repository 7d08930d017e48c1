"""One sequence, with its tokens and its rows in the cache; the records Work, Load and Plan.

There are no phases. A step lets `rows.num_computed` catch up with the tokens: prefill, a chunk of it, decode (one
behind), verification (1 + k behind) and re-prefill after preemption all are the same record (sequence, start, count).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from tokenmill.schedule.choosing import Choosing
from tokenmill.settings.sampling_params import SamplingParams

RowSource = Callable[[int, int], Mapping[str, Any]]
"""Reads K and V rows that were computed earlier and lie on disk: tensors by name, for positions [first, last) of the
source. SnapshotError if the file cannot be used."""

UNKNOWN = -1
"""A draft whose token the program finds in the same step: the one with the largest logit at that position."""


WHOLE = "whole"
"""Why a text has ended whose constraint admits nothing more, although none of its tokens is an end."""


def unread_mark(row: int) -> int:
    """Make the placeholder in `Sequence.tokens` for a token that was chosen on the device, by `row`, and is not read
    yet.
    """
    return UNKNOWN - 1 - row


@dataclass(slots=True)
class Rows:
    """The K and V rows of a sequence: in blocks of the cache, or still in a file.

    first_row: rows before it are not there: they lie before every window (see window.py). blocks: its block table,
    from the block of first_row on. block_hashes: chained hashes of its leading blocks; none of the first num_published
    is still to be offered for sharing. salt: starts that chain, so that only sequences with the same salt (a tenant, an
    adapter) share blocks. saved: rows first_saved to num_saved in a file, loaded when the sequence next gets blocks.
    is_own: False if they come from another program, dtype or scheme; then the sequence neither takes nor offers blocks.
    """

    num_computed: int = 0
    first_row: int = 0
    blocks: list[int] = field(default_factory=list)
    block_hashes: list[bytes] = field(default_factory=list)
    num_published: int = 0
    salt: bytes = b""
    saved: RowSource | None = None
    first_saved: int = 0
    num_saved: int = 0
    is_own: bool = True

    def table(self, block_size: int) -> list[int]:
        """The block table from position 0 on. In the place of each block that was given back stands the first block
        that is there, because what no query may attend to still has to be numbers."""
        return [self.blocks[0]] * (self.first_row // block_size) + self.blocks if self.first_row else self.blocks

    def copy(self) -> "Rows":
        """Copy the rows for another sequence. The caller counts the references of the blocks."""
        return replace(self, blocks=list(self.blocks), block_hashes=list(self.block_hashes))


@dataclass(eq=False, slots=True, weakref_slot=True)
class Sequence:
    """Prompt and output of one text: its tokens, what decides the next one, and its rows in the cache.

    tokens: prompt and output. While a step is in flight the last one may be an `unread_mark`. A list of tokens only
    grows, but for that mark: who takes tokens away or replaces them makes a new list, which matchers notice.
    max_tokens: the length, prompt included, at which it ends.
    score_from: set when nothing is sampled and the logits of every position from this one on are still wanted.
    keep: keep the rows after the end, so that the sequence can be resumed.
    earlier: if its prompt ends in the midst of a text that it continues, where that text begins and its settings.
    client: who it is for; clients share the places in equal parts.
    priority: lower runs first; arrival orders sequences of equal priority and is set by the scheduler.
    num_cached_tokens: rows that it found, in the cache or in a file, when it first ran; None before that.
    on_logits: called with each work item and the logits that it wanted, when the sequence is scored.
    """

    id: int
    tokens: list[int]
    num_prompt_tokens: int
    max_tokens: int
    choosing: Choosing = field(default_factory=Choosing)
    rows: Rows = field(default_factory=Rows)
    score_from: int | None = None
    finish_reason: str | None = None
    keep: bool = False
    earlier: tuple[int, SamplingParams] | None = None
    client: bytes = b""
    priority: int = 0
    arrival: int = 0
    num_cached_tokens: int | None = None
    on_logits: "Callable[[Work, Any], None] | None" = None

    @property
    def num_pending_tokens(self) -> int:
        """So many tokens have rows that are not computed yet."""
        return len(self.tokens) - self.rows.num_computed

    @property
    def has_unread_token(self) -> bool:
        """Whether its last token is chosen on the device and not read yet."""
        return bool(self.tokens) and self.tokens[-1] < 0

    @property
    def first_logits(self) -> int:
        """The first position whose logits are wanted: that of the last token, or earlier when scoring."""
        return len(self.tokens) - 1 if self.score_from is None else self.score_from

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
    the only tokens that a constraint admits at their positions, so no logits are computed for them and none is sampled.
    """

    sequence: Sequence
    start: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which is never needed here
    num_logits: int
    drafts: tuple[int, ...] = ()
    num_certain: int = 0

    @property
    def certain(self) -> tuple[int, ...]:
        """The drafts that are not verified."""
        return self.drafts[: self.num_certain]

    @property
    def verified(self) -> tuple[int, ...]:
        """The drafts that are verified: logits are computed at the token before each of them."""
        return self.drafts[self.num_certain :][: max(self.num_logits - 1, 0)]


class Load(NamedTuple):
    """Fill `blocks`, which belong to `sequence`, with rows [first, last) of `source`, in order."""

    sequence: Sequence
    blocks: tuple[int, ...]
    source: RowSource
    first: int
    last: int


@dataclass(slots=True)
class Plan:
    """One step, complete: the runner carries out the copies, then the loads, and then runs the work.

    copies: blocks that are about to be written while others share them, and the blocks that take their place.
    """

    work: list[Work] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    loads: list[Load] = field(default_factory=list)

    def drop(self, sequence: Sequence) -> None:
        """Remove a sequence that has lost its blocks. Copies may stay: whoever gets their targets writes them later."""
        self.work = [work for work in self.work if work.sequence is not sequence]
        self.loads = [load for load in self.loads if load.sequence is not sequence]
