"""Adapters as program native computes with them: factors laid out for its kernels, found by the number of a matrix.

A row of A is padded to a multiple of 64 inputs. B lies in tiles of 16 rows, unit by unit of its matrix, so that a
thread reads the B of a unit in one stream. A change is divided where a part of a merged matrix ends: units do, too. Of
several ranks each has all of A, and the rows of B that belong to its units.
"""

import ctypes
from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tokenmill.kernels.native_structs import TmAdapter, TmChange, TmNorm
from tokenmill.model.parameters import join
from tokenmill.parallel.division import Rank
from tokenmill.program.native.layouts import TILE
from tokenmill.program.native.op_list import LINEAR
from tokenmill.program.native.ops import Ops
from tokenmill.program.native.program import Native
from tokenmill.program.native.units import Linear
from tokenmill.weights.adapters.adapter import Adapter, Change, EmbeddingChange

PAD = 64
TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}  # enum Scheme of native/kernels/kernels.h


class NativeAdapter:
    """An adapter in C's form. address: of its TmAdapter. This object keeps alive what that points to."""

    def __init__(
        self, adapter: Adapter, ops: Ops, linears: dict[str, tuple[int, Linear]], num_matrices: int, rank: Rank
    ) -> None:
        self._held, self._rank = list[Any](), rank
        changes, firsts, self._max_lowered = list[TmChange](), [0], 0
        paths = {number: path for path, (number, _) in linears.items()}
        for number in range(num_matrices):
            path = paths.get(number)
            if path is not None and path in adapter.changes:
                changes += self._changes(linears[path][1], adapter.changes[path])
            firsts.append(len(changes))
        self._struct = TmAdapter(num_matrices=num_matrices, max_lowered=self._max_lowered)
        self._struct.changes = self._keep((TmChange * max(len(changes), 1))(*changes))
        self._struct.firsts = ctypes.addressof(self._keep((ctypes.c_int64 * len(firsts))(*firsts)))
        if adapter.embedding is not None:
            self._set_embedding(adapter.embedding)
        self._set_norms(adapter, ops)
        self.address = ctypes.addressof(self._struct)

    def note_ranks(self, addresses: list[int]) -> None:
        """Note where the other ranks have this adapter."""
        own = (ctypes.c_int64 * self._rank.count)(self.address, *addresses)
        self._struct.in_ranks = ctypes.addressof(self._keep(own))

    def _keep(self, held: Any) -> Any:
        self._held.append(held)
        return held

    def _tensor(self, tensor: Tensor | None) -> int | None:
        return None if tensor is None else self._keep(tensor.contiguous()).data_ptr()

    def _changes(self, linear: Linear, changes: tuple[Change, ...]) -> Iterator[TmChange]:
        """Lay out the changes of one matrix, whose products A x lie side by side."""
        at = 0
        for change in changes:
            if change.whole_OI is not None:
                for first, last in _pieces(linear, change, self._rank):
                    rows, count = slice(first - change.first, last - change.first), last - first
                    type_ = TYPES[change.whole_OI.dtype]
                    own = TmChange(first=first, count=count, rank=count, at=at, unit=1, type=type_)
                    own.a = self._tensor(_padded(change.whole_OI[rows]))
                    own.bias = None if change.bias_O is None else self._tensor(change.bias_O[rows])
                    at += count
                    yield own
                continue
            yield from self._low_rank(linear, change, at)
            at += 0 if change.a_RI is None else len(change.a_RI)
        self._max_lowered = max(self._max_lowered, at)

    def _low_rank(self, linear: Linear, change: Change, at: int) -> Iterator[TmChange]:
        a = change.a_RI
        a_address = None if a is None else self._tensor(_padded(a))
        for first, last in _pieces(linear, change, self._rank):
            rows = slice(first - change.first, last - change.first)
            begin = _unit_begin(linear, first)
            own = TmChange(first=begin, count=last - begin, at=at, unit=linear.count, scale=change.scale)
            if a is not None and change.b_OR is not None:
                own.rank, own.type, own.a = len(a), TYPES[a.dtype], a_address
                own.b = self._tensor(_tiles(F.pad(change.b_OR[rows], (0, 0, first - begin, 0)), linear.count))
                a_address = None  # it is lowered once for all pieces
            if change.factors_O is not None:
                own.factors = self._tensor(F.pad(change.factors_O[rows], (first - begin, 0), value=1.0))
            if change.bias_O is not None:
                own.bias = self._tensor(F.pad(change.bias_O[rows], (first - begin, 0)))
            yield own

    def _set_embedding(self, change: EmbeddingChange) -> None:
        struct = self._struct
        struct.type = TYPES[change.tensors[0].dtype]
        struct.table, struct.rows = self._tensor(change.table_VD), self._tensor(change.rows_ND)
        if change.a_VR is not None:
            struct.a, struct.b = self._tensor(change.a_VR), self._tensor(change.b_RD)
            struct.rank, struct.scale = change.a_VR.shape[1], change.scale
        struct.ids, struct.num_ids = self._tensor(torch.tensor(change.ids, dtype=torch.int64)), len(change.ids)

    def _set_norms(self, adapter: Adapter, ops: Ops) -> None:
        norms = [
            TmNorm(address, self._tensor(tensor.float() + offset))
            for name, tensor in adapter.norms.items()
            for address, offset in ops.addresses(name)
        ]
        norms.sort(key=lambda norm: norm.before)
        self._struct.norms, self._struct.num_norms = self._keep((TmNorm * max(len(norms), 1))(*norms)), len(norms)


