"""Where the native program's pointers to weights point: into an arena packed from a decoder, or into a packed model.

Both are asked for the same things in the same order, the model's: small tensors and tables one by one, then all
matrices. What the first hands out it can describe, and the second hands the same out again.
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
from tokenmill.weights.load import return_memory

__all__ = ["LAYOUT", "Linear", "Packed", "Packing", "Placed", "Weights"]

LAYOUT = 3
"""Of the packed bytes and of the order in which they are asked for; grows when either changes."""


@dataclass
class Linear:
    """One matrix to place, or the same one of every expert.

    `firsts`: where each unit's rows begin; `gates`: where its gates' rows do, or nothing. Every unit has `count` rows
    but the last, which may have fewer; where `whole`, none has fewer. No matrices: the embedding, as a tied head.
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
        """Of each matrix."""
        if self.tied is not None:
            return [[Stored.plain(self.tied)]]
        return [matrix.parts() for matrix in self.matrices]


@dataclass(frozen=True)
class Run:
    """`count` units of one layout and `size` bytes, each `stride` bytes behind the one before."""

    address: int
    layout: int
    count: int
    size: int
    stride: int

    def units(self) -> Iterator[tuple[int, int]]:
        """Address and layout of each."""
        return ((self.address + at * self.stride, self.layout) for at in range(self.count))


@dataclass(frozen=True)
class Placed:
    """Where one Linear lies: its units, and their gates'."""

    data: list[Run]
    gates: list[Run]


class Weights(Protocol):
    """What Ops asks for."""

    num_bytes: int
    num_matrix_bytes: int

    def keep(self, tensor: Tensor) -> int:
        """Address of a tensor that is read as it is."""

    def place(self, linears: Sequence[Linear]) -> list[Placed]:
        """All matrices, packed."""


class Packing:
    """From a decoder's own tensors; its matrices are given up as they are packed."""

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
        self._arena = Arena(sum(size for size, _ in sizes), sum(pieces for _, pieces in sizes))
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
        """One of them. What it takes meanwhile is free when it returns, so that return_memory finds it."""
        placed = Placed([], [])
        for parts in linear.parts():
            kinds = [_packed(linear, parts, firsts) for firsts in (linear.firsts, linear.gates) if firsts]
            for together in zip(*kinds, strict=True):
                for runs, run in zip((placed.data, placed.gates), self._laid_out(together), strict=False):
                    runs.append(run)
        return placed

    def _laid_out(self, kinds: tuple[tuple[int, Tensor], ...]) -> list[Run]:
        """Units, or units and their gates: each with its gate, as they are read.

        One stream of memory is faster than two: what follows is sent before it is asked for.
        """
        assert len({len(units) for _, units in kinds}) == 1, "units and their gates are cut alike"
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
        """How to find everything in `pieces`, for Packed."""
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

    def pieces(self) -> Iterable[Tensor]:
        """All bytes, each piece at the next multiple of ALIGNMENT: the arena, then what was kept."""
        return [self._arena.bytes, *self._kept]


class Packed:
    """From a packed model's bytes [N], as Packing.describe describes them."""

    def __init__(self, payload: Tensor, described: dict[str, Any]) -> None:
        if described["layout"] != LAYOUT:
            raise CheckpointError(
                f"the packed model has layout {described['layout']}, and this tokenmill packs {LAYOUT}: make it again"
            )
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
        """As many units as the model has, each within the payload and of its layout's size."""
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


def _packed(linear: Linear, parts: list[Stored], firsts: list[int]) -> Iterator[tuple[int, Tensor]]:
    """Of each part that has units, its layout and they, [units, bytes]. A unit lies within one part of the matrix."""
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
    """Bytes of a Linear, packed, at most; and pieces."""
    layouts = {layout_of(part) for parts in linear.parts() for part in parts}
    max_bytes = max(int(library().tm_tile_bytes(layout, linear.op.inputs)) for layout in layouts)
    units = (len(linear.firsts) + len(linear.gates)) * max(1, len(linear.matrices))
    pieces = 2 * sum(len(parts) for parts in linear.parts())
    return max_bytes * linear.tiles * units, pieces
