"""The tensors of a GGUF file, dequantised or as codes."""

from collections.abc import Iterable

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tokenmill.errors import CheckpointError
from tokenmill.quant.rtn import round_to_nearest
from tokenmill.quant.stored import TENSORS, Stored
from tokenmill.weights.gguf.checkpoint import GGUFCheckpoint
from tokenmill.weights.gguf.codes import decode
from tokenmill.weights.gguf.header import FLOATS, KINDS, TensorInfo
from tokenmill.weights.heads import is_key

BAND = 2**23  # codes read at a time: their temporaries are small beside a model
CHUNK = 2**18  # values dequantised at a time: temporaries stay in the second-level cache


def read(checkpoint: GGUFCheckpoint, name: str, dtype: torch.dtype | None, rows: range | None) -> Tensor:
    """See Checkpoint."""
    if name in checkpoint.numbers:
        return torch.tensor([checkpoint.numbers[name]])
    info = checkpoint.infos[name]
    return load(checkpoint, info if rows is None else info.stretch(rows), dtype or torch.float32)


def read_codes(checkpoint: GGUFCheckpoint, name: str, rows: range | None) -> Stored | None:
    """See Checkpoint. Codes of other kinds are rounded to 8 bits; codes of keys that are transposed are not kept."""
    if name in checkpoint.numbers or is_key(name):
        return None
    info = checkpoint.infos[name]
    if info.type in FLOATS or len(info.shape) != 2:
        return None
    rows = rows or range(info.shape[0])
    step = max(BAND // info.shape[1], 1)
    bands = (range(first, min(first + step, rows.stop)) for first in range(rows.start, rows.stop, step))
    return _joined(len(rows), (_codes(checkpoint, info.stretch(band)) for band in bands))


def _joined(num_rows: int, parts: Iterable[Stored]) -> Stored:
    """Join parts as Stored.joined does, each of which is made after the last one was copied to its place."""
    whole, first = None, 0
    for part in parts:
        if part.num_rows == num_rows:  # a small matrix is one part
            return part
        whole = whole or part.map(lambda tensor: tensor.new_empty(num_rows, *tensor.shape[1:]))
        last = first + part.num_rows
        for name in TENSORS:
            if (tensor := getattr(part, name)) is not None:
                getattr(whole, name)[first:last] = tensor
        first = last
    assert whole is not None and first == num_rows, "the parts have all the rows"
    return whole


def _codes(checkpoint: GGUFCheckpoint, info: TensorInfo) -> Stored:
    if info.type in KINDS:
        return decode(checkpoint.raw(info), info.type)
    return round_to_nearest(load(checkpoint, info, torch.float32), 8, quick=True)


def mapped(checkpoint: GGUFCheckpoint, name: str) -> Tensor:
    """See Checkpoint."""
    info = checkpoint.infos[name]
    rows = torch.from_numpy(checkpoint.mapped_bytes(info))
    return rows.view(getattr(torch, FLOATS[info.type])) if info.type in FLOATS else rows


def load(checkpoint: GGUFCheckpoint, info: TensorInfo, dtype: torch.dtype) -> Tensor:
    """Load the values of a tensor as it is stored, from its own bytes alone; in `dtype` if it is quantised."""
    kind, raw, shape = info.type, checkpoint.raw(info), info.shape
    if kind in FLOATS:
        return torch.from_numpy(raw).view(getattr(torch, FLOATS[kind])).reshape(shape)
    values = torch.empty((len(raw), shape[-1]), dtype=dtype)
    step = max(CHUNK // shape[-1], 1)  # some rows at a time, since there are several temporaries as large
    try:
        for first in range(0, len(raw), step):
            values[first : first + step] = _dequantised(raw[first : first + step], kind)
    except NotImplementedError:
        what = f"tensor {info.name!r} is of type {kind.name}, which cannot be dequantised"
        raise CheckpointError(f"{checkpoint.path}: {what}") from None
    return values.reshape(shape)


def dequantised(rows: NDArray[np.uint8], kind: str) -> Tensor:
    """Decode rows of codes of the type of that name, into float32."""
    return _dequantised(rows, gguf.GGMLQuantizationType[kind])


def _dequantised(rows: NDArray[np.uint8], kind: gguf.GGMLQuantizationType) -> Tensor:
    if kind in KINDS:
        return decode(rows, kind).values()
    with np.errstate(all="ignore"):  # damaged scales are infinite or NaN, which numpy would warn of
        return torch.from_numpy(gguf.dequantize(rows, kind))
