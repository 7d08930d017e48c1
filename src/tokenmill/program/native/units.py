"""Matrices in units of some rows, and the places of these units in the memory of the native program."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from tokenmill.kernels.native_library import library
from tokenmill.kernels.native_structs import TmOp
from tokenmill.parallel.division import Rank
from tokenmill.program.native.layouts import FLOATS, TILE
from tokenmill.program.native.pack import layout_of
from tokenmill.quant.stored import Stored

NO_GATE = -1


class Run(NamedTuple):
    """Units that lie one after the other, each followed by its gate; gate_layout is NO_GATE for units without gates.

    One stream of memory is faster than two, because the processor prefetches what follows.
    """

    address: int
    num_units: int
    layout: int
    gate_layout: int = NO_GATE

    @property
    def is_coded(self) -> bool:
        """Say whether all units are codes, which are the same in every dtype of the model."""
        return FLOATS.isdisjoint((self.layout, self.gate_layout))


@dataclass
class Linear:
    """One matrix to place, or the same matrix of every expert.

    `matrices`: the layer and the role of each; see WeightSource.matrix. `firsts`: the first row of each unit; `gates`:
    the first row of each unit's gate, or empty. `parts`: rows of each part of the matrix. Every unit has `count` rows;
    unless `whole`, the last one of a part may have fewer.
    """

    op: TmOp
    matrices: Sequence[tuple[int | None, str]]
    parts: Sequence[int]
    count: int
    firsts: list[int]
    gates: list[int]
    whole: bool

    @property
    def is_embedding(self) -> bool:
        """Say whether this is the table in which tokens are looked up, not a matrix to multiply by."""
        return self.matrices == [(None, "embedding")]

    @property
    def unit_rows(self) -> list[int]:
        return self.firsts * len(self.matrices)

    def end_of_part(self, row: int) -> int:
        """Find the end of the part that has a row."""
        return next(end for end in accumulate(self.parts) if row < end)

    def own_units(self, rank: Rank) -> list[int]:
        """List the units that a rank has, by their numbers among the units of all matrices: the same share of each."""
        each = len(self.firsts)
        return [begin + at for begin in range(0, each * len(self.matrices), each) for at in rank.share(each)]

    def own_rows(self, rank: Rank) -> list[range]:
        """List the rows of a matrix in the units of a rank, as the longest possible ranges."""
        found = list[range]()
        for firsts in filter(None, (self.gates, self.firsts)):
            for at in rank.share(len(firsts)):
                rows = range(firsts[at], min(firsts[at] + self.count, self.end_of_part(firsts[at])))
                if found and found[-1].stop == rows.start:
                    rows = range(found.pop().start, rows.stop)
                found.append(rows)
        return found

    def unit_bytes(self, layout: int) -> int:
        """Count the bytes of a unit in that layout; it has a whole number of tiles."""
        tiles = -(-self.count // TILE)
        return 0 if layout == NO_GATE else int(library().tm_tile_bytes(layout, self.op.inputs)) * tiles

    def stride(self, run: Run) -> int:
        """Count the bytes from one unit of a run to the next."""
        return self.unit_bytes(run.layout) + self.unit_bytes(run.gate_layout)

    def num_bytes(self, runs: Iterable[Run]) -> int:
        """Count the bytes of all units in these runs."""
        return sum(run.num_units * self.stride(run) for run in runs)


class Part(NamedTuple):
    """Rows of a matrix as they are stored, from the row `begin` on."""

    begin: int
    stored: Stored


class Place(NamedTuple):
    """The place of a unit of this rank. A unit without a gate has the gate's layout NO_GATE and its address 0."""

    address: int
    layout: int
    gate_address: int
    gate_layout: int


def places_of(linear: Linear, runs: Iterable[Run]) -> Iterator[Place]:
    """Yield the places of the units of runs, one after the other."""
    for run in runs:
        for address in range(run.address, run.address + run.num_units * linear.stride(run), linear.stride(run)):
            gate = 0 if run.gate_layout == NO_GATE else address + linear.unit_bytes(run.layout)
            yield Place(address, run.layout, gate, run.gate_layout)


class Piece(NamedTuple):
    """Units of a Linear within one part. firsts: their first rows. rows: rows of the part, -1 for a row of zeros."""

    part: Stored
    layout: int
    firsts: list[int]
    rows: Tensor

    def band(self, first: int, count: int) -> tuple[Stored, Tensor]:
        """Take the rows of the part that some of the units need, and the rows of these units among them."""
        rows = self.rows.view(len(self.firsts), -1)[first : first + count].flatten()
        real = rows[rows >= 0]
        begin, end = (int(real.min()), int(real.max()) + 1) if len(real) else (0, 1)
        return self.part.rows(range(begin, end)), torch.where(rows < 0, -1, rows - begin)


def pieces_of(linear: Linear, parts: list[Part], firsts: list[int]) -> Iterator[Piece]:
    """Yield the piece of each part that has units. A unit lies within one part."""
    found = 0
    for begin, part in parts:
        end = begin + part.num_rows
        inside = [first for first in firsts if begin <= first < end]
        if inside:
            limit = inside[-1] + linear.count if linear.whole else end
            rows = torch.tensor(inside)[:, None] + torch.arange(linear.count + -linear.count % TILE)
            limits = torch.minimum(torch.tensor(inside) + linear.count, torch.tensor(limit))[:, None]
            yield Piece(part, layout_of(part), inside, torch.where(rows < limits, rows - begin, -1).flatten())
        found += len(inside)
    assert found == len(firsts), "every unit lies within one part"
