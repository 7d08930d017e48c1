"""The tensors of a GGUF file in Hugging Face's names and layout, dequantised or as codes."""

from dataclasses import replace

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tokenmill.errors import CheckpointError
from tokenmill.quant.rtn import round_to_nearest
from tokenmill.quant.stored import Stored
from tokenmill.weights.gguf.checkpoint import GGUFCheckpoint
from tokenmill.weights.gguf.codes import decode
from tokenmill.weights.gguf.header import TensorInfo
from tokenmill.weights.gguf.kinds import FLOATS, KINDS
from tokenmill.weights.gguf.names import Transform

CHUNK = 2**18  # values dequantised at a time: temporaries stay in the second-level cache


class GGUFReader:
    """Reads the tensors of a GGUFCheckpoint."""

    def __init__(self, checkpoint: GGUFCheckpoint) -> None:
        self._checkpoint = checkpoint

    def read(self, name: str, dtype: torch.dtype | None, rows: range | None) -> Tensor:
        """See Checkpoint."""
        info, transform = self._checkpoint.source_of(name)
        config, dtype = self._checkpoint.config, dtype or torch.float32
        if rows is None:
            return transform.to_hf(self._load(info, dtype), config)
        if transform.transposes:
            return transform.to_hf(self._load(info, dtype), config)[rows.start : rows.stop]
        info, places_R = self._stretch(info, transform, rows)
        return self._load(info, dtype)[places_R]

    def read_codes(self, name: str, rows: range | None) -> Stored | None:
        """See Checkpoint."""
        info, transform = self._checkpoint.source_of(name)
        if info.type in FLOATS or len(info.shape) != 2:
            return None
        transform = Transform() if transform.transposes else transform  # codes lie as they are wanted
        if rows is None:
            return self._codes(info).map(lambda part: transform.to_hf(part, self._checkpoint.config))
        info, places_R = self._stretch(info, transform, rows)
        return self._codes(info).map(lambda part: part[places_R])

    def _stretch(self, info: TensorInfo, transform: Transform, rows: range) -> tuple[TensorInfo, Tensor]:
        """Read the rows of the file among which those rows lie, as a tensor, and their places in it."""
        numbers_R1 = torch.arange(info.shape[0])[:, None]
        order_R = transform.to_hf(numbers_R1, self._checkpoint.config)[rows.start : rows.stop, 0]
        first, size = int(order_R.min()), info.num_bytes // info.shape[0]
        count = int(order_R.max()) + 1 - first
        shape, offset = (count, *info.shape[1:]), info.offset + first * size
        return replace(info, shape=shape, offset=offset, num_bytes=count * size), order_R - first

    def _codes(self, info: TensorInfo) -> Stored:
        if info.type in KINDS:
            return decode(self._checkpoint.raw(info), info.type)
        return round_to_nearest(self._load(info), 8, quick=True)

    def _load(self, info: TensorInfo, dtype: torch.dtype = torch.float32) -> Tensor:
        """Load the values of a tensor as it is stored, from its own bytes alone; in that dtype if it is quantised."""
        kind, raw, shape = info.type, self._checkpoint.raw(info), info.shape
        if kind in FLOATS:
            return torch.from_numpy(raw).view(getattr(torch, FLOATS[kind])).reshape(shape)
        values = torch.empty((len(raw), shape[-1]), dtype=dtype)
        step = max(CHUNK // shape[-1], 1)  # some rows at a time, since there are several temporaries as large
        try:
            for first in range(0, len(raw), step):
                values[first : first + step] = _dequantised(raw[first : first + step], kind)
        except NotImplementedError:
            what = f"tensor {info.name!r} is of type {kind.name}, which cannot be dequantised"
            raise CheckpointError(f"{self._checkpoint.path}: {what}") from None
        return values.reshape(shape)


def _dequantised(rows: NDArray[np.uint8], kind: gguf.GGMLQuantizationType) -> Tensor:
    """The float32 values of some rows."""
    if kind in KINDS:
        return decode(rows, kind).values()
    with np.errstate(all="ignore"):  # damaged scales are infinite or NaN, which numpy would warn of
        return torch.from_numpy(gguf.dequantize(rows, kind))
