"""The matrices of program graphs: what the product kernel reads of the modules' own tensors, and how it is launched."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from tokenmill.kernels.triton.arithmetic import INTERPRETED, ROWS
from tokenmill.kernels.triton.products import add_chosen, add_normed, product
from tokenmill.model.blocks import Norm
from tokenmill.program.native.spec import ACTIVATIONS
from tokenmill.quant.matrix import Matrix
from tokenmill.quant.quantized import CompactLinear, QuantizedLinear, has_exponents, kind_of
from tokenmill.quant.stored import TENSORS, Stored

TRITON = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}

OUTPUTS, INPUTS = 32, 128
"""Outputs of one program, and inputs of one of its iterations. A matrix of 4,096 outputs then has 128 programs, about
one for each processor of an A100 or H100; a row of a tile is 256 bytes of bfloat16, two whole lines of the cache."""
WARPS, STAGES = 4, 4
"""Three tiles of weights, of 8 KB in bfloat16, are on their way while one is multiplied. To be measured on a GPU."""


def inputs_of(dtype: torch.dtype) -> int:
    """Choose the inputs of one iteration: half as many of float32, so that a program has room in 99 KB of shared
    memory, which GPUs for desktops have (compute capability 8.6 to 12.0).
    """
    return INPUTS // 2 if dtype == torch.float32 else INPUTS


class NormOf(NamedTuple):
    """A norm before a product: its weight, epsilon, and whether the weight is an offset from 1. centred: LayerNorm,
    perhaps with a bias.
    """

    weight: Tensor
    eps: float
    unit_offset: bool
    centred: bool = False
    bias: Tensor | None = None

    @classmethod
    def of(cls, norm: Norm | None, module: Any) -> "NormOf | None":
        if norm is None:
            return None
        bias = module.bias.detach() if norm.bias else None
        return cls(module.weight.detach(), norm.eps, norm.unit_offset, norm.kind == "layer", bias)

    @property
    def kind(self) -> dict[str, bool]:
        """Name it by the kernels' constants."""
        return {"CENTRED": self.centred, "NORM_BIAS": self.bias is not None, "UNIT_OFFSET": self.unit_offset}


NO_NORM = {"CENTRED": False, "NORM_BIAS": False, "UNIT_OFFSET": False}


class MatrixRows(NamedTuple):
    """The rows of a matrix that are stored alike; of experts the same rows of each. bits: 0 for plain numbers. paired:
    a byte has two codes. e2m1: they are numbers in floating point, and the scales exponents. minimums: or the factors
    of each 16 inputs, where `factored`. places: where the rows of each expert lie among these, -1 for an expert that is
    stored otherwise; None for all in their order.
    """

    first: int
    num_rows: int
    bits: int
    numbers: Tensor
    scales: Tensor
    minimums: Tensor | None
    paired: bool
    e2m1: bool
    factored: bool
    places: Tensor | None

    @classmethod
    def of(cls, part: Stored, first: int, num_experts: int = 1, places: Tensor | None = None) -> "MatrixRows":
        count = part.num_rows // num_experts
        if part.numbers is not None:
            return cls(first, count, 0, part.numbers.contiguous(), part.numbers, None, False, False, False, places)
        paired, factored = part.codes is None, part.factors is not None
        codes, others = part.halves if paired else part.codes, part.factors if factored else part.minimums
        assert codes is not None and part.scales is not None, "codes have scales"
        others = None if others is None else others.contiguous()
        numbers = codes.contiguous(), part.scales.contiguous(), others
        return cls(first, count, part.bits, *numbers, paired, has_exponents(part), factored, places)


def _stored(module: nn.Module) -> list[Stored]:
    """The rows of a matrix as its module has them."""
    if isinstance(module, CompactLinear):
        return module.as_they_lie()
    assert isinstance(module.weight, Tensor), "filled"
    return [Stored.plain(module.weight.detach())]


def _bias(module: nn.Module) -> Tensor | None:
    bias = getattr(module, "bias", None)
    return None if bias is None else bias.detach()


