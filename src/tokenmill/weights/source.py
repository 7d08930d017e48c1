"""The WeightSource: a model's weights as a program wants them, one matrix at a time, from the tensors of a checkpoint.

Every program, a calibration, and later every rank reads its weights here: a matrix as parts that each cover some of its
rows, codes as the file has them where the scheme keeps them, other rows in floating point or rounded. Small tensors
come whole. Nothing is kept, so that beside packed or filled matrices there is one matrix at a time; only the embedding
of a tied model is held until the head was read too.
"""

import ctypes
from collections import defaultdict
from collections.abc import Callable, Iterator
from math import prod

import torch
from torch import Tensor

from tokenmill.errors import CheckpointError, naming
from tokenmill.model.config import ModelConfig
from tokenmill.model.description import describe
from tokenmill.model.parameters import join, matrices_of, parameter_shapes
from tokenmill.quant.rtn import round_to_nearest
from tokenmill.quant.schemes import Scheme
from tokenmill.quant.stored import Stored
from tokenmill.weights.cast import check_range
from tokenmill.weights.checkpoint import Checkpoint
from tokenmill.weights.mapped_table import MappedTable
from tokenmill.weights.names import Target, match_tensors, rows_of
from tokenmill.weights.transforms import TRANSFORMS, Transform, of_rows

EMBEDDING, HEAD = "embedding", "head"
Progress = Callable[[int, int], None]
Change = Callable[[str, Tensor], Tensor]
"""(name of a checkpoint's tensor, its values [outputs, inputs]) → the values that take their place."""


