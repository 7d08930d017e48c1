"""The operations of mixers that keep a state. All products are stored beside each other, [tokens, columns]; convolution
and recurrence compute in their place, and gated results are the input of the last matrix.
"""

from collections.abc import Callable
from typing import Any

from tokenmill.cache.pool import LayerStates
from tokenmill.model.blocks import Norm
from tokenmill.model.mixers import Mixer
from tokenmill.model.mixers.delta_net import DeltaNetBlock
from tokenmill.model.mixers.delta_net_module import EPS
from tokenmill.model.mixers.kda import KimiDeltaBlock
from tokenmill.model.mixers.mamba2 import Mamba2Block
from tokenmill.model.mixers.short_conv import ShortConvBlock
from tokenmill.model.parameters import join
from tokenmill.program.native.op_list import (
    ACTIVATED,
    ATTENDED,
    ATTENTION_IN,
    CONVOLVE,
    EACH_HEAD,
    GATE,
    IDENTITY,
    LATENT,
    OWN_HEAD,
    RECUR,
    SIGMOID,
    SILU,
    STORE,
    OpList,
)

CHANNELS = 64
"""Channels of a task of a convolution: four cache lines of a token."""
NO_DELTA_RULE = -1  # in the place of the column of its strengths


def add_mixer(ops: OpList, layer: int, block: Mixer, kept: LayerStates, joins: dict[str, Any]) -> None:
    """Add the operations of a mixer. joins: the fields of the linear whose products the layer adds."""
    MAKE[block.name](_Parts(ops, layer, block, kept), block)
    ops.linear([(layer, f"{block.name}.out")], block.matrices["out"], source=ATTENDED, **joins)


class _Parts:
    """One mixer's matrices and tensors, by their roles."""

    def __init__(self, ops: OpList, layer: int, block: Mixer, kept: LayerStates) -> None:
        self.add, self._ops, self._layer, self._block = ops.add, ops, layer, block
        self.states = [tensor.data_ptr() for tensor in kept.tensors]
        self._shapes = [tensor.shape for tensor in kept.tensors]
        self._columns = 0

    def store(self, role: str) -> list[int]:
        """Add the product of a matrix, stored behind the others; return the first columns of its parts, and the end."""
        matrix, columns = self._block.matrices[role], [self._columns]
        place = [(self._layer, f"{self._block.name}.{role}")]
        self._ops.linear(place, matrix, STORE, ATTENTION_IN, column=self._columns)
        for part in matrix.parts:
            columns.append(columns[-1] + part)
        self._columns = columns[-1]
        return columns

    def store_low(self, role: str) -> int:
        """Add two matrices in succession, whose product is stored behind the others; return its first column."""
        matrices, column = self._block.matrices, self._columns
        low, high = ([(self._layer, f"{self._block.name}.{role}_{end}")] for end in ("in", "out"))
        self._ops.linear(low, matrices[f"{role}_in"], ACTIVATED, ATTENTION_IN, to=LATENT, activation=IDENTITY)
        self._ops.linear(high, matrices[f"{role}_out"], STORE, LATENT, column=column)
        self._columns += matrices[f"{role}_out"].outputs
        return column

    def tensor(self, name: str, transposed: bool = False) -> int:
        """Give the address of a vector, or of the taps of a convolution."""
        return self._ops.keep(join(self._layer, f"{self._block.name}.{name}"), transposed=transposed)

    def convolution(self, **fields: Any) -> None:
        """Add the convolution of some columns, whose last inputs are the first state."""
        taps = {"weight": self.tensor("conv", transposed=True), "state": self.states[0]}
        bias = self.tensor("conv_bias") if "conv_bias" in self._block.vectors else None
        self.add(CONVOLVE, bias=bias, **taps, **fields)

    def recurrence(self, **fields: Any) -> None:
        """Add the recurrence of all heads, whose states are the second one."""
        decays = {"a_log": self.tensor("A_log"), "dt_bias": self.tensor("dt_bias"), "state": self.states[1]}
        self.add(RECUR, **{"columns": self._shapes[1][-1], "decays": 1, **decays, **fields})

    def norm(self, norm: Norm) -> dict[str, Any]:
        """Make the fields of the norm of the results."""
        path = join(self._layer, f"{self._block.name}.norm")
        return {"weight": self._ops.factors(path, norm), "eps": norm.eps}