def _kinds(parts: list[Stored]) -> tuple[object, ...]:
    """Tell how the parts of a matrix are stored: parts of matrices of one kind can lie in one tensor."""
    return tuple((part.num_rows, *kind_of(part)) for part in parts)


def _together(modules: Sequence[Matrix], stored: list[list[Stored]]) -> list[Stored]:
    """Put each part of these matrices, which are stored alike, into one tensor, which their modules then read, too."""
    whole, own = list[Stored](), [list[Stored]() for _ in modules]
    for parts in zip(*stored, strict=True):
        given = {name: [getattr(part, name) for part in parts] for name in TENSORS}
        stacked = {name: torch.stack(tensors) for name, tensors in given.items() if tensors[0] is not None}
        whole.append(Stored(parts[0].bits, **{name: each.flatten(0, 1) for name, each in stacked.items()}))
        for number, of_module in enumerate(own):
            of_module.append(Stored(parts[0].bits, **{name: each[number] for name, each in stacked.items()}))
    for module, kept in zip(modules, own, strict=True):
        (module.keep if isinstance(module, QuantizedLinear) else module.fill)(kept)
    return whole


class Clamps(NamedTuple):
    """The two numbers of a clamped SwiGLU; see model.layers.clamped_swiglu."""

    alpha: float
    limit: float


class Experts(NamedTuple):
    """The chosen experts of each row, [B, C] of their numbers. reads_pairs: x has a row for each of them."""

    chosen_BC: Tensor
    reads_pairs: bool


