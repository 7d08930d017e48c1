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
        """See Checkpoint."""
        stored = self._unpack(name, rows)
        if stored is None:
            return self._checkpoint.plain.read(name, dtype, rows)
        return stored.values()[:, : self._checkpoint.shapes[name][1]].to(dtype or torch.float32)

    def read_codes(self, name: str, rows: range | None) -> Stored | None:
        """See Checkpoint."""
        stored = self._unpack(name, rows)
        if stored is None or stored.bits == 4:
            return stored
        assert stored.scales is not None
        exact = stored.minimums is None and torch.equal(stored.scales.half().float(), stored.scales)
        return stored if exact else None

    def _unpack(self, name: str, rows: range | None) -> Stored | None:
        """Unpack codes. Where a row of the matrix is a row of every part, only those rows of the parts are read."""
        opened, layout, base = self._checkpoint, self._checkpoint.layout, name.removesuffix(".weight")
        if not opened.is_coded(name):
            return None
        read = rows if layout.has_rows else None
        parts = {part: opened.plain.read(f"{base}.{part}", rows=read) for part in opened.parts[base]}
        for part, tensor in parts.items():
            is_number = part in ("scales", "minimums")
            if not (tensor.is_floating_point() if is_number else tensor.dtype == getattr(torch, layout.word)):
                raise CheckpointError(f"{base}.{part} holds {tensor.dtype}, which is not what {layout.method} stores")
        stored: Stored = lookup(CODES, layout.method, "quant_method", computes=True)(layout, parts, base)
        return stored if rows is None or read is not None else stored.rows(rows)
