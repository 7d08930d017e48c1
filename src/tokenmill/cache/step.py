"""One step as tensors: what is fed, where it is written, and what each sequence may look at.

The tokens of all sequences are packed into one dimension T; there is no batch dimension and no padding. A span is one
sequence's share of T. Everything that does not depend on the layer is made once here, not once a layer.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

__all__ = ["Span", "Step"]


@dataclass(frozen=True, slots=True)
class Span:
    """Rows [first, first + count) of the packed tokens are positions [start, start + count) of one sequence.

    base: the slot of position 0 where the sequence lies in one block; slots_L: the slot of every position up to the
    end of the span, where it does not. Exactly one of the two is set.
    """

    first: int
    count: int
    start: int
    base: int | None
    slots_L: Tensor | None

    @property
    def length(self) -> int:
        """Tokens of the sequence that the last row of the span sees."""
        return self.start + self.count


@dataclass(slots=True)
class Step:
    """The input of a program. rows_R picks the packed rows whose logits are wanted; None stands for all of them."""

    token_ids_T: Tensor
    positions_T: Tensor
    slots_T: Tensor
    spans: list[Span]
    rows_R: Tensor | None
    num_rows: int
    _masks: dict[tuple[int, int | None, torch.dtype], Tensor] = field(default_factory=dict)

    def mask(self, span: Span, window: int | None, dtype: torch.dtype) -> Tensor:
        """[count, length], added to attention scores: 0 where a row may look, -inf where it may not."""
        key = (span.first, window, dtype)
        if key not in self._masks:
            device = self.positions_T.device
            queries = torch.arange(span.start, span.length, device=device)[:, None]
            keys = torch.arange(span.length, device=device)[None, :]
            hidden = keys > queries
            if window is not None:
                hidden |= keys <= queries - window
            self._masks[key] = torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, -torch.inf)
        return self._masks[key]
