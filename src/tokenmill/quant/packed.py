"""Scheme packed: plain matrices in oneDNN's own blocked layout, reordered once after loading.

torch's linear layer hands oneDNN a row-major matrix and reaches 13 to 18 GB/s with one token on 2 Zen 4 cores; the same
matrix reordered beforehand is read at 31 to 70 GB/s, in bfloat16 and float32.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from tokenmill.quant.matrix import Matrix
from tokenmill.quant.stored import Stored
from tokenmill.quant.ways import Way, choose, reordered


class PackedLinear(Matrix):
    packed: Tensor  # opaque; its nbytes are the plain matrix's, which it exceeds by padding alone

    def fill(self, parts: Sequence[Stored]) -> None:
        (part,) = parts
        assert part.numbers is not None, "a plain matrix has no codes"
        self.register_buffer("packed", reordered(part.numbers))
        self._outputs, self._dtype, self.weight = len(part.numbers), part.numbers.dtype, None
        self._way(part.numbers.shape[1])  # tried now, not in the first request

    def _way(self, inputs: int) -> Way:
        return choose(self._outputs, inputs, self._dtype, torch.get_num_threads(), packed=True)

    def forward(self, x_TD: Tensor) -> Tensor:
        return self._way(x_TD.shape[1])(x_TD, self.packed, self.bias)
