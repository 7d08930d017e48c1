"""The tensors of the KV cache: one per layer and row kind, made once and never grown.

On a CPU all tensors lie in one stretch of huge pages, which takes memory only as rows are first written.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tokenmill.cache.formats.layer import LayerKV, Zeros, find_layer
from tokenmill.cache.spec import CacheSpec, LayerSpec, RowsSpec, StateSpec
from tokenmill.errors import SnapshotError
from tokenmill.memory.arena import Allocate, Arena
from tokenmill.memory.transfer import to_device
from tokenmill.value_reader import brief


class LayerStates:
    """The states of one layer: for each slot, the tensors that the layer keeps of one text.

    tensors: [slots, *shape] for each shape of the spec. A text that begins has states of zeros, in no slot yet.
    """

    def __init__(self, num_slots: int, spec: StateSpec, zeros: Zeros) -> None:
        shapes = zip(spec.shapes, spec.dtypes, strict=True)
        self.tensors = tuple(zeros((num_slots, *shape), getattr(torch, dtype)) for shape, dtype in shapes)
        self.kinds = tuple(f"state{number}" for number in range(len(self.tensors)))

    def read(self, slots: Sequence[int | None], number: int) -> Tensor:
        """Copy one of the tensors in some slots, [B, *shape]; zeros where there is no slot, since the text begins."""
        states = self.tensors[number][[slot or 0 for slot in slots]]
        if new := [place for place, slot in enumerate(slots) if slot is None]:
            states[new] = 0
        return states

    def write(self, number: int, slots: Sequence[int], states: Tensor) -> None:
        """Put states [B, *shape] of one of the tensors into slots, in place."""
        self.tensors[number][list(slots)] = states


ROWS, STATES = 0, 1  # the kinds, as schedule/row_blocks.py and state_slots.py number them
LayerKept = LayerKV | LayerStates


class _Part:
    """The tensors of one kind: as many entries as blocks have together. A block of states has one entry."""

    def __init__(self, named: Mapping[str, Tensor], num_blocks: int, block_size: int) -> None:
        self.named, self.block_size = named, block_size
        self.bytes = [tensor.view(num_blocks * block_size, -1).view(torch.uint8) for tensor in named.values()]
        # Slicing an array costs a tenth of slicing a tensor, and a block has a slice in every layer.
        on_cpu = all(tensor.device.type == "cpu" for tensor in named.values())
        self.arrays = [rows.numpy() for rows in self.bytes] if on_cpu else None


class Pool:
    """The cache of all layers. A slot has the same index in every layer of a kind: rows or states."""

    def __init__(self, spec: CacheSpec, device: torch.device, allocate: Allocate = Arena) -> None:
        """Allocate all layers. allocate: gives the memory on a CPU."""
        self.spec = spec
        self._offsets = torch.arange(spec.block_size, device=device)
        # The slots of all blocks, as bytes: joining a table's slots takes 4 µs, and torch takes 12.
        self._slots = torch.arange(spec.num_slots).numpy().tobytes() if device.type == "cpu" else b""
        make = find_layer(spec.format)
        zeros: Zeros = lambda shape, dtype: torch.zeros(shape, dtype=dtype, device=device)  # noqa: E731
        if device.type == "cpu":
            num_tensors = 8 * len(spec.rows) + sum(len(state.shapes) for state in spec.states)
            zeros = allocate(spec.num_bytes, num_tensors).zeros

        def make_layer(kept: LayerSpec) -> LayerKept:
            if isinstance(kept, RowsSpec):
                return make(spec.num_slots, kept, spec.dtype, zeros)
            return LayerStates(spec.num_states, kept, zeros)

        self.layers: list[LayerKept] = [make_layer(kept) for kept in spec.layers]
        named: list[dict[str, Tensor]] = [{}, {}]
        for number, layer in enumerate(self.layers):
            kind = STATES if isinstance(layer, LayerStates) else ROWS
            for name, tensor in zip(layer.kinds, layer.tensors, strict=True):
                named[kind][f"{number}.{name}"] = tensor
        sizes = (spec.num_blocks, spec.block_size), (spec.num_states, 1)
        self._parts = [_Part(tensors, *size) for tensors, size in zip(named, sizes, strict=True)]

    @property
    def rows(self) -> list[LayerKV]:
        """List the layers that keep rows."""
        return [layer for layer in self.layers if not isinstance(layer, LayerStates)]

    @property
    def num_bytes(self) -> int:
        """Count the allocated bytes; equal to the spec's prediction."""
        return sum(tensor.nbytes for part in self._parts for tensor in part.named.values())

    def slots_of(self, blocks: Sequence[int], count: int, kind: int = ROWS) -> Tensor:
        """Find the slots of the first `count` entries of a block table, [count]."""
        if self._slots and count and kind == ROWS:
            size = 8 * self.spec.block_size
            joined = bytearray().join([self._slots[block * size : (block + 1) * size] for block in blocks])
            return torch.frombuffer(joined, dtype=torch.int64, count=count)
        table_M = to_device(blocks, self._offsets.device)
        if kind != ROWS:
            return table_M
        slots: Tensor = (table_M[:, None] * self.spec.block_size + self._offsets).flatten()[:count]
        return slots

    def block_bytes(self, block: int, kind: int = ROWS) -> list[Any]:
        """Return all entries of a block, layer by layer, as buffers for `split`; on a CPU they view the cache."""
        part = self._parts[kind]
        first, end = block * part.block_size, (block + 1) * part.block_size
        if part.arrays is not None:  # empty where no layer is of that kind
            return [rows[first:end] for rows in part.arrays]
        return [torch.cat([rows[first:end].view(-1) for rows in part.bytes]).cpu().numpy()]

    def is_finite(self, block: int, kind: int) -> bool:
        """Say whether all numbers of a block are finite."""
        size, named = self._parts[kind].block_size, self._parts[kind].named
        return all(bool(each[block * size : (block + 1) * size].isfinite().all()) for each in named.values())

    def split(self, path: Path, stored: Tensor, kind: int = ROWS) -> dict[str, Tensor]:
        """View the entries in the joined buffers of `block_bytes`. SnapshotError unless as long as a block."""
        part = self._parts[kind]
        size = part.block_size
        lengths = [size * rows.shape[1] for rows in part.bytes]
        if stored.dtype != torch.uint8 or list(stored.shape) != [sum(lengths)]:
            found = f"{stored.dtype} {list(stored.shape)}"
            raise SnapshotError(f"{path} is damaged: it holds {found}, which should be {sum(lengths)} bytes")
        pieces = zip(part.named.items(), torch.split(stored, lengths), strict=True)
        return {name: piece.view(tensor.dtype).view(size, *tensor.shape[1:]) for (name, tensor), piece in pieces}

    def read(self, slots: Tensor, kind: int = ROWS) -> dict[str, Tensor]:
        """Copy the entries of these slots: "layer.name" → [S, …] on the CPU."""
        return {name: tensor[slots].cpu() for name, tensor in self._parts[kind].named.items()}

    def write(self, slots: Tensor, rows: Mapping[str, Tensor], kind: int = ROWS) -> None:
        """Put entries that `check_rows` or `split` has passed into these slots, in the pool's dtype."""
        place: Tensor | slice = slots
        if len(slots) and torch.equal(slots, torch.arange(int(slots[0]), int(slots[0]) + len(slots)).to(slots.device)):
            place = slice(int(slots[0]), int(slots[0]) + len(slots))  # five times as fast as single rows
        for name, tensor in self._parts[kind].named.items():
            tensor[place] = rows[name].to(tensor.device, tensor.dtype)

    def converted(self, rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Convert entries from elsewhere to the pool's dtypes, on the CPU."""
        named = {name: tensor for part in self._parts for name, tensor in part.named.items()}
        return {name: entries.to(named[name].dtype) for name, entries in rows.items()}

    def names(self, kind: int) -> list[str]:
        """Name the tensors of a kind."""
        return list(self._parts[kind].named)

    def check_rows(
        self, path: Path, rows: Mapping[str, Tensor], count: int, num_states: int = 0, convert: bool = False
    ) -> None:
        """Raise SnapshotError, by name, unless the file's tensors are `count` rows of every tensor here and so many
        slots of states, and of its dtype. convert: a tensor of floats may hold floats of another dtype.
        """
        wanted = {
            name: (tensor, [entries, *tensor.shape[1:]])
            for part, entries in zip(self._parts, (count, num_states), strict=True)
            for name, tensor in part.named.items()
        }
        if odd := sorted(set(rows) ^ set(wanted)):
            raise SnapshotError(f"{path} is damaged: these of its tensors are missing or unknown: {brief(odd)}")
        for name, (tensor, shape) in wanted.items():
            found = rows[name]
            if list(found.shape) != shape:
                raise SnapshotError(f"{path} is damaged: {name} is {list(found.shape)}, which should be {shape}")
            may_differ = convert and found.is_floating_point() and tensor.is_floating_point()
            if found.dtype != tensor.dtype and not may_differ:
                raise SnapshotError(f"{path} is damaged: {name} holds {found.dtype}, which should be {tensor.dtype}")

    def copy_block(self, kind: int, source: int, target: int) -> None:
        size = self._parts[kind].block_size
        for tensor in self._parts[kind].named.values():
            tensor[target * size : (target + 1) * size] = tensor[source * size : (source + 1) * size]
