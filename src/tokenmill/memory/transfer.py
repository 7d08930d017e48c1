"""Small tensors to a device and back without waiting for it; on CUDA through pinned memory."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Vector = Tensor | NDArray[Any] | list[Any]


def to_device(values: Sequence[Any] | NDArray[Any], device: torch.device, dtype: torch.dtype = torch.int64) -> Tensor:
    """Make a tensor of values, or of lists of values."""
    if device.type != "cuda":
        return torch.tensor(values, dtype=dtype, device=device)
    return torch.tensor(values, dtype=dtype, pin_memory=True).to(device, non_blocking=True)


def bits(words_RW: NDArray[np.int32], size: int, device: torch.device) -> Tensor:
    """Expand the first `size` bits of each row of words, lowest first, to a bool tensor on a device."""
    if device.type != "cuda":
        bits_RV = np.unpackbits(words_RW.view(np.uint8), axis=-1, count=size, bitorder="little")
        return torch.from_numpy(bits_RV.view(np.bool_)).to(device)
    # A word goes to the device and not its bits, which take eight times as much.
    return expanded(torch.from_numpy(words_RW).pin_memory().to(device, non_blocking=True), size)


def expanded(words_RW: Tensor, size: int) -> Tensor:
    """Expand the first `size` bits of each row of words of 32 bits, lowest first, to a bool tensor."""
    places = torch.arange(32, dtype=torch.int32, device=words_RW.device)
    return ((words_RW[:, :, None] >> places) & 1).bool().flatten(1)[:, :size]


class HostCopy:
    """An asynchronous copy of vectors of equal length to the host; `lists` waits for it."""

    def __init__(self, *vectors: Vector) -> None:
        self._vectors, self._arrived = vectors, None
        tensors = [each for each in vectors if isinstance(each, Tensor) and each.device.type == "cuda"]
        if tensors:
            together = torch.stack([tensor.double() for tensor in tensors])
            host = torch.empty(together.shape, dtype=together.dtype, pin_memory=True)
            self._vectors = tuple(host.copy_(together, non_blocking=True))
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record(torch.cuda.current_stream(together.device))

    def lists(self) -> list[list[Any]]:
        """Return the values; on CUDA all are float64, which represents every float32 and every token id exactly."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return [each if isinstance(each, list) else each.tolist() for each in self._vectors]