class GraphMatrix:
    """One matrix, or the matrices of all experts or heads. x is [B, K] of the model's dtype; a product is written to
    rows of `out`, or added to them.
    """

    def __init__(
        self, parts: list[MatrixRows], bias: Tensor | None, multipliers: Sequence[float] = (), gated: bool = False
    ) -> None:
        self.parts, self.bias, self.gated = parts, bias, gated
        self.num_outputs = max(part.first + part.num_rows for part in parts)
        self.multipliers = [*multipliers, 1.0, 1.0][:2]

    @classmethod
    def of(cls, module: nn.Module, multipliers: Sequence[float] = (), gated: bool = False) -> "GraphMatrix":
        """Make it of a module, whose tensors it reads."""
        return cls(list(_in_order(_stored(module))), _bias(module), multipliers, gated)

    @classmethod
    def of_experts(cls, modules: Sequence[Matrix], multipliers: Sequence[float], gated: bool) -> "GraphMatrix":
        """Make it of the modules of experts or heads. Tensors of modules that are stored alike become parts of one."""
        stored, rows = [_stored(module) for module in modules], list[MatrixRows]()
        kinds = [_kinds(parts) for parts in stored]
        for kind in dict.fromkeys(kinds):
            alike, places = [number for number, each in enumerate(kinds) if each == kind], None
            if len(alike) < len(modules):
                order = [alike.index(number) if number in alike else -1 for number in range(len(modules))]
                places = torch.tensor(order, device=next(chain(modules[0].parameters(), modules[0].buffers())).device)
            whole = _together([modules[number] for number in alike], [stored[number] for number in alike])
            rows += _in_order(whole, len(alike), places)
        biases = [_bias(module) for module in modules]
        bias = None if biases[0] is None else torch.cat([each for each in biases if each is not None])
        return cls(rows, bias, multipliers, gated)

    @property
    def splits_gates(self) -> bool:
        """Tell whether gates and factors are stored in different ways, so that one kernel cannot read both."""
        return self.gated and any(part.num_rows < self.num_outputs for part in self.parts)

    def __call__(
        self,
        x: Tensor,
        out: Tensor,
        norm: NormOf | None = None,
        activation: str = "",
        adds: float | None = None,
        clamps: Clamps | None = None,
        experts: Experts | None = None,
    ) -> Tensor:
        """Compute out = activation(matrix · norm(x)). adds: the result is multiplied by this and added to `out`.

        Of x [B, N, K] each head's part of a row is multiplied with the head's matrix, and `out` is [B, N, F].
        """
        heads = x.shape[1] if x.dim() > 2 else 0
        gated = self.gated and not self.splits_gates
        pairs = 0 if experts is None else experts.chosen_BC.numel()
        for part in self.parts:
            rows = part.num_rows
            count = rows // 2 if gated else rows
            multiplier = self.multipliers[self.splits_gates and 2 * part.first >= self.num_outputs]
            to = out[..., part.first :] if part.first else out
            grid = (triton.cdiv(count, OUTPUTS), pairs or triton.cdiv(len(x), ROWS.value), max(heads, 1))
            bias = None if self.bias is None else self.bias[part.first :]
            product[grid](
                x, norm.weight if norm else x, norm.bias if norm and norm.bias is not None else x, part.numbers,
                part.scales,
                part.scales if part.minimums is None else part.minimums, x if bias is None else bias, to,
                x if experts is None else experts.chosen_BC, x if part.places is None else part.places,
                len(x), x.shape[-1], count, x.stride(0), to.stride(0), x.stride(1), to.stride(1),
                rows * part.numbers.shape[1], rows * part.scales.shape[1], self.num_outputs if bias is not None else 0,
                norm.eps if norm else 0.0, multiplier, self.multipliers[1], 1.0 if adds is None else adds,
                *(clamps or (1.0, 1.0)), CHOSEN=0 if experts is None else experts.chosen_BC.shape[1],
                BY_HEADS=heads > 0, SEVERAL=part.places is not None,
                READS_PAIRS=experts is not None and experts.reads_pairs, CLAMPED=clamps is not None,
                NORM=norm is not None, **(NO_NORM if norm is None else norm.kind),
                TWO_PASSES=norm is not None and (norm.centred or x.dtype == torch.float16), GATED=gated,
                ACTIVATION=ACTIVATIONS[activation] if activation and not self.splits_gates else 0,
                HAS_BIAS=bias is not None, ADDS=adds is not None, BITS=part.bits, PAIRED=part.paired,
                E2M1=part.e2m1, FACTORED=part.factored, HAS_MINIMUMS=part.minimums is not None and not part.factored,
                T=TRITON[x.dtype], OUT=TRITON[out.dtype], OUTPUTS=OUTPUTS,
                INPUTS=inputs_of(x.dtype), INTERPRETED=INTERPRETED, num_warps=WARPS, num_stages=STAGES,
            )  # fmt: skip
        return out


def _in_order(parts: Sequence[Stored], num_experts: int = 1, places: Tensor | None = None) -> Iterator[MatrixRows]:
    at = 0
    for part in parts:
        yield MatrixRows.of(part, at, num_experts, places)
        at += part.num_rows // num_experts


def add_experts(parts: Tensor, weights_BC: Tensor, out: Tensor, adds: float | None) -> Tensor:
    """Add up what the chosen experts gave, [B · C, F] float32, times their weights, in their order."""
    count, chosen = weights_BC.shape
    add_chosen[(triton.cdiv(parts.shape[1], INPUTS), count)](
        parts, weights_BC, out, parts.shape[1], out.stride(0), 1.0 if adds is None else adds, CHOSEN=chosen,
        OUTPUTS=INPUTS, ADDS=adds is not None, T=TRITON[out.dtype], INTERPRETED=INTERPRETED,
    )  # fmt: skip
    return out


def add_norm(x: Tensor, out: Tensor, norm: NormOf, multiplier: float) -> None:
    """Add multiplier · norm(x) to `out`, row by row."""
    inputs = min(triton.next_power_of_2(x.shape[1]), 4096)
    add_normed[(len(x),)](
        x, out, norm.weight, x if norm.bias is None else norm.bias, x.shape[1], x.stride(0), out.stride(0), norm.eps,
        multiplier, **norm.kind, INPUTS=inputs, T=TRITON[out.dtype], INTERPRETED=INTERPRETED,
    )  # fmt: skip
