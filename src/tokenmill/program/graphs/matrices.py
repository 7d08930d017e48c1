"""The matrices of program graphs: what the product kernel reads of the modules' own tensors, and how it is launched."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from tokenmill.kernels.triton.arithmetic import ACTIVATIONS, INTERPRETED, ROWS
from tokenmill.kernels.triton.products import add_normed, product
from tokenmill.model.blocks import Norm
from tokenmill.quant.quantized import QuantizedLinear
from tokenmill.quant.schemes import GROUP
from tokenmill.quant.stored import Stored

TRITON = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}

OUTPUTS, INPUTS = 32, 128
"""Outputs of one program, and inputs of one of its iterations. A matrix of 4,096 outputs then has 128 programs, about
one for each processor of an A100 or H100; a row of a tile is 256 bytes of bfloat16, two whole lines of the cache."""
WARPS, STAGES = 4, 4
"""Four tiles of weights, of 8 KB in bfloat16, are on their way while one is multiplied. To be measured on a GPU."""


class NormOf(NamedTuple):
    """A norm before a product: its weight, epsilon, and whether the weight is an offset from 1."""

    weight: Tensor
    eps: float
    unit_offset: bool

    @classmethod
    def of(cls, norm: Norm | None, module: Any) -> "NormOf | None":
        return None if norm is None else cls(module.weight.detach(), norm.eps, norm.unit_offset)


class MatrixRows(NamedTuple):
    """The rows of a matrix that are stored alike. bits: 0 for plain numbers. paired: a byte has two codes."""

    first: int
    num_rows: int
    bits: int
    numbers: Tensor
    scales: Tensor
    minimums: Tensor | None
    paired: bool
    group: int

    @classmethod
    def of(cls, part: Stored, first: int) -> "MatrixRows":
        if part.numbers is not None:
            return cls(first, part.num_rows, 0, part.numbers.contiguous(), part.numbers, None, False, GROUP)
        assert part.scales is not None, "codes have scales"
        codes, scales, group = part.halves if part.codes is None else part.codes, part.scales, GROUP
        assert codes is not None, "a part has numbers or codes"
        if part.factors is not None:
            scales, group = scales.repeat_interleave(2, 1) * part.factors, GROUP // 2
        paired = part.codes is None
        return cls(
            first, part.num_rows, part.bits, codes.contiguous(), scales.contiguous(), part.minimums, paired, group
        )


class GraphMatrix:
    """One matrix. x is [B, K] of the model's dtype; a product is written to rows of `out`, or added to them."""

    def __init__(self, module: nn.Module, multipliers: Sequence[float] = (), gated: bool = False) -> None:
        if isinstance(module, QuantizedLinear):
            module.compact()
            parts = module.parts()
        else:
            assert isinstance(module.weight, Tensor), "filled"
            parts = [Stored.plain(module.weight.detach())]
        self.parts, at = list[MatrixRows](), 0
        for part in parts:
            self.parts.append(MatrixRows.of(part, at))
            at += part.num_rows
        bias = getattr(module, "bias", None)
        self.bias = None if bias is None else bias.detach()
        self.num_outputs, self.multipliers, self.gated = at, [*multipliers, 1.0, 1.0][:2], gated

    @property
    def splits_gates(self) -> bool:
        """Tell whether gates and factors are stored in different ways, so that one kernel cannot read both."""
        return self.gated and len(self.parts) > 1

    def __call__(
        self, x: Tensor, out: Tensor, norm: NormOf | None = None, activation: str = "", adds: float | None = None
    ) -> Tensor:
        """Compute out = activation(matrix · norm(x)). adds: the result is multiplied by this and added to `out`."""
        gated = self.gated and not self.splits_gates
        for part in self.parts:
            count = part.num_rows // 2 if gated else part.num_rows
            to = out if len(self.parts) == 1 else out[:, part.first :]
            grid = (triton.cdiv(count, OUTPUTS), triton.cdiv(len(x), ROWS.value))
            bias = None if self.bias is None else self.bias[part.first : part.first + part.num_rows]
            product[grid](
                x, norm.weight if norm else x, part.numbers, part.scales,
                part.scales if part.minimums is None else part.minimums, x if bias is None else bias, to,
                len(x), x.shape[1], count, x.stride(0), to.stride(0), norm.eps if norm else 0.0, self.multipliers[0],
                self.multipliers[1], 1.0 if adds is None else adds,
                NORM=norm is not None, UNIT_OFFSET=bool(norm and norm.unit_offset),
                TWO_PASSES=norm is not None and x.dtype == torch.float16, GATED=gated,
                ACTIVATION=ACTIVATIONS[activation] if activation and not self.splits_gates else 0,
                HAS_BIAS=bias is not None, ADDS=adds is not None, BITS=part.bits, PAIRED=part.paired, GROUP=part.group,
                HAS_MINIMUMS=part.minimums is not None, T=TRITON[x.dtype], OUT=TRITON[out.dtype], OUTPUTS=OUTPUTS,
                INPUTS=INPUTS, INTERPRETED=INTERPRETED, num_warps=WARPS, num_stages=STAGES,
            )  # fmt: skip
        return out


def add_norm(x: Tensor, out: Tensor, norm: NormOf, multiplier: float) -> None:
    """Add multiplier · norm(x) to `out`, row by row."""
    inputs = min(triton.next_power_of_2(x.shape[1]), 4096)
    add_normed[(len(x),)](
        x, out, norm.weight, x.shape[1], x.stride(0), out.stride(0), norm.eps, multiplier,
        UNIT_OFFSET=norm.unit_offset, INPUTS=inputs, T=TRITON[out.dtype], INTERPRETED=INTERPRETED,
    )  # fmt: skip
