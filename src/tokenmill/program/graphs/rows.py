"""The part of a step of program graphs that all layers read."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor


class StepRows(NamedTuple):
    """The blocks and the position of each sequence, [B, M] and [B], and the number of splits of the longest context
    that the recorded graph serves. scratch: float32, in which each layer in turn keeps what its splits give, see
    spec.scratch_numbers. slots_B2: where layers keep states, the slots of the states with which each sequence begins
    and which it fills.

    A row that fills up a graph has position -1 and slots -1 where layers keep states: it reads and writes nothing.
    in_turn: all rows are of one sequence, in its order, so that a layer's cache is written by each before the next.
    """

    tables_BM: Tensor
    positions_B: Tensor
    num_splits: int
    scratch: Tensor
    slots_B2: Tensor | None = None
    in_turn: bool = False

    def cut(self, which: slice) -> "StepRows":
        """Take some of the rows."""
        slots_B2 = None if self.slots_B2 is None else self.slots_B2[which]
        return self._replace(tables_BM=self.tables_BM[which], positions_B=self.positions_B[which], slots_B2=slots_B2)

    def turns(self) -> Iterator[tuple[slice, "StepRows"]]:
        """Yield the rows whose caches are read and written by one launch, launch by launch."""
        if not self.in_turn:
            yield slice(None), self
            return
        for number in range(len(self.positions_B)):
            row = slice(number, number + 1)
            yield row, self.cut(row)

    def results(self, x_BD: Tensor, width: int) -> Tensor:
        """Make the rows that attention fills, [B, width]: zeros where it may leave out rows of no sequence."""
        make = x_BD.new_empty if self.slots_B2 is None else x_BD.new_zeros
        return make((len(x_BD), width))

    def of_splits(self, num_heads: int, head_dim: int) -> list[Tensor]:
        """Find the places of the maxima, of the sums and of the values of each split of each head."""
        count = len(self.positions_B) * self.num_splits * num_heads
        return list(torch.split(self.scratch[: count * (2 + head_dim)], [count, count, count * head_dim]))