def _short_conv(parts: _Parts, block: ShortConvBlock) -> None:
    b, c, x, _ = parts.store("inner")
    width: dict[str, Any] = {"column": x, "outputs": block.width}
    parts.convolution(gated=1, gate=b, taps=block.num_taps, block=CHANNELS, activation=IDENTITY, **width)
    parts.add(GATE, to=ATTENDED, gate=c, activation=IDENTITY, **width)


def _delta_net(parts: _Parts, block: DeltaNetBlock) -> None:
    (q, k, v, z, _), (b, a, _) = parts.store("qkvz"), parts.store("gates")
    unit: dict[str, Any] = {"unit_blocks": 2 * block.num_k_heads, "eps": EPS, "scale": block.key_dim**-0.5}
    parts.convolution(
        column=q, outputs=block.num_channels, taps=block.num_taps, block=block.key_dim, activation=SILU, **unit
    )
    keys = {"query": q, "key": k, "key_heads": block.num_k_heads, "key_dim": block.key_dim}
    values = {"value": v, "heads": block.num_v_heads, "head_dim": block.value_dim}
    parts.recurrence(decay=a, strength=b, scale=block.max_beta, **keys, **values)
    norm = {"block": block.value_dim, "norm_scope": EACH_HEAD} | parts.norm(block.norm)
    parts.add(GATE, to=ATTENDED, column=v, gate=z, outputs=block.out.inputs, activation=SILU, **norm)


def _kda(parts: _Parts, block: KimiDeltaBlock) -> None:
    width = block.out.inputs
    (q, k, v, _), (b, _), f, z = parts.store("qkv"), parts.store("beta"), *map(parts.store_low, ("forget", "gate"))
    unit: dict[str, Any] = {"unit_blocks": 2 * block.num_heads, "eps": EPS, "scale": block.head_dim**-0.5}
    parts.convolution(
        column=q, outputs=block.num_channels, taps=block.num_taps, block=block.head_dim, activation=SILU, **unit
    )
    keys = {"query": q, "key": k, "key_heads": block.num_heads, "key_dim": block.head_dim}
    values = {"value": v, "heads": block.num_heads, "head_dim": block.head_dim}
    parts.recurrence(decay=f, strength=b, decays=block.head_dim, **keys, **values)
    norm = {"block": block.head_dim, "norm_scope": EACH_HEAD} | parts.norm(block.norm)
    parts.add(GATE, to=ATTENDED, column=v, gate=z, outputs=width, activation=SIGMOID, **norm)


def _mamba2(parts: _Parts, block: Mamba2Block) -> None:
    z, x, b, c, dt, _ = parts.store("inner")
    parts.convolution(column=x, outputs=block.num_channels, taps=block.num_taps, block=CHANNELS, activation=SILU)
    keys = {"query": c, "key": b, "key_heads": block.num_groups, "key_dim": block.state_dim}
    values = {"value": x, "heads": block.num_heads, "head_dim": block.head_dim}
    limits = dict(zip(("min_step", "max_step"), block.dt_limits, strict=True))
    parts.recurrence(decay=dt, strength=NO_DELTA_RULE, skip=parts.tensor("D"), **keys, **values, **limits)
    norm: dict[str, Any] = {}
    if block.norm is not None:
        norm = {"block": block.width // block.num_groups, "norm_scope": OWN_HEAD} | parts.norm(block.norm)
        norm["gate_first"] = int(not block.norm_first)
    parts.add(GATE, to=ATTENDED, column=x, gate=z, outputs=block.width, activation=SILU, **norm)


MAKE: dict[str, Callable[[_Parts, Any], None]] = {
    "short_conv": _short_conv,
    "delta_net": _delta_net,
    "kda": _kda,
    "mamba2": _mamba2,
}
