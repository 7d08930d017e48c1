"""One sequence: its tokens, how far the cache has caught up with them, and the blocks that hold its rows.

There are no phases. A step lets `num_computed_tokens` catch up with the tokens: prefill, a chunk of it, decode (one
behind), verification (1 + k behind) and re-prefill after preemption all are the same record (sequence, start, count).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tokenmill.config import SamplingParams

__all__ = ["UNKNOWN", "Plan", "Sequence", "Work"]

UNKNOWN = -1
"""A draft that nobody has guessed: the likeliest token there, which the program finds in the same step."""


@dataclass(eq=False, slots=True)
class Sequence:
    """Prompt and output of one stream of tokens.

    tokens: prompt and output. The last may be -1 - row: what that row of a step has chosen, which nobody has read yet.
    max_tokens: the length, prompt included, at which it ends. stop_ids: token id → the finish reason it gives.
    score_from: set when nothing is sampled and the logits of every position from this one on are still wanted.
    digests: chained hashes of the leading blocks that were offered for sharing.
    keep: hold on to the blocks after the end, to go on from there later.
    counted_from: where presence and frequency penalties begin to count; None is the end of the prompt.
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
    finish_reason: str | None = None
    keep: bool = False
    counted_from: int | None = None

    @property
    def num_tokens(self) -> int:
        """Prompt, output and drafts: what `num_computed_tokens` has to catch up with."""
        return len(self.tokens) + len(self.drafts)

    @property
    def num_pending_tokens(self) -> int:
        """How far the cache is behind."""
        return len(self.tokens) + len(self.drafts) - self.num_computed_tokens

    @property
    def is_ahead(self) -> bool:
        """Whether its last token is not known yet."""
        return bool(self.tokens) and self.tokens[-1] < 0

    @property
    def first_logits(self) -> int:
        """The first position whose logits are wanted: that of the last token, or earlier when scoring."""
        return len(self.tokens) - 1 if self.score_from is None else self.score_from


class Work(NamedTuple):
    """Feed `count` tokens of `sequence` from position `start` on; logits of the last `num_logits` of them."""

    sequence: Sequence
    start: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs here
    num_logits: int


class Plan(NamedTuple):
    """One step. `copies` are (from block, to block), done before anything is written."""

    work: list[Work]
    copies: list[tuple[int, int]]
