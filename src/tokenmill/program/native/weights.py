"""Where the native program's pointers to weights point: into an arena packed from a decoder, or into a packed model.

Ops asks either for the same things in the order of the model: small tensors and tables one by one, then all matrices.
Packing can describe the addresses that it gave as offsets in a file; Packed gives them again from such a file.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from tokenmill.errors import CheckpointError
from tokenmill.memory.arena import ALIGNMENT, Arena
from tokenmill.program.native.abi import Op, library
from tokenmill.program.native.pack import LAYOUTS, TILE, layout_of, pack
from tokenmill.quant.schemes import Matrix
from tokenmill.quant.stored import Stored
from tokenmill.value_reader import brief
from tokenmill.weights.load import return_memory

__all__ = ["LAYOUT", "Linear", "Packed", "Packing", "Placed", "Weights"]

LAYOUT = 4
"""The version of the packed bytes and of the order of requests; it grows when either changes."""


@dataclass
class Linear:
    """One matrix to place, or the same one of every expert.

    `firsts`: the first row of each unit; `gates`: the first row of each unit's gate, or empty. Every unit has `count`
    rows; unless `whole`, the last one may have fewer. `matrices` is empty for a tied head: that is the embedding.
    """

    op: Op
    matrices: list[Matrix]
    tied: Tensor | None
    count: int
    firsts: list[int]
    gates: list[int]
    whole: bool

    @property
    def tiles(self) -> int:
        """Tiles of 16 rows that a unit takes."""
        return -(-self.count // TILE)

    def parts(self) -> list[list[Stored]]:
        """The stored rows of each matrix."""
        if self.tied is not None:
            return [[Stored.plain(self.tied)]]
        return [matrix.parts() for matrix in self.matrices]


@dataclass(frozen=True)
class Run:
    """`count` units of one layout, each of `size` bytes and `stride` bytes after the one before."""

    address: int
    layout: int
    count: int
    size: int
    stride: int

    def units(self) -> Iterator[tuple[int, int]]:
        """Address and layout of each unit."""
        return ((self.address + at * self.stride, self.layout) for at in range(self.count))


@dataclass(frozen=True)
class Placed:
    """Where one Linear lies: its units, and their gates."""

    data: list[Run]
    gates: list[Run]


class Weights(Protocol):
    """What Ops asks for."""

    num_bytes: int
    num_matrix_bytes: int

    def keep(self, tensor: Tensor) -> int:
        """Address of a tensor that is read without packing."""

    def place(self, linears: Sequence[Linear]) -> list[Placed]:
        """Pack all matrices."""


class Packing:
    """Weights packed from a decoder, whose matrices are released as they are packed."""

    def __init__(self) -> None:
        self._kept: list[Tensor] = []
        self._placed: list[Placed] = []
        self._arena = Arena(0)
        self.num_bytes = self.num_matrix_bytes = 0

    def keep(self, tensor: Tensor) -> int:
        """See Weights."""
        held = tensor.detach().contiguous()
        self._kept.append(held)
        self.num_bytes += held.nbytes
        return held.data_ptr()

    def place(self, linears: Sequence[Linear]) -> list[Placed]:
        """See Weights."""
        sizes = [_max_bytes(linear) for linear in linears]
        self._arena = Arena(sum(size for size, _ in sizes), sum(count for _, count in sizes))
        for number, linear in enumerate(linears):
            if number % 16 == 0:
                return_memory()  # of the matrices that were released
            self._placed.append(self._pack(linear))
            for matrix in linear.matrices:
                matrix.release()
        return_memory()
        self.num_matrix_bytes = self._arena.used
        self.num_bytes += self._arena.used
        return self._placed

    def _pack(self, linear: Linear) -> Placed:
        """Pack one Linear. Its temporary memory is free on return, so that return_memory can hand it back."""
        placed = Placed([], [])
        for parts in linear.parts():
            kinds = [_packed(linear, parts, firsts) for firsts in (linear.firsts, linear.gates) if firsts]
            for together in zip(*kinds, strict=True):
                for runs, run in zip((placed.data, placed.gates), self._laid_out(together), strict=False):
                    runs.append(run)
        return placed

    def _laid_out(self, kinds: tuple[tuple[int, Tensor], ...]) -> list[Run]:
        """Units, or units and their gates: each unit with its gate behind it, as they are read.

        One stream of memory is faster than two, because the processor prefetches what follows.
        """
        assert len({len(units) for _, units in kinds}) == 1, "units and their gates have equal lengths"
        count = len(kinds[0][1])
        stride = sum(units.shape[1] for _, units in kinds)
        place, at, runs = self._arena.zeros((count, stride), torch.uint8), 0, []
        for layout, units in kinds:
            size = units.shape[1]
            place[:, at : at + size] = units
            runs.append(Run(place.data_ptr() + at, layout, count, size, stride))
            at += size
        return runs

    def describe(self) -> dict[str, Any]:
        """Where everything lies in `tensors`, for Packed."""
        kept, end = [], _padded(self._arena.used)
        for tensor in self._kept:
            kept.append([end, tensor.nbytes])
            end += _padded(tensor.nbytes)
        base = self._arena.address
        placed = [
            [[[run.address - base, *astuple(run)[1:]] for run in runs] for runs in (one.data, one.gates)]
            for one in self._placed
        ]
        return {"layout": LAYOUT, "kept": kept, "placed": placed, "matrix_bytes": self.num_matrix_bytes}

    def tensors(self) -> Iterable[Tensor]:
        """All bytes, each tensor at the next multiple of ALIGNMENT: the arena, then what was kept."""
        return [self._arena.bytes, *self._kept]


class Packed:
    """Weights from the bytes [N] of a packed model, as Packing.describe describes them."""

    def __init__(self, payload: Tensor, described: dict[str, Any]) -> None:
        if described.get("layout") != LAYOUT:
            raise CheckpointError(
                f"the packed model has layout {brief(described.get('layout'))}, and this tokenmill packs {LAYOUT}: "
                "make it again"
            )
        if not _is_description(described):
            raise CheckpointError("the packed model is damaged: its description of the weights is none; make it again")
        self._payload, self._described = payload, described
        self._next = iter(described["kept"])
        self.num_matrix_bytes = int(described["matrix_bytes"])
        self.num_bytes = self.num_matrix_bytes + sum(size for _, size in described["kept"])

    def keep(self, tensor: Tensor) -> int:
        """See Weights. The tensor has no memory; its size must be that of the one that was kept."""
        offset, size = next(self._next, (0, -1))
        if size != tensor.nbytes or not 0 <= offset <= self._payload.nbytes - size:
            raise CheckpointError(
                f"the packed model holds {size} bytes where its config wants {tensor.nbytes}: make it again"
            )
        return self._payload.data_ptr() + int(offset)

    def place(self, linears: Sequence[Linear]) -> list[Placed]:
        """See Weights."""
        base = self._payload.data_ptr()
        placed = [
            Placed(*([Run(base + at, *rest) for at, *rest in runs] for runs in both))
            for both in self._described["placed"]
        ]
        if len(placed) != len(linears) or not all(map(self._fits, linears, placed)):
            raise CheckpointError("the packed model's matrices are not those of its config: make it again")
        return placed

    def _fits(self, linear: Linear, placed: Placed) -> bool:
        """Whether there are as many units as the model has, each within the payload and of its layout's size."""
        end = self._payload.data_ptr() + self._payload.nbytes
        for firsts, runs in ((linear.firsts, placed.data), (linear.gates, placed.gates)):
            if sum(run.count for run in runs) != len(firsts) * max(1, len(linear.matrices)):
                return False
            for run in runs:
                if run.layout not in LAYOUTS.values():
                    return False
                size = int(library().tm_tile_bytes(run.layout, linear.op.inputs)) * linear.tiles
                if run.size != size or run.stride < size or run.count < 1:
                    return False
                if not end - self._payload.nbytes <= run.address <= end - (run.count - 1) * run.stride - size:
                    return False
        return True


