"""The seam between a model and its cache: attend(q, k, v, layer, step, shape) writes the new rows, then attends.

A kernel is one file and one line in ATTEND, in the order of preference. No kernel lets the arithmetic of one sequence
depend on another: each span is attended to by itself.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from tokenmill.cache.formats import LayerKV
from tokenmill.cache.spec import CacheSpec
from tokenmill.cache.step import AnyStep
from tokenmill.errors import NoKernel
from tokenmill.registry import lookup

__all__ = ["ATTEND", "Attend", "AttentionShape", "Shapes", "choose"]

ATTEND = {
    "rows": "tokenmill.kernels.attend.gather:Rows",
    "gather": "tokenmill.kernels.attend.gather:Gather",
    "padded": "tokenmill.kernels.attend.padded:Padded",
}


@dataclass(frozen=True)
class AttentionShape:
    """What differs between layers. window: past tokens a query sees, itself included. softcap: cap · tanh(x / cap).

    sinks: one more score per head, learned, that takes its share of the weights and has no value.
    """

    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether the weights are the softmax of the scaled products alone, which is what torch's SDPA computes."""
        return self.softcap is None and not self.sinks

    def capped(self, scores: Tensor) -> Tensor:
        return scores if self.softcap is None else torch.tanh(scores / self.softcap) * self.softcap


Shapes = frozenset[AttentionShape]


class Attend:
    """An attention kernel."""

    padded = False  # whether it serves PaddedStep, not Step

    def refuse(self, cache: CacheSpec, device: torch.device, max_length: int, shapes: Shapes) -> str | None:
        """The reason why this kernel cannot serve, or None."""
        return None

    def __call__(
        self,
        q_TNH: Tensor,
        k_TKH: Tensor,
        v_TKH: Tensor,
        layer: LayerKV,
        step: AnyStep,
        shape: AttentionShape,
        sinks_N: Tensor | None = None,
    ) -> Tensor:
        """Write k and v to the step's slots, then return the attention of each query, [T, N, H]."""
        layer.write(step.slots_T, k_TKH, v_TKH)
        return self.attend(q_TNH, layer, step, shape, sinks_N)

    def attend(
        self, q_TNH: Tensor, layer: LayerKV, step: AnyStep, shape: AttentionShape, sinks_N: Tensor | None
    ) -> Tensor:
        """The attention of each query over rows that are written already, [T, N, H]."""
        raise NotImplementedError


def choose(
    name: str, cache: CacheSpec, device: torch.device, max_length: int, shapes: Shapes, padded: bool = False
) -> tuple[str, Attend]:
    """The kernel of that name, or with "auto" the first that does not refuse; NoKernel with every reason.

    padded: for padded steps, which compiled programs make.
    """
    reasons = {}
    for candidate in ATTEND if name == "auto" else [name]:
        kernel: Attend = lookup(ATTEND, candidate, "kernel")()
        if kernel.padded == padded:
            reason = kernel.refuse(cache, device, max_length, shapes)
        else:
            reason = f"serves {'padded' if kernel.padded else 'packed'} steps only"
        if reason is None:
            return candidate, kernel
        reasons[candidate] = reason
    raise NoKernel(reasons)
