"""Scheme packed: plain matrices in oneDNN's own blocked layout, reordered once after loading.

torch's linear layer hands oneDNN a row-major matrix and reaches 13 to 18 GB/s with one token on 2 Zen 4 cores; the same
matrix reordered beforehand is read at 31 to 70 GB/s, in bfloat16 and float32. It also computes a row the same way
whatever the number of rows, bit for bit, which torch's float32 kernel does not. But a single row wider than
1,024 is summed in stretches, so it is computed twice in one product; and on a processor with a matrix unit (AMX) more
than 32 rows of bfloat16 are summed in another order, so they are multiplied 32 at a time, in 1.3 to 2.2 times the time.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from tokenmill.quant.matrix import Matrix
from tokenmill.quant.stored import Stored

__all__ = ["PackedLinear"]

MAX_INPUTS_OF_ONE_ROW = 1024  # up to here oneDNN sums a single row as it sums several
MAX_ROWS_OF_MATRIX_UNIT = 32  # of bfloat16, up to here summed in the same order as one
HAS_MATRIX_UNIT = bool(torch.cpu._is_amx_tile_supported())


class PackedLinear(Matrix):
    packed: Tensor  # opaque; its nbytes are those of the plain matrix, which it exceeds by padding alone

    def fill(self, parts: Sequence[Stored]) -> None:
        (part,) = parts
        self.register_buffer("packed", torch.ops.mkldnn._reorder_linear_weight(part.numbers, None))
        self.weight = None

    def forward(self, x_TD: Tensor) -> Tensor:
        if x_TD.shape[0] > MAX_ROWS_OF_MATRIX_UNIT and x_TD.dtype == torch.bfloat16 and HAS_MATRIX_UNIT:
            return torch.cat([self._product(part_TD) for part_TD in torch.split(x_TD, MAX_ROWS_OF_MATRIX_UNIT)])
        return self._product(x_TD)

    def _product(self, x_TD: Tensor) -> Tensor:
        alone = x_TD.shape[0] == 1 and x_TD.shape[1] > MAX_INPUTS_OF_ONE_ROW
        rows_TD = x_TD.expand(2, -1).contiguous() if alone else x_TD
        out: Tensor = torch.ops.mkldnn._linear_pointwise(rows_TD, self.packed, self.bias, "none", [], "")
        return out[:1] if alone else out
