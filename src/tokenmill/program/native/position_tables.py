"""The tables that the native program looks up by position."""

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tokenmill.kernels.threads import torch_threads
from tokenmill.model.description import DecoderDescription
from tokenmill.model.distance_bias_module import bias_table
from tokenmill.model.mixers.attention import AttentionBlock
from tokenmill.model.mixers.attention_module import temperatures
from tokenmill.model.mixers.latent import LatentBlock
from tokenmill.model.rope import RotaryTable

BIAS_PADDING = 17  # behind the distances of a head, as TmOp.distance_bias has it


class PositionTables:
    """The tables that the program looks up by position, in float32 whatever the model's dtype: cosines and sines of
    each rope, the temperatures of queries, and what is added to scores by distance, once for all layers that have the
    same. It owns their memory. weight: gives the address of a learned table in float32 by its name.
    """

    def __init__(self, decoder: DecoderDescription, num_positions: int, weight: Callable[[str], int]) -> None:
        self._angles = dict[Any, tuple[Tensor, Tensor]]()
        self._temperatures = dict[Any, Tensor]()
        self._bias_ND: Tensor | None = None
        positions_T = torch.arange(num_positions)
        bias = decoder.config.distance_bias
        with torch_threads(1):  # torch's other threads would spin for a while, in the way of our own
            for rope in decoder.ropes:
                table, half = RotaryTable(rope, num_positions, torch.float32, torch.device("cpu")), rope.dim // 2
                self._angles[rope] = table.cos_PH[:, :half].contiguous(), table.sin_PH[:, :half].contiguous()
            for block in (mixer for layer in decoder.layers for mixer in layer.mixers):
                if temperature := getattr(block, "temperature", None):
                    self._temperatures[temperature] = temperatures(positions_T, *temperature).flatten()

            if bias is not None:
                learned = [_at(weight(name), *shape) for name, shape in bias.shapes.items()]
                table_ND = bias_table(bias, learned[0] if learned else None, num_positions)
                self._bias_ND = torch.nn.functional.pad(table_ND, (0, BIAS_PADDING))

    @property
    def bias(self) -> int | None:
        """The address of what is added to scores, as TmOp has it; None where nothing is."""
        return None if self._bias_ND is None else self._bias_ND.data_ptr()

    def fields(self, block: AttentionBlock | LatentBlock) -> dict[str, Any]:
        """Make the fields of TmOp (native/abi.h) for the heads of a layer."""
        found: dict[str, Any] = {}
        if block.rope is not None:
            cosines, sines = self._angles[block.rope]
            found = {"rotary": 2 * cosines.shape[1], "cosines": cosines.data_ptr(), "sines": sines.data_ptr()}
        if block.temperature is not None:
            found["temperatures"] = self._temperatures[block.temperature].data_ptr()
        return found


def _at(address: int, rows: int, columns: int) -> Tensor:
    """View a table of float32 at an address."""
    return torch.frombuffer((ctypes.c_float * (rows * columns)).from_address(address), dtype=torch.float32).view(
        rows, -1
    )
