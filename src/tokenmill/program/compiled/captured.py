"""A compiled step whose inputs lie at fixed addresses, recorded once and replayed: no launch by launch from Python."""

from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor

from tokenmill.program.compiled.form import Inputs

__all__ = ["Capture", "Captured", "cuda_graph", "plain_calls"]

Capture = Callable[[Callable[[], Tensor]], tuple[Callable[[], None], Tensor]]
"""From a function to (what does it again, where its result lies then)."""

WARM_UP = 3


class Captured:
    """Called like the step it captures."""

    def __init__(self, call: Callable[[Inputs, list[Tensor]], Tensor], capture: Capture) -> None:
        self._call, self._capture = call, capture
        self._inputs: Inputs | None = None

    def __call__(self, inputs: Inputs, cache: list[Tensor]) -> Tensor:
        """See Form. `cache` is the same in every call."""
        device = inputs.token_ids_BC.device
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            return self._replay(inputs, cache)

    def _replay(self, inputs: Inputs, cache: list[Tensor]) -> Tensor:
        if self._inputs is None:
            held = inputs.copy()
            self._again, self._logits = self._capture(lambda: self._call(held, cache))
            self._inputs = held  # not before it has worked
        for target, tensor in zip(self._inputs.tensors, inputs.tensors, strict=True):
            if target is not None and tensor is not None:
                target.copy_(tensor, non_blocking=True)
        self._again()
        return self._logits.clone()  # the next call, perhaps of the same step, writes to the same place


def cuda_graph(run: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
    """Run a few times aside, as torch asks for, then record. What a step writes it writes again: the same rows."""
    aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(WARM_UP):
            run()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # another thread may be compiling
        logits = run()
    return graph.replay, logits


def plain_calls(run: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
    """The same face without a GPU: every replay is a call."""
    logits = run()

    def again() -> None:
        logits.copy_(run())

    return again, logits
