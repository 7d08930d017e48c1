"""One step as tensors: the tokens to feed, the slots to write, and the positions that each query may attend to.

The tokens of all sequences are packed into one dimension T; there is no batch dimension and no padding. A span is one
sequence's share of T. Everything that does not depend on the layer is made here, once and not in each layer; tensors
are made on the device when they are first used.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from tokenmill.memory.transfer import to_device
from tokenmill.schedule.sequence import unread_mark

Made = TypeVar("Made")


class Span(NamedTuple):
    """Rows [first, first + count) of the packed tokens are positions [start, start + count) of one sequence.

    base: the slot of position 0 where the sequence lies in one block; slots_L: the slot of every position up to the
    end of the span, where it does not, and the program reads them. num_logits: how many of the last rows are wanted.
    blocks: the sequence's table of rows. state: the slot of its states before the span, where layers keep some and it
    is not at the text's begin. saves: (count, slot) for the states after so many tokens of the span, the last of all.
    adapter: by which its rows are computed, if any.
    """

    first: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which is not needed here
    start: int
    base: int | None
    slots_L: Tensor | None
    num_logits: int = 0
    blocks: Sequence[int] = ()
    state: int | None = None
    saves: tuple[tuple[int, int], ...] = ()
    adapter: Any = None

    @property
    def length(self) -> int:
        """Count the tokens of the sequence that the last row of the span sees."""
        return self.start + self.count

    def first_key(self, window: int | None) -> int:
        """Find the first position that a row of the span sees."""
        return 0 if window is None else max(self.start - window + 1, 0)


@dataclass
class Step:
    """The input of a program. `rows` are the packed rows whose logits are wanted; None stands for all of them.

    token_ids_T, positions_T, slots_T, rows_R: the fields of these names as int64 tensors on the device.
    fed_R: the tokens that the rows of the previous step chose; an `unread_mark` among the token ids stands for one.
    has_unknown: some token ids are UNKNOWN; the program finds them itself, up to the first of stop_ids in a span.
    given_TD: a row beside each token, where the model reads some. keeps_hidden: the program sets hidden_TD,
    what the head reads of every computed token. bias: the module that adds to scores by distance, if the model has one.
    """

    token_ids: Sequence[int]
    positions: Sequence[int]
    slots: Sequence[int]
    spans: list[Span]
    rows: Sequence[int] | None
    num_rows: int
    device: torch.device
    fed_R: Tensor | None = None
    has_unknown: bool = False
    stop_ids: Sequence[int] = ()
    given_TD: Tensor | None = None
    keeps_hidden: bool = False
    hidden_TD: Tensor | None = None
    bias: Any = None
    _made: dict[Hashable, Any] = field(default_factory=dict)

    @cached_property
    def token_ids_T(self) -> Tensor:
        return self.fed(to_device(self.token_ids, self.device))

    def fed(self, token_ids: Tensor) -> Tensor:
        """Replace each unread mark in token ids of any shape by the token that its row has chosen."""
        if self.fed_R is None:
            return token_ids
        rows = (unread_mark(0) - token_ids).clamp(min=0)
        return torch.where(token_ids <= unread_mark(0), self.fed_R[rows], token_ids)

    @cached_property
    def positions_T(self) -> Tensor:
        return to_device(self.positions, self.device)

    @cached_property
    def slots_T(self) -> Tensor:
        return to_device(self.slots, self.device)

    @cached_property
    def rows_R(self) -> Tensor | None:
        return None if self.rows is None else to_device(self.rows, self.device)

    def mask(self, span: Span, window: int | None, both_ways: bool, dtype: torch.dtype) -> Tensor:
        """Make the mask [count, length - first_key] to add to scores: 0 where a query may attend, else -inf."""

        def make() -> Tensor:
            queries = torch.arange(span.start, span.length, device=self.device)[:, None]
            keys = torch.arange(span.first_key(window), span.length, device=self.device)[None, :]
            beyond = span.length if window is None else window
            hidden = (keys <= queries - beyond) | (keys >= queries + (beyond if both_ways else 1))
            return torch.zeros(hidden.shape, dtype=dtype, device=self.device).masked_fill_(hidden, -torch.inf)

        return self.once((span.first, window, both_ways, dtype), make)

    def once(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """Make what several layers need of a step when the first of them asks for it."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]  # type: ignore[no-any-return]
