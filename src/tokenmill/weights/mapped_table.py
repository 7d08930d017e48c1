"""A table whose rows are looked up in the mapping of a file, and need not be in memory: of each token's row the pages
alone are read, and the system may give them up again.

The numbers of a row are what they are where the whole table is read: codes are decoded, and numbers cast, one by one.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Decode = Callable[[NDArray[np.uint8]], Tensor]
"""Rows of bytes → their values [rows, width]."""
ROWS = 256  # decoded at a time where the whole table is written


class MappedTable(NamedTuple):
    """kind: of the numbers, a dtype or a type of GGUF. rows: of numbers, or of bytes where there is a `decode`."""

    kind: str
    rows: Tensor
    decode: Decode | None = None

    def values(self, places: Tensor | slice, dtype: torch.dtype) -> Tensor:
        """Look up rows in a dtype."""
        rows = self.rows[places]
        return (rows if self.decode is None else self.decode(rows.numpy())).to(dtype)


def is_coded(held: Tensor | MappedTable) -> bool:
    """Tell whether this is a table of codes in a mapping."""
    return isinstance(held, MappedTable) and held.decode is not None


class MappedRows(nn.Module):
    """The lookup of rows of tokens in such a table. It has no parameter, as it holds no weights in memory."""

    def __init__(self, table: MappedTable, dtype: torch.dtype) -> None:
        super().__init__()
        self.table, self.dtype = table, dtype

    def forward(self, token_ids_T: Tensor) -> Tensor:
        return self.table.values(token_ids_T, self.dtype)
