"""A table whose rows are looked up in the mapping of a file, and need not be in memory: of each token's row the pages
alone are read, and the system may give them up again.

The numbers of a row are what they are where the whole table is read: codes are decoded, and numbers cast, one by one.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tokenmill.model.per_layer import BITS
from tokenmill.registry import TENSOR_READERS, lookup

ROWS = 256  # decoded at a time where the whole table is written


@torch.library.custom_op("tokenmill::decoded_rows", mutates_args=())
def decoded_rows(codes_TB: Tensor, kind: str) -> Tensor:
    """Decode rows of codes of a type of GGUF: an operation of its own, since no compiler reads numpy's arithmetic."""
    values: Tensor = lookup(TENSOR_READERS, "gguf", "model").dequantised(codes_TB.numpy(), kind)
    return values


@decoded_rows.register_fake
def _(codes_TB: Tensor, kind: str) -> Tensor:
    width = codes_TB.shape[1] * 8 / BITS[kind]
    return codes_TB.new_empty((codes_TB.shape[0], int(width)), dtype=torch.float32)


class MappedTable(NamedTuple):
    """kind: of the numbers, a dtype or a type of GGUF. rows: of numbers, or of the bytes of codes."""

    kind: str
    rows: Tensor

    def __deepcopy__(self, _: Any) -> "MappedTable":
        return self  # what is mapped is not brought into memory, as where modules with adapters share their weights

    @property
    def is_coded(self) -> bool:
        return self.kind in BITS

    def values(self, places: Tensor | slice, dtype: torch.dtype) -> Tensor:
        """Look up rows in a dtype."""
        rows = self.rows[places]
        return (decoded_rows(rows, self.kind) if self.is_coded else rows).to(dtype)


def is_coded(held: Tensor | MappedTable) -> bool:
    """Tell whether this is a table of codes in a mapping."""
    return isinstance(held, MappedTable) and held.is_coded


class MappedRows(nn.Module):
    """The lookup of rows of tokens in such a table. It has no parameter, as it holds no weights in memory."""

    def __init__(self, table: MappedTable, dtype: torch.dtype) -> None:
        super().__init__()
        self.table, self.dtype = table, dtype

    def forward(self, token_ids_T: Tensor) -> Tensor:
        return self.table.values(token_ids_T, self.dtype)
