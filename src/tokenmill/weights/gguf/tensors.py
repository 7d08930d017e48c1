"""The tensors of a GGUF file in Hugging Face's names and layout, dequantised or as codes."""

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

__all__ = ["GGUFReader"]

CHUNK = 2**18  # values dequantised at a time: temporaries stay in the second-level cache


class GGUFReader:
    """Reads the tensors of a GGUFCheckpoint."""

    def __init__(self, checkpoint: GGUFCheckpoint) -> None:
        self._checkpoint = checkpoint

    def read(self, name: str, dtype: torch.dtype | None) -> Tensor:
        """See Checkpoint."""
        info, transform = self._checkpoint.source_of(name)
        return transform.to_hf(self._load(info, dtype or torch.float32), self._checkpoint.config)

    def read_codes(self, name: str) -> Stored | None:
        """See Checkpoint."""
        info, transform = self._checkpoint.source_of(name)
        if info.type in FLOATS or len(info.shape) != 2:
            return None
        kept = info.type in KINDS
        stored = (
            decode(self._checkpoint.raw(info), info.type) if kept else round_to_nearest(self._load(info), 8, quick=True)
        )
        config = self._checkpoint.config
        return stored if transform.transposes else stored.map(lambda part: transform.to_hf(part, config))

    def _load(self, info: TensorInfo, dtype: torch.dtype = torch.float32) -> Tensor:
        """The values of a tensor as it is stored, from its own bytes alone; in that dtype if it is quantised."""
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
