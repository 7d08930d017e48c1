"""The operations of mixers that keep a state. All products are stored beside each other, [tokens, columns]; convolution
and recurrence compute in their place, and gated results are the input of the last matrix.
"""

from collections.abc import Callable
from typing import Any

from tokenmill.cache.pool import LayerStates
from tokenmill.model.mixers import Mixer
from tokenmill.model.mixers.short_conv import ShortConvBlock
from tokenmill.model.parameters import join
from tokenmill.program.native.op_list import ATTENDED, ATTENTION_IN, CONVOLVE, GATE, IDENTITY, STORE, OpList

CHANNELS = 64
"""Channels of a task of a convolution: four cache lines of a token."""


def add_mixer(ops: OpList, layer: int, block: Mixer, kept: LayerStates, joins: dict[str, Any]) -> None:
    """Add the operations of a mixer. joins: the fields of the linear whose products the layer adds."""
    MAKE[block.name](_Parts(ops, layer, block, kept), block)
    ops.linear([(layer, f"{block.name}.out")], block.matrices["out"], source=ATTENDED, **joins)


class _Parts:
    """One mixer's matrices and tensors, by their roles."""

    def __init__(self, ops: OpList, layer: int, block: Mixer, kept: LayerStates) -> None:
        self.add, self._ops, self._layer, self._block = ops.add, ops, layer, block
        self.states = [tensor.data_ptr() for tensor in kept.tensors]
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

    def tensor(self, name: str, transposed: bool = False) -> int:
        """Give the address of a vector, or of the taps of a convolution."""
        return self._ops.keep(join(self._layer, f"{self._block.name}.{name}"), transposed=transposed)

    def convolution(self, **fields: Any) -> None:
        """Add the convolution of some columns, whose last inputs are the first state."""
        taps = {"weight": self.tensor("conv", transposed=True), "state": self.states[0]}
        bias = self.tensor("conv_bias") if "conv_bias" in self._block.vectors else None
        self.add(CONVOLVE, bias=bias, **taps, **fields)


def _short_conv(parts: _Parts, block: ShortConvBlock) -> None:
    b, c, x, _ = parts.store("inner")
    width: dict[str, Any] = {"column": x, "outputs": block.width}
    parts.convolution(gated=1, gate=b, taps=block.num_taps, block=CHANNELS, activation=IDENTITY, **width)
    parts.add(GATE, to=ATTENDED, gate=c, activation=IDENTITY, **width)


MAKE: dict[str, Callable[[_Parts, Any], None]] = {"short_conv": _short_conv}
