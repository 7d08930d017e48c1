"""The tensors of the KV cache: one allocation per layer and row kind, made once and never grown."""

from collections.abc import Sequence

import torch

from tokenmill.cache.formats import FORMATS, LayerKV
from tokenmill.cache.spec import CacheSpec
from tokenmill.registry import lookup

__all__ = ["Pool"]


class Pool:
    """All layers' rows. Slot numbers mean the same in every layer."""

    def __init__(self, spec: CacheSpec, device: torch.device) -> None:
        self.spec = spec
        make = lookup(FORMATS, spec.format, "cache_format")
        self.layers: list[LayerKV] = [
            make(spec.num_slots, spec.num_kv_heads, spec.head_dim, spec.dtype, device) for _ in range(spec.num_layers)
        ]

    @property
    def num_bytes(self) -> int:
        """What was really allocated; equals the spec's prediction."""
        return sum(tensor.nbytes for layer in self.layers for tensor in layer.tensors)

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks (from, to), in order: the write half of copy-on-write."""
        size = self.spec.block_size
        for layer in self.layers:
            for tensor in layer.tensors:
                for source, target in copies:
                    tensor[target * size : (target + 1) * size] = tensor[source * size : (source + 1) * size]