def _padded(a_RI: Tensor) -> Tensor:
    return F.pad(a_RI, (0, -a_RI.shape[1] % PAD))


def _pieces(linear: Linear, change: Change, rank: Rank) -> Iterator[tuple[int, int]]:
    """Yield the rows of a change in the units of a rank, those that lie in one part of the matrix each; gates and the
    others are parts, too.
    """
    end = change.first + change.count
    for own in linear.own_rows(rank):
        for begin, stop in pairwise([0, *accumulate(linear.parts)]):
            first, last = max(begin, change.first, own.start), min(stop, end, own.stop)
            if first < last:
                yield first, last


def _unit_begin(linear: Linear, row: int) -> int:
    """Find the first row of the unit that has a row of the matrix."""
    return max(first for first in (*linear.gates, *linear.firsts) if first <= row)


def _tiles(b_OR: Tensor, unit: int) -> Tensor:
    """Lay out rows, which begin with a unit, as tiles of 16 of them, unit by unit: [units, tiles, rank, 16]."""
    rank = b_OR.shape[1]
    units_UNR = F.pad(b_OR, (0, 0, 0, -len(b_OR) % unit)).view(-1, unit, rank)
    return F.pad(units_UNR, (0, 0, 0, -unit % TILE)).view(len(units_UNR), -1, TILE, rank).transpose(2, 3)


def prepare(program: Native, adapter: Adapter) -> None:
    """Lay out an adapter for a program."""
    linears, number, by_op = {}, 0, {}
    for place, op in enumerate(program.ops.array):
        by_op[place] = number
        number += max(1, op.experts) if op.kind == LINEAR else 0
    for linear, place in program.ops.linears:
        for expert, matrix in enumerate(linear.matrices):
            linears[join(*matrix)] = by_op[place] + expert, linear
    missing = [path for path in adapter.changes if path not in linears]
    assert not missing, f"every matrix is a linear: {missing}"
    adapter.prepared["native"] = NativeAdapter(adapter, program.ops, linears, number, program.rank)


def address_of(adapter: Adapter) -> int:
    """Find where an adapter that is laid out lies in the memory of this process."""
    address: int = adapter.prepared["native"].address
    return address
