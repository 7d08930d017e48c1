"""The addresses of the native program's weights: in an arena that is packed from a checkpoint, or in a packed model.

Ops asks either for the same things in the order of the model: small tensors and tables one by one, then all matrices.
Packing can describe the addresses that it gave as offsets in a file; Packed gives them again from such a file. A rank
has its share of the units of every matrix, and of the tables those that are looked up there; other units have no place.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import accumulate, chain, islice
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tokenmill.errors import PackedModelError
from tokenmill.kernels.native_library import library
from tokenmill.kernels.native_structs import TmOp
from tokenmill.kernels.threads import torch_threads
from tokenmill.memory.arena import Allocate, Allocation, Arena
from tokenmill.parallel.division import ALONE, Rank
from tokenmill.program.native.layouts import LAYOUTS, TILE
from tokenmill.program.native.pack import layout_of, pack
from tokenmill.quant.stored import Stored
from tokenmill.value_reader import brief
from tokenmill.weights.source import WeightSource, return_memory

LAYOUT = 10
"""The version of the packed bytes and of the order of requests; it grows when either changes."""
NO_GATE = -1


class Run(NamedTuple):
    """Units that lie one after the other, each with its gate behind it. The layout of the gates is NO_GATE without.

    One stream of memory is faster than two, because the processor prefetches what follows.
    """

    address: int
    num_units: int
    layout: int
    gate_layout: int = NO_GATE


@dataclass
class Linear:
    """One matrix to place, or the same one of every expert.

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
        """Whether tokens are looked up in it, and not multiplied by it."""
        return self.matrices == [(None, "embedding")]

    @property
    def unit_rows(self) -> list[int]:
        return self.firsts * len(self.matrices)

    def own_units(self, rank: Rank) -> list[int]:
        """The units that a rank has, by their numbers among those of all matrices: the same share of each."""
        each = len(self.firsts)
        return [begin + at for begin in range(0, each * len(self.matrices), each) for at in rank.share(each)]

    def own_rows(self, rank: Rank) -> list[range]:
        """The rows of a matrix that are in the units of a rank, as stretches that are as long as can be."""
        found = list[range]()
        for firsts in filter(None, (self.gates, self.firsts)):
            for at in rank.share(len(firsts)):
                rows = range(firsts[at], min(firsts[at] + self.count, self._end_of_part(firsts[at])))
                if found and found[-1].stop == rows.start:
                    rows = range(found.pop().start, rows.stop)
                found.append(rows)
        return found

    def _end_of_part(self, row: int) -> int:
        return next(end for end in accumulate(self.parts) if row < end)

    def unit_bytes(self, layout: int) -> int:
        """Bytes of a unit of that layout; it is a number of whole tiles."""
        tiles = -(-self.count // TILE)
        return 0 if layout == NO_GATE else int(library().tm_tile_bytes(layout, self.op.inputs)) * tiles

    def stride(self, run: Run) -> int:
        """Bytes from one unit of a run to the next."""
        return self.unit_bytes(run.layout) + self.unit_bytes(run.gate_layout)


class Part(NamedTuple):
    """Rows of a matrix as they are stored, from the row `begin` on."""

    begin: int
    stored: Stored


class Place(NamedTuple):
    """Where a unit of this rank lies. The gate's layout is NO_GATE, and its address 0, without."""

    address: int
    layout: int
    gate_address: int
    gate_layout: int


def _places(linear: Linear, runs: Iterable[Run]) -> Iterator[Place]:
    """The places of the units of runs, one after the other."""
    for run in runs:
        for address in range(run.address, run.address + run.num_units * linear.stride(run), linear.stride(run)):
            gate = 0 if run.gate_layout == NO_GATE else address + linear.unit_bytes(run.layout)
            yield Place(address, run.layout, gate, run.gate_layout)


class Packing:
    """Weights packed in the order in which the program reads them.

    source: where they come from. allocate: gives the memory to pack into. widest: the layout that takes the most of it.
    """

    def __init__(self, source: WeightSource, allocate: Allocate, widest: int, rank: Rank = ALONE) -> None:
        self._rank = rank
        self._source: WeightSource | None = source  # until all is packed
        self._allocate, self._widest = allocate, widest
        self._kept: list[Tensor] = []
        self._placed: list[list[Run]] = []  # with offsets in the place of addresses
        self._memory: Allocation = Arena(0)
        self._payload = self._memory.bytes
        self.num_bytes = self.num_matrix_bytes = 0

    def keep(self, parameter: str | None, shape: tuple[int, ...], dtype: torch.dtype, offset: float = 0.0) -> int:
        """Address of a tensor that is read without packing, plus `offset`; of zeros, where no parameter is named."""
        assert self._source is not None, "asked before the matrices are placed"
        held = torch.zeros(shape, dtype=dtype) if parameter is None else self._source.tensor(parameter).to(dtype)
        held = held + offset if offset else held
        self._kept.append(held)
        self.num_bytes += held.nbytes
        return held.data_ptr()

    def keep_table(self, parameter: str, shape: tuple[int, ...], dtype: torch.dtype) -> int | None:
        """Address of the table that tokens are looked up in; None on ranks that look nothing up."""
        return None if self._rank.number else self.keep(parameter, shape, dtype)

    def place(self, linears: Sequence[Linear]) -> list[dict[int, Place]]:
        """Pack all matrices: for each, where the units of this rank lie, by their numbers."""
        # As large as it can become, since layouts depend on codes that are not read yet.
        num_bytes = sum(self._max_bytes(linear) for linear in linears)
        self._memory = self._allocate(num_bytes, sum(len(linear.unit_rows) for linear in linears))
        source, self._source = self._source, None
        assert source is not None, "called once"
        matrices = chain.from_iterable(self._read(source, linear) for linear in linears)
        reading = closing(_ahead(matrices, torch.get_num_threads()))  # it holds the last matrix until it is closed
        with reading as parts, torch_threads(1):
            for number, linear in enumerate(linears):
                if number % 16 == 0:
                    return_memory()  # of the matrices that were released
                begin = self._memory.used
                self._placed.append(self._pack(linear, islice(parts, len(linear.matrices))))
                own = len(linear.own_units(self._rank))
                if own and not linear.is_embedding:  # of all ranks: units of the others are as large as ours
                    self.num_matrix_bytes += (self._memory.used - begin) * len(linear.unit_rows) // own
        self._payload = self._memory.bytes
        return_memory()
        self.num_bytes += self._memory.used
        base = self._payload.data_ptr()
        placed = [[Run(base + offset, *rest) for offset, *rest in runs] for runs in self._placed]
        return [
            dict(zip(linear.own_units(self._rank), _places(linear, runs), strict=True))
            for linear, runs in zip(linears, placed, strict=True)
        ]

    def _max_bytes(self, linear: Linear) -> int:
        return linear.unit_bytes(self._widest) * len(linear.own_units(self._rank)) * (2 if linear.gates else 1)

    def _read(self, source: WeightSource, linear: Linear) -> Iterator[list[Part]]:
        """Read the rows of this rank, matrix by matrix."""
        for place in linear.matrices:
            found = list[Part]()
            for rows in [None] if self._rank == ALONE else linear.own_rows(self._rank):
                begin = 0 if rows is None else rows.start
                for stored in source.matrix(*place, rows):
                    found.append(Part(begin, stored))
                    begin += stored.num_rows
            yield found

    def _pack(self, linear: Linear, matrices: Iterable[list[Part]]) -> list[Run]:
        """Pack one Linear. Its temporary memory is free on return, so that return_memory can hand it back."""
        runs = []
        for parts in matrices:
            of_rank = [[firsts[at] for at in self._rank.share(len(firsts))] for firsts in (linear.firsts, linear.gates)]
            kinds = [_pieces(linear, parts, firsts) for firsts in of_rank if firsts]
            for together in zip(*kinds, strict=True):
                sizes = [linear.unit_bytes(piece.layout) for piece in together]
                offset, place = (
                    self._memory.used,
                    self._memory.zeros((len(together[0].firsts), sum(sizes)), torch.uint8),
                )
                for piece, room in zip(together, torch.split(place, sizes, dim=1), strict=True):
                    pack(piece.part, piece.rows, piece.layout, linear.op.inputs, room)
                runs.append(Run(offset, len(place), *(piece.layout for piece in together)))
        return runs

    def describe(self) -> dict[str, Any]:
        """What Packed is made from: where everything lies. Called where the memory is a file, into which it puts the
        tensors that are read without packing too.
        """
        kept = []
        for tensor in self._kept:
            kept.append([self._memory.used, tensor.nbytes])
            self._memory.zeros((tensor.nbytes,), torch.uint8).copy_(tensor.reshape(-1).view(torch.uint8))
        sizes = {"matrix_bytes": self.num_matrix_bytes, "num_bytes": self.num_bytes}
        return {"layout": LAYOUT, "kept": kept, "placed": self._placed, **sizes}


class Packed:
    """Weights from the bytes [N] of a packed model, as Packing.describe describes them.

    All ranks map the same file, whose pages are in memory once.
    """

    def __init__(self, payload: Tensor, described: dict[str, Any], rank: Rank = ALONE) -> None:
        self._rank = rank
        if described.get("layout") != LAYOUT:
            raise PackedModelError(
                f"the packed model has layout {brief(described.get('layout'))}, and this tokenmill packs {LAYOUT}: "
                "make it again"
            )
        fields: list[Any] = [described.get(name) for name in ("kept", "placed", "matrix_bytes", "num_bytes")]
        kept, self._placed, self.num_matrix_bytes, self.num_bytes = fields
        shapes = ((None, 2), (None, None, len(Run._fields)), (), ())
        if not all(_are_ints(field, *shape) for field, shape in zip(fields, shapes, strict=True)):
            raise PackedModelError("the packed model is damaged: its description of the weights is none; make it again")
        self._payload, self._kept = payload, iter(kept)

    def keep(self, parameter: str | None, shape: tuple[int, ...], dtype: torch.dtype, offset: float = 0.0) -> int:
        """See Packing. The size of what was kept must be that of this tensor."""
        begin, size = next(self._kept, (0, -1))
        wanted = prod(shape) * dtype.itemsize
        if size != wanted or not 0 <= begin <= self._payload.nbytes - size:
            raise PackedModelError(
                f"the packed model holds {size} bytes where its config wants {wanted}: make it again"
            )
        return self._payload.data_ptr() + int(begin)

    def keep_table(self, parameter: str, shape: tuple[int, ...], dtype: torch.dtype) -> int | None:
        """See Packing."""
        address = self.keep(parameter, shape, dtype)
        return None if self._rank.number else address

    def place(self, linears: Sequence[Linear]) -> list[dict[int, Place]]:
        base = self._payload.data_ptr()
        placed = [[Run(base + offset, *rest) for offset, *rest in runs] for runs in self._placed]
        if len(placed) != len(linears) or not all(map(self._fits, linears, placed)):
            raise PackedModelError("the packed model's matrices are not those of its config: make it again")
        return [self._own(linear, runs) for linear, runs in zip(linears, placed, strict=True)]

    def _own(self, linear: Linear, runs: list[Run]) -> dict[int, Place]:
        places = list(_places(linear, runs))
        return {number: places[number] for number in linear.own_units(self._rank)}

    def _fits(self, linear: Linear, runs: list[Run]) -> bool:
        """Whether there are as many units as the model has, of known layouts and within the payload."""
        known, base = set(LAYOUTS.values()), self._payload.data_ptr()
        gates = known if linear.gates else {NO_GATE}
        if not all(run.layout in known and run.gate_layout in gates and run.num_units > 0 for run in runs):
            return False
        ends = [run.address - base + run.num_units * linear.stride(run) for run in runs]
        within = all(run.address >= base and end <= self._payload.nbytes for run, end in zip(runs, ends, strict=True))
        return within and sum(run.num_units for run in runs) == len(linear.unit_rows)


def _are_ints(value: Any, *lengths: int | None) -> bool:
    """Whether it is a whole number, or lists of lists of them, `lengths` long (None: any) from outside inwards."""
    if not lengths:
        return type(value) is int and abs(value) < 1 << 62
    is_list = isinstance(value, list) and lengths[0] in (None, len(value))
    return is_list and all(_are_ints(entry, *lengths[1:]) for entry in value)


def _ahead(matrices: Iterator[list[Part]], num_threads: int) -> Generator[list[Part]]:
    """The same, while a thread reads the one that comes next; torch computes in so many threads there."""

    def read() -> list[Part] | None:
        with torch_threads(num_threads):
            return next(matrices, None)

    with ThreadPoolExecutor(1) as thread:
        following = thread.submit(read)
        while (parts := following.result()) is not None:
            following = thread.submit(read)
            yield parts


class _Piece(NamedTuple):
    """Units of a Linear that lie within one part. firsts: their first rows. rows: of the part, -1 for one of zeros."""

    part: Stored
    layout: int
    firsts: list[int]
    rows: Tensor


def _pieces(linear: Linear, parts: list[Part], firsts: list[int]) -> Iterator[_Piece]:
    """For each part that has units, what of it is packed. A unit lies within one part."""
    found = 0
    for begin, part in parts:
        end = begin + part.num_rows
        inside = [first for first in firsts if begin <= first < end]
        if inside:
            limit = inside[-1] + linear.count if linear.whole else end
            rows = torch.tensor(inside)[:, None] + torch.arange(linear.count + -linear.count % TILE)
            limits = torch.minimum(torch.tensor(inside) + linear.count, torch.tensor(limit))[:, None]
            yield _Piece(part, layout_of(part), inside, torch.where(rows < limits, rows - begin, -1).flatten())
        found += len(inside)
    assert found == len(firsts), "every unit lies within one part"
