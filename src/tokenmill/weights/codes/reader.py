"""Reads the matrices of a quantised directory, as values or as the codes that it has."""

import torch
from torch import Tensor

from tokenmill.errors import CheckpointError
from tokenmill.quant.stored import Stored
from tokenmill.registry import CODES, lookup
from tokenmill.weights.codes.checkpoint import QuantizedCheckpoint


def read(checkpoint: QuantizedCheckpoint, name: str, dtype: torch.dtype | None, rows: range | None) -> Tensor:
    """See Checkpoint."""
    if name not in checkpoint.parts:
        return checkpoint.plain.read(name, dtype, rows)
    is_transposed = name in checkpoint.transposed
    stored = _unpack(checkpoint, name, None if is_transposed else rows)
    shape, dtype = checkpoint.shapes[name], dtype or torch.float32
    if not is_transposed:
        return stored.values()[:, : shape[1]].to(dtype)
    values = stored.values()[:, : shape[0]].to(dtype).t()
    return values if rows is None else values[rows.start : rows.stop]


def read_codes(checkpoint: QuantizedCheckpoint, name: str, rows: range | None) -> Stored | None:
    """See QuantizedCheckpoint."""
    layout = checkpoint.layouts.get(name)
    if layout is None or layout.as_values:
        return None
    stored = _unpack(checkpoint, name, rows)
    if stored.numbers is not None:
        return None
    if stored.bits == 4:
        return stored
    assert stored.scales is not None
    if stored.minimums is not None:
        checkpoint.warn_of_values(name, "zeros too far from the middle of their codes")
        return None
    if not torch.equal(stored.scales.half().float(), stored.scales):
        checkpoint.warn_of_values(name, "scales that are no half floats")
        return None
    return stored


def _unpack(checkpoint: QuantizedCheckpoint, name: str, rows: range | None) -> Stored:
    """Unpack codes. Where a row of the matrix is a row of every part, only those rows of the parts are read."""
    layout, shapes = checkpoint.layouts[name], checkpoint.parts[name]
    own = rows if layout.has_rows else None
    names = {part: layout.name_of(name, part) for part in shapes}
    parts = {part: checkpoint.plain.read(each, rows=own if shapes[part] else None) for part, each in names.items()}
    for part, tensor in parts.items():
        if str(tensor.dtype).removeprefix("torch.") not in layout.types_of(part):
            raise CheckpointError(f"{names[part]} holds {tensor.dtype}, which is not what {layout.method} stores")
    base = name.removesuffix(".weight")
    stored: Stored = lookup(CODES, layout.method, "quant_method", computes=True)(layout, parts, base)
    return stored if rows is None or own is not None else stored.rows(rows)
