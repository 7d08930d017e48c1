"""The tables of blocks of a step's sequences as one tensor, made anew at each step of what has changed."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


class BlockTables:
    """Tables of up to so many rows, each of up to so many blocks. A text's table mostly grows at its end: only numbers
    that a row did not have in the step before are converted.
    """

    def __init__(self, num_rows: int, num_blocks: int) -> None:
        self._numbers = np.zeros((num_rows, num_blocks), np.int64)
        self._known: list[list[int]] = [[] for _ in range(num_rows)]

    def staged(self, tables: Sequence[Sequence[int]], num_rows: int, device: torch.device) -> Tensor:
        """Make [num_rows, M] int64: behind the blocks of a row stand zeros, and the last row is repeated."""
        for row in range(num_rows):
            self._set(row, tables[min(row, len(tables) - 1)])
        staged = torch.from_numpy(self._numbers[:num_rows])  # which the next step changes
        return staged.clone() if device.type != "cuda" else staged.pin_memory().to(device, non_blocking=True)

    def _set(self, row: int, table: Sequence[int]) -> None:
        most, known = self._numbers.shape[1], self._known[row]
        table = table if len(table) <= most else table[:most]
        if table == known:
            return
        same = len(known) if table[: len(known)] == known else 0
        self._numbers[row, same : len(table)] = table[same:]
        self._numbers[row, len(table) : len(known)] = 0
        self._known[row] = list(table)
