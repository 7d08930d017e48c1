"""The tables that the native program looks up by position."""

from typing import Any

import torch
from torch import Tensor

from tokenmill.kernels.threads import torch_threads
from tokenmill.model.description import DecoderDescription
from tokenmill.model.mixers.attention import AttentionBlock
from tokenmill.model.mixers.attention_module import temperatures
from tokenmill.model.mixers.latent import LatentBlock
from tokenmill.model.rope import RotaryTable


class PositionTables:
    """The tables that the program looks up by position, in float32 whatever the model's dtype: cosines and sines of
    each rope, and the temperatures of queries, once for all layers that have the same. It owns their memory.
    """

    def __init__(self, decoder: DecoderDescription, num_positions: int) -> None:
        self._angles = dict[Any, tuple[Tensor, Tensor]]()
        self._temperatures = dict[Any, Tensor]()
        positions_T = torch.arange(num_positions)
        with torch_threads(1):  # torch's other threads would spin for a while, in the way of our own
            for rope in decoder.ropes:
                table, half = RotaryTable(rope, num_positions, torch.float32, torch.device("cpu")), rope.dim // 2
                self._angles[rope] = table.cos_PH[:, :half].contiguous(), table.sin_PH[:, :half].contiguous()
            for block in (mixer for layer in decoder.layers for mixer in layer.mixers):
                if temperature := getattr(block, "temperature", None):
                    self._temperatures[temperature] = temperatures(positions_T, *temperature).flatten()

    def fields(self, block: AttentionBlock | LatentBlock) -> dict[str, Any]:
        """Make the fields of TmOp (native/abi.h) for the heads of a layer."""
        found: dict[str, Any] = {}
        if block.rope is not None:
            cosines, sines = self._angles[block.rope]
            found = {"rotary": 2 * cosines.shape[1], "cosines": cosines.data_ptr(), "sines": sines.data_ptr()}
        if block.temperature is not None:
            found["temperatures"] = self._temperatures[block.temperature].data_ptr()
        return found
