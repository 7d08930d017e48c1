"""The tensors of the KV cache: one per layer and row kind, made once and never grown.

On a CPU all lie in one stretch of huge pages, which takes memory only as rows are first written.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from tokenmill.cache.formats import LayerKV, find_format
from tokenmill.cache.spec import CacheSpec
from tokenmill.errors import SnapshotError
from tokenmill.memory.arena import Arena
from tokenmill.memory.transfer import to_device

__all__ = ["Pool"]


def _zeros(device: torch.device, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.zeros(shape, dtype=dtype, device=device)


class Pool:
    """The rows of all layers. A slot has the same index in every layer."""

    def __init__(self, spec: CacheSpec, device: torch.device) -> None:
        self.spec = spec
        self._offsets = torch.arange(spec.block_size, device=device)
        on_cpu = device.type == "cpu"
        make = find_format(spec.format)
        zeros = Arena(spec.num_bytes, len(make.kinds) * spec.num_layers).zeros if on_cpu else partial(_zeros, device)
        self.layers: list[LayerKV] = [
            make(spec.num_slots, spec.num_kv_heads, spec.head_dim, spec.dtype, zeros) for _ in range(spec.num_layers)
        ]

    @property
    def num_bytes(self) -> int:
        """The bytes that were allocated; equal to the spec's prediction."""
        return sum(tensor.nbytes for layer in self.layers for tensor in layer.tensors)

    @property
    def layout(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Shape and dtype of one row under each name that `read` gives."""
        return {name: (tuple(tensor.shape[1:]), tensor.dtype) for name, tensor in self._named().items()}

    def slots_of(self, blocks: Sequence[int], count: int) -> Tensor:
        """Where the first `count` rows of a block table lie, [count]."""
        table_M = to_device(blocks, self._offsets.device)
        slots: Tensor = (table_M[:, None] * self.spec.block_size + self._offsets).flatten()[:count]
        return slots

    def read(self, slots: Tensor) -> dict[str, Tensor]:
        """The rows of these slots, copied: "layer.kind" → [S, …] on the CPU."""
        return {name: tensor[slots].cpu() for name, tensor in self._named().items()}

    def write(self, slots: Tensor, rows: Mapping[str, Tensor]) -> None:
        """Put rows as `read` gave them into these slots, in the pool's dtype. SnapshotError if they do not fit."""
        self.check_rows(rows, len(slots))
        for name, tensor in self._named().items():
            tensor[slots] = rows[name].to(tensor.device, tensor.dtype)

    def converted(self, rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rows from elsewhere as this pool stores them, on the CPU."""
        return {name: rows[name].to(tensor.dtype) for name, tensor in self._named().items()}

    def check_rows(self, rows: Mapping[str, Tensor], count: int) -> None:
        """SnapshotError, by name, unless these are `count` rows of every tensor of the pool."""
        named = self._named()
        for name in {**named, **rows}:
            found = list(rows[name].shape) if name in rows else None
            wanted = [count, *named[name].shape[1:]] if name in named else None
            if found != wanted:
                raise SnapshotError(f"saved rows {name} have shape {found}, and {wanted} is needed")

    def _named(self) -> dict[str, Tensor]:
        return {
            f"{number}.{kind}": tensor
            for number, layer in enumerate(self.layers)
            for kind, tensor in zip(layer.kinds, layer.tensors, strict=True)
        }

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks (from, to), in order: the write half of copy-on-write."""
        size = self.spec.block_size
        for layer in self.layers:
            for tensor in layer.tensors:
                for source, target in copies:
                    tensor[target * size : (target + 1) * size] = tensor[source * size : (source + 1) * size]
