"""Small tensors to a device and back without waiting for it; on CUDA through pinned memory."""

from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

Vector = Tensor | NDArray[Any] | list[Any]


def to_device(values: Sequence[Any], device: torch.device, dtype: torch.dtype = torch.int64) -> Tensor:
    """A tensor of values, or of lists of values."""
    if device.type != "cuda":
        return torch.tensor(values, dtype=dtype, device=device)
    return torch.tensor(values, dtype=dtype, pin_memory=True).to(device, non_blocking=True)


class Reading:
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
        """Their values; on CUDA all are float64, which represents every float32 and every token id exactly."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return [each if isinstance(each, list) else each.tolist() for each in self._vectors]
