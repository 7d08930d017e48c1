"""Program graphs: steps of one token a sequence by Triton kernels, recorded in CUDA graphs; the rest by the modules.

A graph is recorded for each declared number of sequences and of positions. The bits of a row's logits depend neither on
the other sequences of its step nor on the size of blocks. Prompts are computed by the modules, by torch's products, or
with `exact` by the same kernels, a row for each token.
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

from tokenmill.cache.step import Span, Step
from tokenmill.errors import ConfigError
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


MOST_ROWS = 256
"""Tokens of a prompt that the kernels compute together: with 8 experts of each token 2,048 of the 65,535 programs that
a launch may have side by side."""


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
        self._is_exact = config.exact

    @property
    def build_id(self) -> str:
        return f"{super().build_id}, triton {triton.__version__}{', exact' if self._is_exact else ''}"

    def find(self, batch: MicroBatch, step: Step) -> Call | None:
        """Find the recorded step, which is recorded now if need be; None for spans of several tokens that the modules
        compute.
        """
        if batch[0].count > 1:
            return self._run_in_turn if self._is_exact else None
        shape = self.shapes.of(batch)
        if shape not in self.calls:
            self.calls[shape] = self._recorded(batch, shape, step)
        return self.calls[shape]

    def stage(self, batch: MicroBatch, shape: StepShape, step: Step) -> Inputs:
        """Where layers keep states, the rows beyond the batch are none of its sequences: computed twice, a state would
        take its token twice. Of a span of several tokens each becomes a row.
        """
        inputs = super().stage(batch, shape, step)
        if shape.num_tokens > 1:
            return self._in_rows(inputs, batch[0], step.device)
        for each in (inputs.positions_BC, inputs.states_B, inputs.saves_S2):
            if each is not None and self.keeps_states:
                each[len(batch) :] = -1
        return inputs

    def _in_rows(self, inputs: Inputs, span: Span, device: torch.device) -> Inputs:
        ids_BC, positions_BC = (each[:, : span.count].T for each in (inputs.token_ids_BC, inputs.positions_BC))
        tables_BM = inputs.tables_BM[:1].expand(span.count, -1)
        rows_B = None if inputs.rows_B is None else inputs.rows_B[: span.num_logits]
        slots: list[Tensor] = []
        if self.keeps_states:
            read, filled = zip(*state_slots(span), strict=True)
            slots = [to_device(read, device), to_device([(1, slot) for slot in filled], device)]
        return Inputs(ids_BC, positions_BC, tables_BM, inputs.offsets_L, rows_B, *slots)

    def _recorded(self, batch: MicroBatch, shape: StepShape, step: Step) -> Call | None:
        """Record a step by computing it once; None where a kernel of it needs more than a processor of this GPU has:
        the modules compute it then.
        """
        if self.capture is None:
            return self._run
        call = Captured(self._run, self.capture)
        began_s = time.perf_counter()
        try:
            call(self.stage(batch, shape, step).without_states(), self.cache)
        except OutOfResources as error:
            if self._is_exact:
                raise ConfigError("exact", True, f"off: this GPU has no room for the kernels ({error})") from error
            what = f"steps of {shape.num_sequences} sequences with up to {shape.num_keys} positions"
            log.warning("this GPU has no room for the kernels of %s (%s); the plain modules compute them", what, error)
            return None
        self.compile_s += time.perf_counter() - began_s
        return call

    def _run(self, inputs: Inputs, cache: Cache) -> Tensor:
        with LAUNCHES:
            return self._decoder(inputs.token_ids_BC.flatten(), cache, self._rows(inputs))

    def _run_in_turn(self, inputs: Inputs, cache: Cache) -> Tensor:
        """Compute several tokens of one sequence, each a row: the logits of all, of the last alone, or none."""
        rows, parts = self._rows(inputs)._replace(in_turn=True), list[Tensor]()
        count = len(rows.positions_B)
        for first in range(0, count, MOST_ROWS):
            some = slice(first, first + MOST_ROWS)
            is_last = first + MOST_ROWS >= count
            num_logits = None if inputs.rows_B is None else len(inputs.rows_B) if is_last else 0
            with LAUNCHES:
                parts.append(self._decoder(inputs.token_ids_BC[some].flatten(), cache, rows.cut(some), num_logits))
        return torch.cat(parts)

    def _rows(self, inputs: Inputs) -> StepRows:
        splits, slots_B2 = triton.cdiv(len(inputs.offsets_L), SPLIT), None
        if inputs.states_B is not None and inputs.saves_S2 is not None:
            slots_B2 = torch.stack((inputs.states_B, inputs.saves_S2[:, 1]), dim=1)
        return StepRows(inputs.tables_BM, inputs.positions_BC[:, 0], splits, self._scratch, slots_B2)


def state_slots(span: Span) -> list[tuple[int, int]]:
    """List for each token of a span the slot of the states that it reads, -1 at a text's begin, and which it fills."""
    filled = [next(slot for count, slot in span.saves if count > number) for number in range(span.count)]
    return list(zip([-1 if span.state is None else span.state, *filled], filled, strict=False))
