"""One sequence: its tokens, how far the cache has caught up with them, and the blocks that hold its rows.

There are no phases. A step lets `num_computed_tokens` catch up with the tokens: prefill, a chunk of it, decode (one
behind), verification (1 + k behind) and re-prefill after preemption all are the same record (sequence, start, count).
"""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as List
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from tokenmill.config import SamplingParams

__all__ = ["UNKNOWN", "Load", "Plan", "PlanBuilder", "RowSource", "Sequence", "Store", "Work", "unread_mark"]

UNKNOWN = -1
"""A draft whose token the program finds in the same step: the one with the largest logit at that position."""


def unread_mark(row: int) -> int:
    """The placeholder in `Sequence.tokens` for a token that was chosen on the device, by `row`, and is not read yet."""
    return UNKNOWN - 1 - row


class RowSource(Protocol):
    """K and V rows of consecutive positions that were computed earlier and lie on disk."""

    def rows(self, first: int, last: int) -> Mapping[str, Any]:
        """Tensors by name for positions [first, last) of the source. SnapshotError if the file cannot be used."""


@dataclass(eq=False, slots=True)
class Sequence:
    """Prompt and output of one text.

    tokens: prompt and output. While a step is in flight the last one may be an `unread_mark`.
    max_tokens: the length, prompt included, at which it ends. stop_ids: token id → the finish reason it gives.
    score_from: set when nothing is sampled and the logits of every position from this one on are still wanted.
    digests: chained hashes of its leading blocks; the first num_published of them were offered for sharing.
    keep: keep the blocks after the end, so that the sequence can be resumed.
    counted_from: where presence and frequency penalties begin to count; None is the end of the prompt.
    priority: lower runs first; arrival orders sequences of equal priority and is set by the scheduler.
    salt: starts the chain of digests, so that only sequences with the same salt (a tenant, an adapter) share blocks.
    saved: rows of its first num_saved positions in a file, loaded when the sequence next gets blocks.
    shares: False if its rows come from another program, dtype or scheme; then it neither takes nor offers blocks.
    collect: called with each work item and the logits that it wanted, when the sequence is scored.
    """

    id: int
    tokens: list[int]
    num_prompt_tokens: int
    max_tokens: int
    params: SamplingParams = field(default_factory=SamplingParams)
    seed: int = 0
    stop_ids: Mapping[int, str] = field(default_factory=dict)
    score_from: int | None = None
    num_computed_tokens: int = 0
    drafts: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    num_published: int = 0
    finish_reason: str | None = None
    keep: bool = False
    counted_from: int | None = None
    priority: int = 0
    arrival: int = 0
    salt: bytes = b""
    saved: RowSource | None = None
    num_saved: int = 0
    shares: bool = True
    collect: "Callable[[Work, Any], None] | None" = None

    @property
    def num_tokens(self) -> int:
        """Prompt, output and drafts: what `num_computed_tokens` has to catch up with."""
        return len(self.tokens) + len(self.drafts)

    @property
    def num_pending_tokens(self) -> int:
        """Tokens and drafts whose rows are not computed yet."""
        return len(self.tokens) + len(self.drafts) - self.num_computed_tokens

    @property
    def has_unread_token(self) -> bool:
        """Whether its last token is chosen on the device and not read yet."""
        return bool(self.tokens) and self.tokens[-1] < 0

    @property
    def order(self) -> tuple[int, int]:
        """The order in which sequences wait and run, lowest first."""
        return self.priority, self.arrival

    @property
    def first_logits(self) -> int:
        """The first position whose logits are wanted: that of the last token, or earlier when scoring."""
        return len(self.tokens) - 1 if self.score_from is None else self.score_from

    @property
    def end_reason(self) -> str | None:
        """Why its tokens end the text, if they do: a stop token that was generated, or the length."""
        if self.score_from is not None or len(self.tokens) <= self.num_prompt_tokens or self.has_unread_token:
            return None
        return self.stop_ids.get(self.tokens[-1]) or ("length" if len(self.tokens) >= self.max_tokens else None)


class Work(NamedTuple):
    """Feed `count` tokens of `sequence` from position `start` on; logits of the last `num_logits` of them.

    drafts: the guessed tokens among them, which follow the sequence's own.
    """

    sequence: Sequence
    start: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which is never needed here
    num_logits: int
    drafts: tuple[int, ...] = ()


class Load(NamedTuple):
    """Fill positions [first, last) of a sequence, which lie in `blocks`, from rows [source_first, …) of `source`."""

    sequence: Sequence
    blocks: tuple[int, ...]
    first: int
    last: int
    source: RowSource
    source_first: int


class Store(NamedTuple):
    """Write a full block to disk under the digest of its tokens."""

    digest: bytes
    block: int


class Plan(NamedTuple):
    """One step, complete: the runner copies blocks (from, to), loads blocks, and then runs the work.

    stores is empty until the commit: blocks that this step has filled, written to disk after it.
    """

    work: List[Work]
    copies: List[tuple[int, int]] = ()
    loads: List[Load] = ()
    stores: List[Store] = ()


@dataclass(slots=True)
class PlanBuilder:
    """A plan that is being made. budget: tokens that may still be fed. work: by the id of its sequence."""

    budget: int
    work: dict[int, Work] = field(default_factory=dict)
    copies: list[tuple[Sequence, int, int]] = field(default_factory=list)
    loads: list[Load] = field(default_factory=list)

    def drop(self, sequence: Sequence) -> None:
        """Remove a sequence that has lost its blocks from the plan."""
        self.work.pop(sequence.id, None)
        self.copies = [copy for copy in self.copies if copy[0] is not sequence]
        self.loads = [load for load in self.loads if load.sequence is not sequence]

    def plan(self) -> Plan:
        """The finished plan."""
        return Plan(list(self.work.values()), [(old, new) for _, old, new in self.copies], self.loads)
