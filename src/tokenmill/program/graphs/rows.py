"""The part of a step of program graphs that all layers read."""

from typing import NamedTuple

from torch import Tensor


class StepRows(NamedTuple):
    """The blocks and the position of each sequence, [B, M] and [B]; the number of splits of the longest context that
    the recorded graph serves; and where layers keep states the slots of the states with which each sequence begins and
    which it fills, [B, 2].

    A row that fills up a graph has position -1 and slots -1 where layers keep states: it reads and writes nothing.
    """

    tables_BM: Tensor
    positions_B: Tensor
    num_splits: int
    slots_B2: Tensor | None = None
