"""Reads the matrices of a quantised directory, as values or as the codes that it has."""

import torch
from torch import Tensor

from tokenmill.errors import CheckpointError
from tokenmill.quant.stored import Stored
from tokenmill.registry import CODES, lookup
from tokenmill.weights.codes.checkpoint import QuantizedCheckpoint


class CodesReader:
    """Reads the tensors of a QuantizedCheckpoint."""

    def __init__(self, checkpoint: QuantizedCheckpoint) -> None:
        self._checkpoint = checkpoint

    def read(self, name: str, dtype: torch.dtype | None, rows: range | None) -> Tensor:
        if name not in self._checkpoint.parts:
            return self._checkpoint.plain.read(name, dtype, rows)
        is_transposed = name in self._checkpoint.transposed
        stored = self._unpack(name, None if is_transposed else rows)
        shape, dtype = self._checkpoint.shapes[name], dtype or torch.float32
        if not is_transposed:
            return stored.values()[:, : shape[1]].to(dtype)
        values = stored.values()[:, : shape[0]].to(dtype).t()
        return values if rows is None else values[rows.start : rows.stop]

    def read_codes(self, name: str, rows: range | None) -> Stored | None:
        layout = self._checkpoint.layouts.get(name)
        if layout is None or layout.as_values:
            return None
        stored = self._unpack(name, rows)
        if stored.numbers is not None:
            return None
        if stored.bits == 4:
            return stored
        assert stored.scales is not None
        if stored.minimums is not None:
            self._checkpoint.warn_of_values(name, "zeros too far from the middle of their codes")
            return None
        if not torch.equal(stored.scales.half().float(), stored.scales):
            self._checkpoint.warn_of_values(name, "scales that are no half floats")
            return None
        return stored

    def _unpack(self, name: str, rows: range | None) -> Stored:
        """Unpack codes. Where a row of the matrix is a row of every part, only those rows of the parts are read."""
        opened = self._checkpoint
        layout, shapes = opened.layouts[name], opened.parts[name]
        read = rows if layout.has_rows else None
        names = {part: layout.name_of(name, part) for part in shapes}
        parts = {part: opened.plain.read(each, rows=read if shapes[part] else None) for part, each in names.items()}
        for part, tensor in parts.items():
            if str(tensor.dtype).removeprefix("torch.") not in layout.types_of(part):
                raise CheckpointError(f"{names[part]} holds {tensor.dtype}, which is not what {layout.method} stores")
        base = name.removesuffix(".weight")
        stored: Stored = lookup(CODES, layout.method, "quant_method", computes=True)(layout, parts, base)
        return stored if rows is None or read is not None else stored.rows(rows)
