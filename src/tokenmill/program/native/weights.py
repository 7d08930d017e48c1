"""The addresses of the native program's weights: in an arena that is packed from a checkpoint, or in a packed model.

Ops asks either for the same things in the order of the model: small tensors and tables one by one, then all matrices.
Packing can describe the addresses that it gave as offsets in a file; Packed gives them again from such a file. A rank
has its share of the units of every matrix, and of the tables those that are looked up there; other units have no place.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import chain, islice
from math import prod
from typing import Any

import torch
from torch import Tensor

from tokenmill.errors import PackedModelError
from tokenmill.kernels.threads import torch_threads
from tokenmill.memory.arena import Allocate, Allocation, Arena
from tokenmill.parallel.division import ALONE, Rank
from tokenmill.program.native.layouts import LAYOUTS
from tokenmill.program.native.pack import pack
from tokenmill.program.native.units import NO_GATE, Linear, Part, Place, Run, pieces_of, places_of
from tokenmill.value_reader import brief
from tokenmill.weights.source import WeightSource, return_memory

LAYOUT = 10
"""The version of the packed bytes and of the order of requests; it grows when either changes."""


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
            dict(zip(linear.own_units(self._rank), places_of(linear, runs), strict=True))
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
            kinds = [pieces_of(linear, parts, firsts) for firsts in of_rank if firsts]
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
        places = list(places_of(linear, runs))
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