class WeightSource:
    """The weights of one checkpoint. CheckpointError lists all tensors that do not fit the model.

    scheme: how matrices are stored. dtype: of numbers in floating point that are not rounded. device: of all tensors
    that are returned. progress: is told how many numbers of the checkpoint's tensors were read, and how many it has.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        model: ModelConfig,
        scheme: Scheme,
        dtype: torch.dtype,
        device: torch.device | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.model, self.scheme, self.dtype = model, scheme, dtype
        self.device = device or torch.device("cpu")
        self._checkpoint, self._progress = checkpoint, progress or (lambda done, total: None)
        self._shapes, self._roles = parameter_shapes(describe(model)), matrices_of(describe(model))
        self._targets: dict[str, list[tuple[str, Target]]] = defaultdict(list)
        targets = match_tensors(checkpoint, model)
        for name, target in targets.items():
            self._targets[target.parameter].append((name, target))
        self._transposed = {name for name, target in targets.items() if target.is_transposed}
        self._unread, self._total, self._done = set(targets), sum(prod(checkpoint.shapes[name]) for name in targets), 0
        self._table: Tensor | None = None
        self._progress(0, self._total)

    def tensor(self, parameter: str) -> Tensor:
        """Read a norm, a bias or a table, by its name among the decoder's parameters."""
        path, _, kind = parameter.rpartition(".")
        rounds = path in self._roles and kind == "bias" and self._bits(path) is not None
        dtype = torch.float32 if rounds else self.dtype
        place = torch.empty(self._shapes[parameter], dtype=dtype, device=self.device)
        for name, target, rows in self._parts(parameter):
            place[rows.start : rows.stop].copy_(self._values(name, target, dtype))
            self._count(name)
        if path == EMBEDDING and self.model.tie_embeddings:
            self._table = place
        return place

    def table(self, parameter: str) -> MappedTable:
        """Map a table that stays in its file, see PerLayerInputs.stays_in_file."""
        ((name, _, _),) = self._parts(parameter)
        with naming(self._checkpoint.path):
            found = MappedTable(self._checkpoint.mapped_as(name), self._checkpoint.mapped(name))
        self._count(name)
        return found

    def tensors(self, layer: int | None, role: str) -> dict[str, range]:
        """Name the checkpoint's tensors of which a matrix is made, with the rows that each of them fills."""
        return {name: rows for name, _, rows in self._parts(f"{join(layer, role)}.weight")}

    def matrix(
        self, layer: int | None, role: str, rows: range | None = None, change: Change | None = None
    ) -> list[Stored]:
        """Read a matrix, or the embedding as codes, by its path within its layer: parts that together are all of its
        rows, in order, or the rows in `rows` alone.

        Of a file only these rows are read, where they lie there one after the other. change: see Change; codes are
        read as values then.
        """
        path = join(layer, role)
        if path == HEAD and self.model.tie_embeddings:
            return self._tied_head(rows)
        outputs, inputs = self._shapes[f"{path}.weight"]
        wanted, bits = range(outputs) if rows is None else rows, self._bits(path)
        is_router = path != EMBEDDING and self._roles[path].role == "router"  # its inputs are not rounded either
        keeps = change is None and not is_router and (self.scheme.is_integer or path == EMBEDDING)
        dtype = self.dtype if bits is None else torch.float32  # so that values are rounded once, not twice
        numbers, kept = None, dict[int, Stored]()
        for name, target, own in self._parts(f"{path}.weight"):
            first, last = max(own.start, wanted.start), min(own.stop, wanted.stop)
            if first >= last:
                continue
            part = None if last - first == len(own) else range(first - own.start, last - own.start)
            begin = first - wanted.start
            stored = self._codes(name, target, part, bits) if keeps else None
            if stored is not None:
                kept[begin] = stored
            else:
                if numbers is None:
                    numbers = torch.empty((len(wanted), inputs), dtype=dtype, device=self.device)
                numbers[begin : begin + last - first].copy_(self._values(name, target, dtype, part, change))
            self._count(name)
        return list(self._joined(numbers, kept, bits, len(wanted)))

    def _tied_head(self, rows: range | None) -> list[Stored]:
        """Read the codes that the file has of the embedding, or its values as they are looked up."""
        bits = self._bits(HEAD)
        ((name, target, _),) = self._parts(f"{EMBEDDING}.weight")
        stored = self._codes(name, target, rows, bits) if self.scheme.is_integer else None
        if stored is not None:
            self._count(name)
            return [stored]
        if rows is not None and self._table is None:
            part = self._values(name, target, self.dtype, rows).to(self.device, self.dtype)
        else:
            table, self._table = self.tensor(f"{EMBEDDING}.weight") if self._table is None else self._table, None
            part = table if rows is None else table[rows.start : rows.stop]
        return [Stored.plain(part) if bits is None else round_to_nearest(part, bits, quick=True)]

    def _joined(self, numbers: Tensor | None, kept: dict[int, Stored], bits: int | None, end: int) -> Iterator[Stored]:
        """Join kept codes and, between them, rows of `numbers`, rounded."""
        first = 0
        for start in [*sorted(kept), end]:
            if start > first:
                assert numbers is not None, "rows that were not kept were read"
                rows = numbers[first:start] if kept or bits is not None else numbers
                if bits is None:
                    yield Stored.plain(rows.clone() if kept else rows)
                else:
                    yield round_to_nearest(rows, bits, quick=True)
            if start in kept:
                yield kept[start]
                first = start + kept[start].num_rows

    def _bits(self, path: str) -> int | None:
        """Decide to how many bits the rows of a matrix are rounded, if at all. A router is not rounded: a small error
        may choose another expert.
        """
        is_left = path == EMBEDDING or self._roles[path].role == "router"
        return None if is_left else self.scheme.rounds_to

    def _parts(self, parameter: str) -> Iterator[tuple[str, Target, range]]:
        num_rows = self._shapes[parameter][0]
        for name, target in self._targets[parameter]:
            yield name, target, rows_of(target, num_rows, self.model)

    def _codes(self, name: str, target: Target, rows: range | None, bits: int | None) -> Stored | None:
        """Read a tensor's codes, unless they have more bits than `bits`, to which other rows are rounded."""
        transform = of_rows(target.transform)  # codes are [outputs, inputs] anyway
        read, places_R = self._stretch(name, transform, rows)
        with naming(self._checkpoint.path):
            stored = self._checkpoint.read_codes(name, read)
        if stored is None or (bits is not None and stored.bits > bits):
            return None
        if places_R is not None:
            return stored.map(lambda part: part[places_R].to(self.device))
        with naming(name):
            stored = stored.map(lambda part: transform.to_decoder(part, self.model).to(self.device))
        return stored if rows is None or read is not None else stored.rows(rows)

    def _values(
        self, name: str, target: Target, dtype: torch.dtype, rows: range | None = None, change: Change | None = None
    ) -> Tensor:
        """Read a tensor's values as the parameter has them, all of its rows or some."""
        transform = TRANSFORMS[target.transform]
        read, places_R = self._stretch(name, transform, rows) if change is None else (None, None)
        values = self._read(name, dtype, read)
        check_range(name, values, dtype)
        if places_R is not None:
            return values[places_R]
        if change is not None:
            values = change(name, (values.t() if target.is_transposed else values).float())
            transform = of_rows(target.transform)
        with naming(name):
            values = transform.to_decoder(values, self.model)
        return values if rows is None or read is not None else values[rows.start : rows.stop]

    def _stretch(self, name: str, transform: Transform, rows: range | None) -> tuple[range | None, Tensor | None]:
        """Decide which rows of a tensor to read where some rows of its transform are wanted, None for all of it; and
        where they have another order in the file, find the places of the wanted rows among the rows that are read.
        """
        if rows is None or not transform.orders_rows:
            return None, None
        if transform is TRANSFORMS[""]:
            return rows, None
        count = self._checkpoint.shapes[name][-1 if name in self._transposed else 0]
        order_R = transform.to_decoder(torch.arange(count)[:, None], self.model)[rows.start : rows.stop, 0]
        first, last = int(order_R.min()), int(order_R.max())
        return range(first, last + 1), order_R - first

    def _read(self, name: str, dtype: torch.dtype, rows: range | None) -> Tensor:
        """Read a tensor; CheckpointError where it is not in floating point, or its shape has changed since."""
        where, shape = self._checkpoint.path, self._checkpoint.shapes[name]
        with naming(where):
            tensor = self._checkpoint.read(name, dtype, rows)
        if not tensor.is_floating_point():
            raise CheckpointError(
                f"{where}: {name} holds {tensor.dtype}: quantised exports of this kind are not supported yet"
            )
        if tensor.shape != (shape if rows is None else (len(rows), *shape[1:])):
            raise CheckpointError(f"{where} was changed while it was in use: {name} has another shape now")
        return tensor

    def _count(self, name: str) -> None:
        if name in self._unread:
            self._unread.remove(name)
            self._done += prod(self._checkpoint.shapes[name])
            self._progress(self._done, self._total)


def return_memory() -> None:
    """Return freed memory to the system, which the C library would keep: 45 to 80 MB for SmolLM2."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc; other libraries return memory by themselves
    if trim is not None:
        trim(0)
