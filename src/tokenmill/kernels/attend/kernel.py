"""The seam between a model and its cache: attend(q, k, v, layer, step, shape) writes the new rows, then attends.

No kernel lets the arithmetic of one sequence depend on another: each span is attended to by itself.
"""

import torch
from torch import Tensor

from tokenmill.cache.formats.layer import LayerKV
from tokenmill.cache.spec import CacheSpec
from tokenmill.cache.step import Step
from tokenmill.errors import NoKernel
from tokenmill.kernels.attend import AttentionShape, Shapes
from tokenmill.registry import ATTEND, lookup


class Attend:
    """An attention kernel."""

    padded = False  # whether it serves PaddedStep, not Step

    def refuse(self, cache: CacheSpec, device: torch.device, max_length: int, shapes: Shapes) -> str | None:
        """Say why this kernel cannot serve; None where it can."""
        return None

    def __call__(
        self,
        q_TNH: Tensor,
        k_TKH: Tensor,
        v_TKH: Tensor,
        layer: LayerKV,
        step: Step,
        shape: AttentionShape,
        sinks_N: Tensor | None = None,
    ) -> Tensor:
        """Write k and v to the step's slots, then return the attention of each query, [T, N, H]."""
        layer.write(step.slots_T, k_TKH, v_TKH)
        return self.attend(q_TNH, layer, step, shape, sinks_N)

    def attend(
        self, q_TNH: Tensor, layer: LayerKV, step: Step, shape: AttentionShape, sinks_N: Tensor | None
    ) -> Tensor:
        """Compute the attention of each query over rows that are written already, [T, N, H]."""
        raise NotImplementedError


def choose(
    name: str, cache: CacheSpec, device: torch.device, max_length: int, shapes: Shapes, padded: bool = False
) -> tuple[str, Attend]:
    """Choose the kernel of that name, or with "auto" the first that does not refuse; NoKernel with every reason.

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


def capped(scores: Tensor, shape: AttentionShape) -> Tensor:
    """Cap scores as a layer of that shape does."""
    return scores if shape.softcap is None else torch.tanh(scores / shape.softcap) * shape.softcap
