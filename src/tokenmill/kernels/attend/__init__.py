"""The seam between a model and its cache: attend(q, k, v, layer, step, shape) writes the new rows, then attends.

A kernel is one file and one line in ATTEND. Whether it can serve a cache is asked once, when the engine is built; the
answer is None or the reason why not. The order is that of preference. No kernel lets one sequence's arithmetic depend
on another's: each span is attended to by itself.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tokenmill.cache.formats import LayerKV
from tokenmill.cache.spec import CacheSpec
from tokenmill.cache.step import Step
from tokenmill.errors import NoKernel
from tokenmill.registry import lookup

__all__ = ["ATTEND", "Attend", "AttentionShape", "choose"]

ATTEND = {
    "rows": "tokenmill.kernels.attend.rows:Rows",
    "gather": "tokenmill.kernels.attend.gather:Gather",
}


@dataclass(frozen=True)
class AttentionShape:
    """What differs between layers. window: past tokens a query sees, itself included. softcap: cap · tanh(x / cap)."""

    scale: float
    window: int | None = None
    softcap: float | None = None

    def capped(self, scores: Tensor) -> Tensor:
        """Scores of any shape, within the cap if there is one."""
        return scores if self.softcap is None else torch.tanh(scores / self.softcap) * self.softcap


class Attend(Protocol):
    """One attention kernel."""

    def refuse(self, cache: CacheSpec, max_length: int, shapes: frozenset[AttentionShape]) -> str | None:
        """Why this kernel cannot serve, or None."""

    def __call__(
        self, q_TNH: Tensor, k_TKH: Tensor, v_TKH: Tensor, layer: LayerKV, step: Step, shape: AttentionShape
    ) -> Tensor:
        """Write k and v to the step's slots, then return the attention of each query, [T, N, H]."""


def choose(name: str, cache: CacheSpec, max_length: int, shapes: frozenset[AttentionShape]) -> tuple[str, Attend]:
    """The kernel of that name, or with "auto" the first that does not refuse; NoKernel with every reason."""
    reasons = {}
    for candidate in ATTEND if name == "auto" else [name]:
        kernel: Attend = lookup(ATTEND, candidate, "kernel")()
        reason = kernel.refuse(cache, max_length, shapes)
        if reason is None:
            return candidate, kernel
        reasons[candidate] = reason
    raise NoKernel(reasons)
