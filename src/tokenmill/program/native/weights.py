"""The addresses of the native program's weights: in an arena that is packed from a checkpoint, or in a packed model.

Ops asks both for the same things in the order of the model: small tensors and tables one by one, then all matrices.
Packing can describe the addresses that it gave as offsets in a file; Packed gives them again from such a file. Codes of
a checkpoint are the same in every dtype: a file may hold them once, and beside them the floating-point tensors in each
dtype. A rank has its share of the units of every matrix, and the tables if it looks tokens up; other units have no
place.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain, islice
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tokenmill.errors import NumberTooLarge, PackedModelError
from tokenmill.kernels.threads import ahead, torch_threads
from tokenmill.memory.arena import ALIGNMENT, Allocate, Allocation, Arena
from tokenmill.model.per_layer import BITS, CODED
from tokenmill.parallel.division import ALONE, Rank
from tokenmill.program.native.layouts import FLOATS, LAYOUTS
from tokenmill.program.native.pack import pack
from tokenmill.program.native.units import NO_GATE, Linear, Part, Piece, Place, Run, pieces_of, places_of
from tokenmill.settings.engine_config import DTYPES
from tokenmill.value_reader import brief
from tokenmill.weights.mapped_table import ROWS, MappedTable, is_coded
from tokenmill.weights.source import WeightSource, return_memory

LAYOUT = 11
"""The version of the packed bytes and of the order of requests; it grows when either changes."""
OF_ONE_DTYPE = 10
"""An earlier version with the same bytes, whose description has one dtype. Files of 0.1 have it."""
BAND = 16 << 20  # bytes that are packed at a time: their temporaries are small beside a model
FLOATS_SHARE = 1 / 8
"""A file serves every dtype if its floating-point tensors, in all dtypes together, take at most this share of the bytes
of its codes. More would cost users of one dtype more than users of several save: norms and routers take less than a
hundredth, and an embedding table in floating point takes more than the codes."""


class SmallTensor(NamedTuple):
    """A tensor that is read without packing, plus `offset`. parameter: None for zeros.

    in_float32: it is held in float32, with values rounded to the model's dtype; otherwise in that dtype. transposed: a
    matrix is held column by column.
    """

    parameter: str | None
    shape: tuple[int, ...]
    offset: float = 0.0
    in_float32: bool = True
    transposed: bool = False

    def held_in(self, dtype: torch.dtype) -> torch.dtype:
        """Return the dtype in which a model of this dtype holds the tensor."""
        return torch.float32 if self.in_float32 else dtype

    def read(self, source: WeightSource) -> Tensor:
        """Read the tensor in the dtype in which it is held."""
        dtype = self.held_in(source.dtype)
        zeros = torch.zeros(self.shape, dtype=dtype)
        held = zeros if self.parameter is None else source.tensor(self.parameter).to(dtype)
        held = held.T.contiguous() if self.transposed else held
        return held + self.offset if self.offset else held


class Packing:
    """Weights packed in the order in which the program reads them.

    source: the checkpoint's weights. allocate: gives the memory to pack into. widest: the layout that takes the most of
    it.
    """

    def __init__(self, source: WeightSource, allocate: Allocate, widest: int, rank: Rank = ALONE) -> None:
        self._rank, self._dtype = rank, source.dtype
        self._source: WeightSource | None = source  # until all is packed
        self._allocate, self._widest = allocate, widest
        self._wanted, self._kept = list[SmallTensor](), list[Tensor | MappedTable]()
        self._linears: Sequence[Linear] = ()
        self._coded: tuple[int, int] | None = None  # the place of a table of codes in the memory
        self._placed: list[list[Run]] = []  # with offsets in the place of addresses
        self._memory: Allocation = Arena(0)
        self._payload = self._memory.bytes
        self.num_bytes = self.num_matrix_bytes = 0

    def keep(self, wanted: SmallTensor) -> int:
        """Give the address of a tensor that is read without packing."""
        assert self._source is not None, "asked before the matrices are placed"
        held = wanted.read(self._source)
        self._wanted.append(wanted)
        self._kept.append(held)
        self.num_bytes += held.nbytes
        return held.data_ptr()

    def keep_table(self, wanted: SmallTensor) -> int | None:
        """Give the address of the table in which tokens are looked up; None on ranks that look nothing up."""
        return None if self._rank.number else self.keep(wanted)

    def map_table(self, wanted: SmallTensor) -> tuple[int | None, str]:
        """Give the address of a table that stays in the checkpoint's file, and say how it is stored there. No address
        on ranks that look nothing up.
        """
        assert self._source is not None and wanted.parameter is not None, "asked before the matrices are placed"
        table = self._source.table(wanted.parameter)
        self._wanted.append(wanted)
        self._kept.append(table)
        return None if self._rank.number else table.rows.data_ptr(), table.kind

    def place(self, linears: Sequence[Linear]) -> list[dict[int, Place]]:
        """Pack all matrices; return, for each, the places of this rank's units by their numbers."""
        # The upper bound, since layouts depend on codes that are not read yet.
        num_bytes = sum(self._max_bytes(linear) for linear in linears)
        self._memory = self._allocate(num_bytes, sum(len(linear.unit_rows) for linear in linears))
        source, self._source, self._linears = self._source, None, linears
        assert source is not None, "called once"
        matrices = chain.from_iterable(self._read(source, linear) for linear in linears)
        reading = closing(ahead(matrices, torch.get_num_threads()))  # it holds the last matrix until it is closed
        with reading as parts, torch_threads(1):
            for number, linear in enumerate(linears):
                if number % 16 == 0:
                    return_memory()  # of the matrices that were released
                runs = self._pack(linear, islice(parts, len(linear.matrices)))
                self._placed.append(runs)
                own = len(linear.own_units(self._rank))
                if own and not linear.is_embedding:  # of all ranks: units of the others are as large as ours
                    self.num_matrix_bytes += linear.num_bytes(runs) * len(linear.unit_rows) // own
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
        for place in linear.matrices:
            found = list[Part]()
            for rows in [None] if self._rank == ALONE else linear.own_rows(self._rank):
                begin = 0 if rows is None else rows.start
                for stored in source.matrix(*place, rows):
                    found.append(Part(begin, stored))
                    begin += stored.num_rows
            yield found

    def _pack(self, linear: Linear, matrices: Iterable[list[Part]], before: Iterable[Run] = ()) -> list[Run]:
        """Pack one Linear. Its temporary memory is free on return, so that return_memory can hand it back.

        before: the same units, packed in another dtype, whose codes are not packed again.
        """
        runs, packed = [], iter(before)
        for parts in matrices:
            of_rank = [[firsts[at] for at in self._rank.share(len(firsts))] for firsts in (linear.firsts, linear.gates)]
            kinds = [pieces_of(linear, parts, firsts) for firsts in of_rank if firsts]
            for together in zip(*kinds, strict=True):
                if (run := next(packed, None)) is not None and run.is_coded:
                    runs.append(run)
                    continue
                runs.append(self._pack_pieces(linear, together))
        return runs

    def _pack_pieces(self, linear: Linear, together: Sequence[Piece]) -> Run:
        """Pack the units of a piece, and of the piece of their gates if there are any, some at a time."""
        sizes = [linear.unit_bytes(piece.layout) for piece in together]
        assert sum(sizes) % ALIGNMENT == 0, "units of all bands lie one behind the other"
        offset, num_units = self._memory.used, len(together[0].firsts)
        step = max(BAND // sum(sizes), 1)
        for first in range(0, num_units, step):
            place = self._memory.zeros((min(step, num_units - first), sum(sizes)), torch.uint8)
            for piece, room in zip(together, torch.split(place, sizes, dim=1), strict=True):
                part, rows = piece.band(first, len(place))
                pack(part, rows, piece.layout, linear.op.inputs, room)
        return Run(offset, num_units, *(piece.layout for piece in together))

    def describe(self, others: Iterable[WeightSource] = ()) -> dict[str, Any]:
        """Describe where everything lies, for Packed. The memory must be a file; small tensors are put there too.

        others: the same weights in other dtypes; where floating point is a small part beside codes, it is read in these
        dtypes and put there too. The places of a matrix that is not all codes stand under each dtype. A dtype that does
        not hold the numbers has a sentence in the place of the description.
        """
        floats = [runs for runs in self._placed if not _are_coded(runs)]
        dtypes: dict[str, Any] = {_name(self._dtype): {"kept": self._put(self._kept), "floats": floats}}
        for source in others if self._has_few_floats() else ():
            try:
                dtypes[_name(source.dtype)] = self._in_dtype_of(source)
            except NumberTooLarge as error:
                dtypes[_name(source.dtype)] = str(error)
        placed = [runs if _are_coded(runs) else [] for runs in self._placed]
        tables = [held.kind for held in self._kept if isinstance(held, MappedTable) and is_coded(held)]
        return {"layout": LAYOUT, "placed": placed, "dtypes": dtypes, "table": "".join(tables)}

    def _has_few_floats(self) -> bool:
        kept = zip(self._wanted, self._kept, strict=True)
        codes, floats = 0, sum(prod(wanted.shape) for wanted, held in kept if not is_coded(held))
        for linear, runs in zip(self._linears, self._placed, strict=True):
            for run in runs:
                for layout in (run.layout, run.gate_layout):
                    size = run.num_units * linear.unit_bytes(layout)
                    codes += 0 if layout in FLOATS else size
                    floats += size // self._dtype.itemsize if layout in FLOATS else 0
        return floats * sum(DTYPES.values()) <= FLOATS_SHARE * codes

    def _in_dtype_of(self, source: WeightSource) -> dict[str, Any]:
        """Put the floating-point tensors into the file again, in the dtype of that source; describe where they lie."""
        with torch_threads(1):
            pairs = zip(self._wanted, self._kept, strict=True)
            kept = self._put(held if is_coded(held) else wanted.read(source) for wanted, held in pairs)
            matrices = zip(self._linears, self._placed, strict=True)
            floats = [
                self._pack(linear, self._read(source, linear), runs)
                for linear, runs in matrices
                if not _are_coded(runs)
            ]
        return {"kept": kept, "floats": floats}

    def _put(self, tensors: Iterable[Tensor | MappedTable]) -> list[tuple[int, int]]:
        """Put tensors into the memory; return, for each, its begin there and its bytes."""
        places = []
        for tensor in tensors:
            begin = self._memory.used
            if isinstance(tensor, MappedTable) and is_coded(tensor):  # once, whatever the dtypes
                self._coded = self._coded or self._put([tensor.rows])[0]
                places.append(self._coded)
                continue
            if isinstance(tensor, MappedTable):
                parts = (
                    tensor.values(slice(first, first + ROWS), self._dtype) for first in range(0, len(tensor.rows), ROWS)
                )
                places.append((begin, sum(size for _, size in self._put(parts))))  # without a gap between two
                continue
            self._memory.zeros((tensor.nbytes,), torch.uint8).copy_(tensor.reshape(-1).view(torch.uint8))
            places.append((begin, tensor.nbytes))
        return places


class Packed:
    """Weights from the bytes [N] of a packed model, as Packing.describe describes them, for a model in that dtype.

    All ranks map the same file, whose pages are in memory once. NumberTooLarge where the dtype does not hold the
    numbers.
    """

    def __init__(self, payload: Tensor, described: dict[str, Any], dtype: str, rank: Rank = ALONE) -> None:
        self._rank, self._dtype = rank, getattr(torch, dtype)
        if described.get("layout") == OF_ONE_DTYPE:
            described = {**described, "layout": LAYOUT, "dtypes": {dtype: {**described, "floats": []}}}
        if described.get("layout") != LAYOUT:
            raise PackedModelError(
                f"the packed model has layout {brief(described.get('layout'))}, and this tokenmill packs {LAYOUT}: "
                "make it again"
            )
        dtypes = described.get("dtypes")
        found = dtypes.get(dtype) if isinstance(dtypes, dict) else None
        if isinstance(found, str):
            raise NumberTooLarge(found)
        told: dict[str, Any] = found if isinstance(found, dict) else {}
        fields: list[Any] = [described.get("placed"), told.get("kept"), told.get("floats")]
        (placed, kept, floats), runs = fields, (None, None, len(Run._fields))
        table = described.get("table", "")
        if table not in ("", *CODED) or not (
            _are_ints(placed, *runs) and _are_ints(kept, None, 2) and _are_ints(floats, *runs)
        ):
            raise PackedModelError(
                "the packed model is damaged: its description of the weights cannot be read; make it again"
            )
        of_dtype = iter(floats)
        self._placed: list[Any] = [coded or next(of_dtype, []) for coded in placed]
        self._payload, self._kept, self._table = payload, iter(kept), table or _name(self._dtype)
        self.num_bytes, self.num_matrix_bytes = sum(size for _, size in kept), 0

    def keep(self, wanted: SmallTensor) -> int:
        """Give the address of a small tensor. PackedModelError unless the file has as many bytes for it as it needs."""
        return self._find(prod(wanted.shape) * wanted.held_in(self._dtype).itemsize)

    def _find(self, right: int) -> int:
        """Find the next tensor, which has so many bytes."""
        begin, size = next(self._kept, (0, -1))
        if size != right or not 0 <= begin <= self._payload.nbytes - size:
            raise PackedModelError(f"the packed model holds {size} bytes where its config wants {right}: make it again")
        return self._payload.data_ptr() + int(begin)

    def keep_table(self, wanted: SmallTensor) -> int | None:
        address = self.keep(wanted)
        return None if self._rank.number else address

    def map_table(self, wanted: SmallTensor) -> tuple[int | None, str]:
        """See Packing: all of a packed model stays in its file, and of the table the rows of tokens alone are read."""
        each = BITS[self._table] if self._table in CODED else 8 * self._dtype.itemsize
        size = int(prod(wanted.shape) * each / 8)
        address = self._find(size)
        self.num_bytes -= size
        return None if self._rank.number else address, self._table

    def place(self, linears: Sequence[Linear]) -> list[dict[int, Place]]:
        base = self._payload.data_ptr()
        placed = [[Run(base + offset, *rest) for offset, *rest in runs] for runs in self._placed]
        if len(placed) != len(linears) or not all(map(self._fits, linears, placed)):
            raise PackedModelError("the packed model's matrices are not those of its config: make it again")
        sizes = [linear.num_bytes(runs) for linear, runs in zip(linears, placed, strict=True)]
        self.num_bytes += sum(sizes)
        self.num_matrix_bytes = sum(
            size for linear, size in zip(linears, sizes, strict=True) if not linear.is_embedding
        )
        return [self._own(linear, runs) for linear, runs in zip(linears, placed, strict=True)]

    def _own(self, linear: Linear, runs: list[Run]) -> dict[int, Place]:
        places = list(places_of(linear, runs))
        return {number: places[number] for number in linear.own_units(self._rank)}

    def _fits(self, linear: Linear, runs: list[Run]) -> bool:
        """Say whether there are as many units as the model has, of known layouts and within the payload."""
        known, base = set(LAYOUTS.values()), self._payload.data_ptr()
        gates = known if linear.gates else {NO_GATE}
        if not all(run.layout in known and run.gate_layout in gates and run.num_units > 0 for run in runs):
            return False
        ends = [run.address - base + run.num_units * linear.stride(run) for run in runs]
        within = all(run.address >= base and end <= self._payload.nbytes for run, end in zip(runs, ends, strict=True))
        return within and sum(run.num_units for run in runs) == len(linear.unit_rows)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _are_coded(runs: Iterable[Run]) -> bool:
    return all(run.is_coded for run in runs)


def _are_ints(value: Any, *lengths: int | None) -> bool:
    """Say whether the value is an integer, or lists of lists of them, `lengths` long (None: any) from outside in."""
    if not lengths:
        return type(value) is int and abs(value) < 1 << 62
    is_list = isinstance(value, list) and lengths[0] in (None, len(value))
    return is_list and all(_are_ints(entry, *lengths[1:]) for entry in value)
