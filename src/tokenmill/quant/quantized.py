"""The module of schemes q8, q4 and file: a matrix of integer codes.

Rows of a checkpoint that are codes are kept exactly; floating-point rows are rounded when the matrix is complete. The
PyTorch module dequantises its rows to multiply, which works on every device and is fast on none. The native program
takes the parts and has kernels for them.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from tokenmill.quant.dense import is_one_traced_row, product, realised
from tokenmill.quant.matrix import Matrix
from tokenmill.quant.rtn import round_to_nearest
from tokenmill.quant.schemes import GROUP
from tokenmill.quant.stored import Stored

TENSORS = ("numbers", "codes", "scales", "minimums")  # of Stored


class QuantizedLinear(Matrix):
    """x · weightᵀ + bias, from parts that each cover some rows.

    bits: to what floating-point rows are rounded; None leaves them as they are.
    """

    keeps_codes = True

    def __init__(self, in_features: int, out_features: int, bias: bool, bits: int | None = None) -> None:
        super().__init__(in_features, out_features, bias)
        self.fills_in = None if bits is None else torch.float32  # so that values are rounded once, not twice
        self._bits, self._out_features = bits, out_features
        self._kept: dict[int, Stored] = {}
        self._part_bits: list[int] = []

    def keep(self, first: int, stored: Stored) -> bool:
        if self._bits is not None and stored.bits > self._bits:
            return False
        self._kept[first] = stored
        return True

    def finish(self) -> None:
        assert self.weight is not None, "finish is called once"
        device = self.weight.device
        for stored in self._rounded():
            self._add(stored.unpacked(), device)

    def _rounded(self) -> Iterator[Stored]:
        """The codes that were kept and, between them, what was filled in, rounded; both are gone then."""
        assert self.weight is not None, "nothing is rounded twice"
        first, weight, kept = 0, self.weight, sorted(self._kept.items())
        self._kept, self.weight = {}, None
        for start, stored in [*kept, (self._out_features, None)]:
            if start > first:
                rows = weight[first:start].detach()
                yield (
                    Stored.plain(rows.clone()) if self._bits is None else round_to_nearest(rows, self._bits, quick=True)
                )
            if stored is not None:
                yield stored
                first = start + stored.num_rows

    def _add(self, stored: Stored, device: torch.device) -> None:
        for name in TENSORS:
            tensor = getattr(stored, name)  # codes of a file are on the CPU
            self.register_buffer(f"{name}_{len(self._part_bits)}", None if tensor is None else tensor.to(device))
        self._part_bits.append(stored.bits)

    def parts(self) -> list[Stored]:
        """All rows in order, after `finish`."""
        return [
            Stored(bits, *(getattr(self, f"{name}_{number}") for name in TENSORS))
            for number, bits in enumerate(self._part_bits)
        ]

    def take_parts(self) -> list[Stored]:
        """See Matrix."""
        if self.weight is not None:
            return list(self._rounded())
        parts = self.parts()
        for number in range(len(self._part_bits)):
            for name in TENSORS:
                delattr(self, f"{name}_{number}")
        self._part_bits = []
        return parts

    def forward(self, x_TD: Tensor) -> Tensor:
        times = _sums if is_one_traced_row(x_TD) else _product
        parts = self.parts()
        biases = [None] * len(parts) if self.bias is None else torch.split(self.bias, [part.num_rows for part in parts])
        return torch.cat([times(x_TD, part, bias) for part, bias in zip(parts, biases, strict=True)], dim=-1)


def _product(x_TD: Tensor, part: Stored, bias_R: Tensor | None) -> Tensor:
    values_RD = part.values().to(x_TD.dtype)
    bias_R = None if bias_R is None else bias_R.to(x_TD.dtype)
    # Rows of codes are filled up to whole groups. Not cut off: inductor (2.13) makes NaN of a product with a slice.
    return F.linear(F.pad(x_TD, (0, values_RD.shape[1] - x_TD.shape[1])), values_RD, bias_R)


def _sums(x_1D: Tensor, part: Stored, bias_R: Tensor | None) -> Tensor:
    """The same of one row, as sums that a compiler makes one pass over the codes of."""
    if part.codes is None or part.scales is None:
        assert part.numbers is not None, "a part has numbers or codes"
        return product(x_1D, part.numbers, bias_R)
    missing = part.codes.shape[1] - x_1D.shape[1]
    x_GC = F.pad(realised(x_1D.float().flatten()), (0, missing)).view(-1, GROUP)
    codes_RGC = part.codes.view(part.num_rows, -1, GROUP).float()
    if part.minimums is None:
        out_R = ((codes_RGC - (1 << part.bits - 1)) * x_GC * part.scales[..., None]).sum((-1, -2))
    else:
        sums_G = realised(x_GC.sum(-1))
        out_R = (codes_RGC * x_GC * part.scales[..., None]).sum((-1, -2)) + (part.minimums * sums_G).sum(-1)
    return (out_R if bias_R is None else out_R + bias_R)[None].to(x_1D.dtype)
