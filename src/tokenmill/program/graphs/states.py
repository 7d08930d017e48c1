"""Layers that keep a state, as launches of kernels: the modules of model/mixers for one token of each sequence.

The products of a row lie beside each other in float32; convolution and recurrence compute in their place.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
from torch import Tensor

from tokenmill.kernels.triton.arithmetic import INTERPRETED
from tokenmill.kernels.triton.states import convolve, gate, recur
from tokenmill.model.mixers.delta_net import DeltaNetBlock
from tokenmill.model.mixers.delta_net_module import EPS
from tokenmill.model.mixers.kda import KimiDeltaBlock
from tokenmill.model.mixers.mamba2 import Mamba2Block
from tokenmill.program.graphs.matrices import TRITON, GraphMatrix, NormOf
from tokenmill.program.graphs.rows import StepRows
from tokenmill.program.native.op_list import IDENTITY, SIGMOID, SILU

CHANNELS = 128
"""Channels of one program of a convolution, one for each of its threads."""
COLUMNS = 32
"""Columns of a state of one program, see model.mixers.slices: with keys of 128 its threads hold 32 numbers each."""


class GraphState:
    """A mixer that keeps a state. vectors: its parameters beside matrices. out: the matrix of what it computes."""

    def __init__(self, block: Any, module: Any) -> None:
        self.block, (chains, self._mix) = block, MIX[block.name]
        self.chains = [[GraphMatrix.of(getattr(module, role)) for role in chain] for chain in chains]
        self.out = GraphMatrix.of(module.out, block.out.multipliers)
        self.parts = [size for chain in chains for size in block.matrices[chain[-1]].parts]
        self.vectors = {name: getattr(module, name).detach() for name in block.vectors}
        self.norm = NormOf.of(block.norms["norm"], module.norm) if block.norms else None

    def __call__(self, x_BD: Tensor, norm: NormOf | None, cached: tuple[Tensor, ...], rows: StepRows) -> Tensor:
        """Take the token of each row into its states; return the input of the last matrix, [B, I]."""
        assert rows.slots_B2 is not None, "a step of a model with states has slots of states"
        stored, at = x_BD.new_empty((len(x_BD), sum(self.parts)), dtype=torch.float32), 0
        for *before, last in self.chains:
            given, of_given = x_BD, norm
            for matrix in before:
                given, of_given = matrix(given, x_BD.new_empty((len(x_BD), matrix.num_outputs)), of_given), None
            last(given, stored[:, at:], of_given)
            at += last.num_outputs
        out_BI = x_BD.new_empty((len(x_BD), self.block.out.inputs))
        for which, own in rows.turns():
            assert own.slots_B2 is not None, "a turn of rows with slots has some"
            self._mix(self, stored[which], cached, own.slots_B2, out_BI[which])
        return out_BI

    def convolve(
        self, x_BC: Tensor, states: Tensor, slots_B2: Tensor, activation: int, gates_BC: Tensor | None = None
    ) -> None:
        """Convolve columns of the products in place. gates_BC: other columns, which multiply x before."""
        (count, channels), taps, bias = x_BC.shape, self.vectors["conv"], self.vectors.get("conv_bias")
        convolve[(count, triton.cdiv(channels, CHANNELS))](
            x_BC, x_BC if gates_BC is None else gates_BC, taps, taps if bias is None else bias, states, slots_B2,
            x_BC.stride(0), CHANNELS=channels, TAPS=taps.shape[1], GATED=gates_BC is not None,
            HAS_BIAS=bias is not None, ACTIVATION=activation, TILE=CHANNELS,
        )  # fmt: skip

    def recur(
        self, parts: Sequence[Tensor], states: Tensor, slots_B2: Tensor, key_heads: int, **numbers: float
    ) -> None:
        """Take a token of each row into the states of its heads; results take the place of the values.

        parts: queries, keys, values, decays, and by the delta rule strengths. Decays are of heads, or of each number of
        a head's key. numbers: arguments of the kernel.
        """
        heads, slices, keys, columns = states.shape[1:]
        query, key, value, decay, strength = [*parts, *parts[3:]][:5]
        a_log, tile = self.vectors["A_log"], min(COLUMNS, triton.next_power_of_2(columns))
        recur[(len(value), heads, slices * triton.cdiv(columns, tile))](
            query, key, value, decay, strength, a_log, self.vectors["dt_bias"], self.vectors.get("D", a_log), states,
            slots_B2, value.stride(0), EPS,
            **{"scale": 1.0, "max_strength": 1.0, "min_step": 0.0, "max_step": 0.0} | numbers,
            DELTA=len(parts) > 4, EACH_DECAYS=decay.shape[1] > heads, HEADS=heads, KEY_HEADS=key_heads,
            KEY_DIM=keys, VALUE_DIM=slices * columns, COLUMNS=columns, KEYS=triton.next_power_of_2(keys), TILE=tile,
        )  # fmt: skip


def _short_conv(mixer: GraphState, stored: Tensor, cached: tuple[Tensor, ...], slots_B2: Tensor, out: Tensor) -> None:
    b, c, x = torch.split(stored, mixer.parts, dim=1)
    mixer.convolve(x, cached[0], slots_B2, IDENTITY, b)
    multiply(x, c, out, IDENTITY)


def _delta_net(mixer: GraphState, stored: Tensor, cached: tuple[Tensor, ...], slots_B2: Tensor, out: Tensor) -> None:
    block: DeltaNetBlock = mixer.block
    q, k, v, z, strength, decay = torch.split(stored, mixer.parts, dim=1)
    mixer.convolve(stored[:, : block.num_channels], cached[0], slots_B2, SILU)
    numbers = {"scale": block.key_dim**-0.5, "max_strength": block.max_beta}
    mixer.recur((q, k, v, decay, strength), cached[1], slots_B2, block.num_k_heads, **numbers)
    multiply(v, z, out, SILU, block.num_v_heads, mixer.norm)


def _mamba2(mixer: GraphState, stored: Tensor, cached: tuple[Tensor, ...], slots_B2: Tensor, out: Tensor) -> None:
    block: Mamba2Block = mixer.block
    z, x, b, c, decay = torch.split(stored, mixer.parts, dim=1)
    mixer.convolve(stored[:, block.width : block.width + block.num_channels], cached[0], slots_B2, SILU)
    limits = dict(zip(("min_step", "max_step"), block.dt_limits, strict=True))
    mixer.recur((c, b, x, decay), cached[1], slots_B2, block.num_groups, **limits)
    multiply(x, z, out, SILU, block.num_groups if mixer.norm else 1, mixer.norm, block.norm_first)


def _kda(mixer: GraphState, stored: Tensor, cached: tuple[Tensor, ...], slots_B2: Tensor, out: Tensor) -> None:
    block: KimiDeltaBlock = mixer.block
    q, k, v, forget, gates, strength = torch.split(stored, mixer.parts, dim=1)
    mixer.convolve(stored[:, : block.num_channels], cached[0], slots_B2, SILU)
    mixer.recur((q, k, v, forget, strength), cached[1], slots_B2, block.num_heads, scale=block.head_dim**-0.5)
    multiply(v, gates, out, SIGMOID, block.num_heads, mixer.norm)


MIX: dict[str, tuple[tuple[tuple[str, ...], ...], Callable[..., None]]] = {
    "short_conv": ((("inner",),), _short_conv),
    "delta_net": ((("qkvz",), ("gates",)), _delta_net),
    "kda": ((("qkv",), ("forget_in", "forget_out"), ("gate_in", "gate_out"), ("beta",)), _kda),
    "mamba2": ((("inner",),), _mamba2),
}
"""By the name of a mixer in MIXERS: the roles of the matrices before its state, in chains of which each reads what the
one before gives, and the function of what follows.
"""


def multiply(
    x_BI: Tensor,
    gates_BI: Tensor,
    out_BI: Tensor,
    activation: int,
    groups: int = 1,
    norm: NormOf | None = None,
    norm_first: bool = True,
) -> None:
    """Write x · activation(gates) to `out`; each group of columns is normed, before or after that."""
    width = x_BI.shape[1] // groups
    has_own = norm is not None and len(norm.weight) > width
    gate[(len(x_BI), groups)](
        x_BI, gates_BI, norm.weight if norm else x_BI, out_BI, x_BI.stride(0), gates_BI.stride(0), out_BI.stride(0),
        width if has_own else 0, norm.eps if norm else 0.0, WIDTH=width, ACTIVATION=activation, NORM=norm is not None,
        NORM_FIRST=norm_first, INPUTS=min(triton.next_power_of_2(width), 4096), T=TRITON[out_BI.dtype],
        INTERPRETED=INTERPRETED,
    )  # fmt: skip
