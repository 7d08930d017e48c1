"""Scheme packed: plain matrices in oneDNN's own blocked layout, reordered once after loading.

torch's linear layer hands oneDNN a row-major matrix and reaches 13 to 18 GB/s with one token on 2 Zen 4 cores; the same
matrix reordered beforehand is read at 31 to 70 GB/s, in bfloat16 and float32. It also computes a row the same way
whatever the number of rows, bit for bit, which torch's float32 kernel does not; with two exceptions: a single row wider
than 1,024 is summed in pieces, so such a row is computed twice in one product; and on a processor with a matrix unit
(AMX) more than 32 rows of bfloat16 are summed in another order, so they are multiplied 32 at a time, which takes 1.3 to
2.2 times as long.
A tied head needs a packed copy, since the embedding is looked up row by row; that is counted.
"""

from functools import cache

import torch
from torch import Tensor

from tokenmill.quant.dense import Dense
from tokenmill.quant.schemes import Matrix

__all__ = ["Packed", "PackedLinear"]


MAX_INPUTS_OF_ONE_ROW = 1024  # up to here oneDNN sums a single row as it sums several
MAX_ROWS_OF_MATRIX_UNIT = 32  # of bfloat16, up to here summed in the same order as one


@cache
def _has_matrix_unit() -> bool:
    return bool(torch.cpu._is_amx_tile_supported())


class PackedLinear(Matrix):
    """x · weightᵀ + bias. `weight` is there until `finish`, the packed form after it."""

    packed: Tensor
    _packed_bytes = 0

    @property
    def num_bytes(self) -> int:
        """See Matrix; the packed form is opaque, but as large as the plain one up to padding."""
        return super().num_bytes + self._packed_bytes

    def finish(self) -> None:
        """Reorder the weight and free the plain one."""
        assert self.weight is not None, "finish is called once"
        self._packed_bytes = self.weight.nbytes
        self.packed = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach(), None)
        self.weight = None

    def forward(self, x_TD: Tensor) -> Tensor:
        """[T, in] → [T, out]"""
        if x_TD.shape[0] > MAX_ROWS_OF_MATRIX_UNIT and x_TD.dtype == torch.bfloat16 and _has_matrix_unit():
            return torch.cat([self._product(part_TD) for part_TD in torch.split(x_TD, MAX_ROWS_OF_MATRIX_UNIT)])
        return self._product(x_TD)

    def _product(self, x_TD: Tensor) -> Tensor:
        alone = x_TD.shape[0] == 1 and x_TD.shape[1] > MAX_INPUTS_OF_ONE_ROW
        rows_TD = x_TD.expand(2, -1).contiguous() if alone else x_TD
        out: Tensor = torch.ops.mkldnn._linear_pointwise(rows_TD, self.packed, self.bias, "none", [], "")
        return out[:1] if alone else out


class Packed(Dense):
    """See Scheme. float32 or bfloat16 on CPU."""

    is_plain = False
    is_traceable = False
    copies_tied_head = True

    @staticmethod
    def refuse(device: torch.device, dtype: torch.dtype) -> str | None:
        """Needs a CPU, torch's oneDNN, and a dtype that it multiplies on this processor."""
        if device.type != "cpu":
            return f"needs a CPU, and the device is {device}"
        if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
            return "needs a torch that was built with oneDNN"
        if dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return None
        return (
            None if dtype == torch.float32 else f"cannot multiply {str(dtype).removeprefix('torch.')} on this processor"
        )

    @staticmethod
    def native_layout(dtype: torch.dtype) -> str | None:
        """None: the layout is oneDNN's own, and cannot be read."""
        del dtype
        return None

    def linear(self, in_features: int, out_features: int, bias: bool) -> Matrix:
        """See Scheme."""
        return PackedLinear(in_features, out_features, bias)
