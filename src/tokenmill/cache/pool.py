"""The tensors of the KV cache: one per layer and row kind, made once and never grown.

On a CPU all lie in one stretch of huge pages, which takes memory only as rows are first written.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tokenmill.cache.formats.layer import LayerKV, Zeros, find_layer
from tokenmill.cache.spec import CacheSpec
from tokenmill.errors import SnapshotError
from tokenmill.memory.arena import Arena
from tokenmill.memory.shared_memory import SharedMemory
from tokenmill.memory.transfer import to_device
from tokenmill.value_reader import brief


class Pool:
    """The rows of all layers. A slot has the same index in every layer."""

    def __init__(self, spec: CacheSpec, device: torch.device, shared: SharedMemory | None = None) -> None:
        """shared: where rows lie that the ranks of a model share."""
        self.spec = spec
        self._offsets = torch.arange(spec.block_size, device=device)
        # The slots of all blocks, as bytes: joining those of a table takes 4 µs, and torch takes 12.
        self._slots = torch.arange(spec.num_slots).numpy().tobytes() if device.type == "cpu" else b""
        make = find_layer(spec.format)
        zeros: Zeros = lambda shape, dtype: torch.zeros(shape, dtype=dtype, device=device)  # noqa: E731
        if device.type == "cpu":
            zeros = Arena(spec.num_bytes, len(make.kinds) * len(spec.layers), shared=shared).zeros
        self.layers: list[LayerKV] = [
            make(spec.num_slots, rows.num_kv_heads, rows.head_dim, spec.dtype, zeros) for rows in spec.layers
        ]
        self._named = {
            f"{number}.{kind}": tensor
            for number, layer in enumerate(self.layers)
            for kind, tensor in zip(layer.kinds, layer.tensors, strict=True)
        }

        self._bytes = [tensor.view(spec.num_slots, -1).view(torch.uint8) for tensor in self._named.values()]
        # A slice of an array costs a tenth of one of a tensor, and a block has one in every layer.
        self._arrays = [rows.numpy() for rows in self._bytes] if device.type == "cpu" else []

    @property
    def num_bytes(self) -> int:
        """The bytes that were allocated; equal to the spec's prediction."""
        return sum(tensor.nbytes for tensor in self._named.values())

    def slots_of(self, blocks: Sequence[int], count: int) -> Tensor:
        """Find where the first `count` rows of a block table lie, [count]."""
        if self._slots and count:
            size = 8 * self.spec.block_size
            joined = bytearray().join([self._slots[block * size : (block + 1) * size] for block in blocks])
            return torch.frombuffer(joined, dtype=torch.int64, count=count)
        table_M = to_device(blocks, self._offsets.device)
        slots: Tensor = (table_M[:, None] * self.spec.block_size + self._offsets).flatten()[:count]
        return slots

    def block_bytes(self, block: int) -> list[Any]:
        """Return all rows of a block, layer by layer, as `split` reads them: buffers, on a CPU those of the cache
        itself.
        """
        first, end = block * self.spec.block_size, (block + 1) * self.spec.block_size
        if self._arrays:
            return [rows[first:end] for rows in self._arrays]
        return [torch.cat([rows[first:end].view(-1) for rows in self._bytes]).cpu().numpy()]

    def split(self, path: Path, stored: Tensor) -> dict[str, Tensor]:
        """Make views of the rows in what `block_bytes` gave, joined. SnapshotError unless it is as long as a
        block is.
        """
        size = self.spec.block_size
        lengths = [size * rows.shape[1] for rows in self._bytes]
        if stored.dtype != torch.uint8 or list(stored.shape) != [sum(lengths)]:
            found = f"{stored.dtype} {list(stored.shape)}"
            raise SnapshotError(f"{path} is damaged: it holds {found}, which should be {sum(lengths)} bytes")
        parts = zip(self._named.items(), torch.split(stored, lengths), strict=True)
        return {name: part.view(tensor.dtype).view(size, *tensor.shape[1:]) for (name, tensor), part in parts}

    def read(self, slots: Tensor) -> dict[str, Tensor]:
        """Copy the rows of these slots: "layer.kind" → [S, …] on the CPU."""
        return {name: tensor[slots].cpu() for name, tensor in self._named.items()}

    def write(self, slots: Tensor, rows: Mapping[str, Tensor]) -> None:
        """Put rows that `check_rows` or `split` has passed into these slots, in the pool's dtype."""
        place: Tensor | slice = slots
        if len(slots) and torch.equal(slots, torch.arange(int(slots[0]), int(slots[0]) + len(slots)).to(slots.device)):
            place = slice(int(slots[0]), int(slots[0]) + len(slots))  # 5 times as fast as single rows
        for name, tensor in self._named.items():
            tensor[place] = rows[name].to(tensor.device, tensor.dtype)

    def converted(self, rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Convert rows from elsewhere to what this pool stores, on the CPU."""
        return {name: rows[name].to(tensor.dtype) for name, tensor in self._named.items()}

    def check_rows(self, path: Path, rows: Mapping[str, Tensor], count: int, convert: bool = False) -> None:
        """Raise SnapshotError, by name, unless the file's rows are `count` rows of every tensor here, and of its dtype.

        convert: a tensor of floats may hold floats of another dtype.
        """
        if odd := sorted(set(rows) ^ set(self._named)):
            raise SnapshotError(f"{path} is damaged: these of its tensors are missing or unknown: {brief(odd)}")
        for name, tensor in self._named.items():
            found, shape = rows[name], [count, *tensor.shape[1:]]
            if list(found.shape) != shape:
                raise SnapshotError(f"{path} is damaged: {name} is {list(found.shape)}, which should be {shape}")
            may_differ = convert and found.is_floating_point() and tensor.is_floating_point()
            if found.dtype != tensor.dtype and not may_differ:
                raise SnapshotError(f"{path} is damaged: {name} holds {found.dtype}, which should be {tensor.dtype}")

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        size = self.spec.block_size
        for tensor in self._named.values():
            for source, target in copies:
                tensor[target * size : (target + 1) * size] = tensor[source * size : (source + 1) * size]
