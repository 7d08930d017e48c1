"""Reads the tensors of a directory in Meta's own layout, in Hugging Face's order of rows."""

import torch
from torch import Tensor

from tokenmill.weights.meta.checkpoint import MetaCheckpoint
from tokenmill.weights.transforms import TRANSFORMS


def read(checkpoint: MetaCheckpoint, name: str, dtype: torch.dtype | None, rows: range | None) -> Tensor:
    """See Checkpoint."""
    found = checkpoint.slices[name]
    files = found.files[:1] if found.dim is None else found.files
    if len(files) == 1 and not found.pairs:
        return files[0].read(found.name, rows)
    parts = [file.read(found.name) for file in files]
    whole = parts[0] if len(parts) == 1 else torch.cat(parts, found.dim or 0)
    if found.pairs:
        whole = TRANSFORMS["pairs_to_halves"].to_decoder(whole, checkpoint.model)
    return whole if rows is None else whole[rows.start : rows.stop]
