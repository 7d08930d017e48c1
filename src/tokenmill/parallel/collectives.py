"""The exchange of tensors between ranks: a process group of torch.distributed, gloo on a CPU and NCCL on CUDA.

The group is made of its parts, and not torch's default group: a library leaves the process as it found it, and one
process may have several engines. Values travel as bytes, so that every dtype arrives as it is. The code for NCCL has
never run on a GPU.
"""

import ctypes
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Store
from torch.nn import functional as F

from tokenmill.errors import RankLost
from tokenmill.process import forget_in_child

PATIENCE = timedelta(minutes=5)
"""For a rank that is alive and late, as in the first long prompt on a slow machine. The death of a rank is noticed at
once, by its connections."""


class Group:
    """The ranks of one engine, numbered from 0, of which this process is `rank`."""

    def __init__(self, store: Store, rank: int, size: int, device: torch.device, address: str) -> None:
        self.rank, self.size = rank, size
        self._backend: Any = _backend(store, rank, size, device, address)
        forget_in_child(self)

    def gather(self, own_TC: Tensor, sizes: Sequence[int]) -> Tensor:
        """Join the columns of all ranks, [T, sum of sizes], from each rank's columns, [T, its size]."""
        if not len(own_TC):
            return own_TC.new_empty((0, sum(sizes)))
        padded = F.pad(own_TC, (0, max(sizes) - own_TC.shape[1])).contiguous()
        own = padded.view(-1).view(torch.uint8)
        all_ = own.new_empty(self.size * len(own))
        self._exchange(lambda: self._backend._allgather_base(all_, own))
        parts = all_.view(own_TC.dtype).view(self.size, *padded.shape)
        return torch.cat([part[:, :size] for part, size in zip(parts, sizes, strict=True)], dim=-1)

    def merge(self, own: Tensor) -> Tensor:
        """Join tensors of one shape, where at each place only one rank has a number other than zero."""
        if own.numel():
            bytes_ = own.view(-1).view(torch.uint8)
            self._exchange(lambda: self._backend.allreduce([bytes_]))  # sums of bytes and zeros: exact
        return own

    def _exchange(self, begin: Callable[[], Any]) -> None:
        try:
            begin().wait()
        except RuntimeError as error:
            raise RankLost(f"the exchange between ranks has failed: {str(error).partition('. This is')[0]}") from error

    def abort(self) -> None:
        """End the waits for a rank that is lost. Gloo's connections end by themselves with their other side."""
        if not isinstance(self._backend, dist.ProcessGroupGloo):
            self._backend.abort()

    def forget(self) -> None:
        """Keep torch's group for ever in a forked process, which lacks the threads for which its end would wait."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._backend))


def _backend(store: Store, rank: int, size: int, device: torch.device, address: str) -> Any:
    if device.type == "cuda":
        torch.cuda.set_device(device)
        nccl = dist.ProcessGroupNCCL.Options()
        nccl._timeout = PATIENCE
        return dist.ProcessGroupNCCL(store, rank, size, nccl)
    gloo = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    gloo._timeout = PATIENCE
    gloo._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
    return dist.ProcessGroupGloo(store, rank, size, gloo)