def _is_description(described: dict[str, Any]) -> bool:
    """Whether it has the form of Packing.describe: whole numbers, as deep and as many as there."""

    def lists(value: object, *lengths: int | None) -> bool:
        if not lengths:
            return type(value) is int and abs(value) < 1 << 62
        known = isinstance(value, list) and lengths[0] in (None, len(value))
        return known and all(lists(entry, *lengths[1:]) for entry in value)  # type: ignore[attr-defined]

    kept, placed, size = (described.get(name) for name in ("kept", "placed", "matrix_bytes"))
    return lists(kept, None, 2) and lists(placed, None, 2, None, 5) and lists(size)


def _packed(linear: Linear, parts: list[Stored], firsts: list[int]) -> Iterator[tuple[int, Tensor]]:
    """For each part that has units, its layout and its packed units [units, bytes]. A unit lies within one part."""
    begin = found = 0
    for part in parts:
        end = begin + part.num_rows
        inside = [first for first in firsts if begin <= first < end]
        if inside:
            layout, limit = layout_of(part), inside[-1] + linear.count if linear.whole else end
            rows = torch.tensor(inside)[:, None] + torch.arange(linear.tiles * TILE)
            limits = torch.minimum(torch.tensor(inside) + linear.count, torch.tensor(limit))[:, None]
            packed = pack(part, torch.where(rows < limits, rows - begin, -1).flatten(), layout, linear.op.inputs)
            yield layout, packed.view(len(inside), -1)
        begin, found = end, found + len(inside)
    assert found == len(firsts), "every unit lies within one part"


def _padded(size: int) -> int:
    return size + -size % ALIGNMENT


def _max_bytes(linear: Linear) -> tuple[int, int]:
    """At most how many bytes a packed Linear takes, and in how many allocations."""
    layouts = {layout_of(part) for parts in linear.parts() for part in parts}
    max_bytes = max(int(library().tm_tile_bytes(layout, linear.op.inputs)) for layout in layouts)
    units = (len(linear.firsts) + len(linear.gates)) * max(1, len(linear.matrices))
    allocations = 2 * sum(len(parts) for parts in linear.parts())
    return max_bytes * linear.tiles * units, allocations
