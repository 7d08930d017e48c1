"""Program graphs: steps of one token a sequence by Triton kernels, recorded in CUDA graphs; the rest by the modules.

A graph is recorded for each declared number of sequences and of positions. The bits of a row's logits depend neither on
the other sequences of its step nor on the size of blocks. Prompts are computed by the modules, by torch's products.
"""

import logging
import threading
import time
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from typing import Any

import torch
import triton
from torch import Tensor
from triton.runtime.errors import OutOfResources

from tokenmill.cache.step import Step
from tokenmill.kernels.triton.arithmetic import INTERPRETED
from tokenmill.memory.transfer import to_device
from tokenmill.program.compiled.micro_batches import (
    Cache,
    Call,
    Inputs,
    MicroBatch,
    MicroBatched,
    StaticShapes,
    StepShape,
)
from tokenmill.program.compiled.program import Capture, Captured, CudaGraphs
from tokenmill.program.forward import ModelParts
from tokenmill.program.graphs.layers import GraphDecoder
from tokenmill.program.graphs.rows import StepRows
from tokenmill.program.graphs.spec import SPLIT, scratch_numbers

log = logging.getLogger(__name__)

LAUNCHES: AbstractContextManager[Any] = threading.Lock() if INTERPRETED else nullcontext()
"""Triton's interpreter (3.7) keeps the grid of a launch in a variable of the process: one engine at a time computes."""


class Graphs(MicroBatched):
    """calls: the recorded steps so far, by their shapes."""

    def __init__(self, parts: ModelParts) -> None:
        weights, config = parts.weights, parts.config
        if weights.scheme.is_integer:  # codes of 4 bits lie two in a byte as soon as each matrix is read
            weights.scheme = copy(weights.scheme)
            weights.scheme.matrix = "compact codes"
        super().__init__(parts)
        with torch.inference_mode():
            self._decoder = GraphDecoder(self.decoder, self.block_size)
            count = scratch_numbers(config, self.decoder.config)  # all graphs share it, because one runs at a time
            self._scratch = torch.empty(count, dtype=torch.float32, device=self.device)
        self.num_scratch_bytes = self._scratch.nbytes
        self.shapes = StaticShapes(config.max_sequences, config.max_step_tokens, self.decoder.num_positions)
        on_gpu = self.device.type == "cuda"
        self.capture: Capture | None = CudaGraphs() if on_gpu and not INTERPRETED else None
        self.calls: dict[StepShape, Call | None] = {}
        self._keeps_states = bool(parts.pool.spec.states)

    @property
    def build_id(self) -> str:
        return f"{super().build_id}, triton {triton.__version__}"

    def find(self, batch: MicroBatch, step: Step) -> Call | None:
        """Find the recorded step, which is recorded now if need be; None for spans of several tokens."""
        if batch[0].count > 1:
            return None
        shape = self.shapes.of(batch)
        if shape not in self.calls:
            self.calls[shape] = self._recorded(batch, shape, step)
        return self.calls[shape]

    def stage(self, batch: MicroBatch, shape: StepShape, step: Step) -> Inputs:
        """Add the slots of states, where layers keep some. The rows beyond the batch are then none of its sequences:
        computed twice, a state would take its token twice.
        """
        inputs = super().stage(batch, shape, step)
        if not self._keeps_states:
            return inputs
        slots = [[-1, -1] for _ in range(shape.num_sequences)]
        for row, span in zip(slots, batch, strict=False):
            ((_, filled),) = span.saves
            row[:] = -1 if span.state is None else span.state, filled
        inputs.positions_BC[len(batch) :] = -1
        return inputs._replace(slots_B2=to_device(slots, step.device))

    def _without_states(self, inputs: Inputs) -> Inputs:
        """Make all rows rows of no sequence, where layers keep states: recording a step computes it several times."""
        if inputs.slots_B2 is None:
            return inputs
        positions_BC, slots_B2 = (torch.full_like(each, -1) for each in (inputs.positions_BC, inputs.slots_B2))
        return inputs._replace(positions_BC=positions_BC, slots_B2=slots_B2)

    def _recorded(self, batch: MicroBatch, shape: StepShape, step: Step) -> Call | None:
        """Record a step by computing it once; None where a kernel of it needs more than a processor of this GPU has:
        the modules compute it then.
        """
        if self.capture is None:
            return self._run
        call = Captured(self._run, self.capture)
        began_s = time.perf_counter()
        try:
            call(self._without_states(self.stage(batch, shape, step)), self.cache)
        except OutOfResources as error:
            what = f"steps of {shape.num_sequences} sequences with up to {shape.num_keys} positions"
            log.warning("this GPU has no room for the kernels of %s (%s); the plain modules compute them", what, error)
            return None
        self.compile_s += time.perf_counter() - began_s
        return call

    def _run(self, inputs: Inputs, cache: Cache) -> Tensor:
        splits = triton.cdiv(len(inputs.offsets_L), SPLIT)
        rows = StepRows(inputs.tables_BM, inputs.positions_BC[:, 0], splits, self._scratch, inputs.slots_B2)
        with LAUNCHES:
            return self._decoder(inputs.token_ids_BC.flatten(), cache, rows)
