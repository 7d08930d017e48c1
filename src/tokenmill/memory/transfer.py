"""Small tensors to a device and back without waiting for it; on CUDA through pinned memory."""

from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Numbers", "Reading", "to_device"]

Numbers = Tensor | NDArray[Any] | list[Any]


def to_device(numbers: Sequence[Any], device: torch.device, dtype: torch.dtype = torch.int64) -> Tensor:
    """A tensor of a list of numbers, or of a list of such lists."""
    if device.type != "cuda":
        return torch.tensor(numbers, dtype=dtype, device=device)
    return torch.tensor(numbers, dtype=dtype, pin_memory=True).to(device, non_blocking=True)


class Reading:
    """An asynchronous copy to the host of tensors, arrays or lists of equal length; `lists` waits for it."""

    def __init__(self, *numbers: Numbers) -> None:
        self._numbers, self._arrived = numbers, None
        tensors = [each for each in numbers if isinstance(each, Tensor) and each.device.type == "cuda"]
        if tensors:
            together = torch.stack([tensor.double() for tensor in tensors])
            host = torch.empty(together.shape, dtype=together.dtype, pin_memory=True)
            self._numbers = tuple(host.copy_(together, non_blocking=True))
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record(torch.cuda.current_stream(together.device))

    def lists(self) -> list[list[Any]]:
        """Their values; on CUDA all are float64, which represents every float32 and every token id exactly."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return [each if isinstance(each, list) else each.tolist() for each in self._numbers]
