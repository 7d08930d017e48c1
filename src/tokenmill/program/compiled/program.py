"""The PyTorch modules, compiled for a few declared shapes; what is not compiled runs as it stands.

A shape is compiled when a step first needs it; with `compile_in_background` the plain modules serve until it is ready.
On CUDA a step of static shapes is captured in a graph.
"""

import logging
import threading
import time

import torch
from torch import Tensor

from tokenmill.cache.pool import Pool
from tokenmill.cache.step import Step
from tokenmill.config import EngineConfig
from tokenmill.kernels.attend import Attend
from tokenmill.model.decoder import Decoder
from tokenmill.program.compiled.captured import Captured, cuda_graph
from tokenmill.program.compiled.compiling import Compiler
from tokenmill.program.compiled.form import Call, Form, Inputs
from tokenmill.program.compiled.pieces import InPieces
from tokenmill.program.compiled.shapes import Piece, Shape, Shapes
from tokenmill.weights.packed.model import PackedCheckpoint

__all__ = ["Compiled"]

log = logging.getLogger(__name__)


class Compiled(InPieces):
    """See Program."""

    description = "torch.compile of the PyTorch modules"

    def __init__(
        self,
        decoder: Decoder,
        pool: Pool,
        attend: Attend,
        packed: PackedCheckpoint | None = None,
        config: EngineConfig | None = None,
    ) -> None:
        super().__init__(decoder, pool, attend, packed, config)
        config = config or EngineConfig()
        self._phases, self._aside = config.compile_phases, config.compile_in_background
        mode = config.compile
        if mode == "auto":
            mode = "static" if self.device.type == "cuda" else "dynamic"
        if mode != "dynamic":
            self.shapes = Shapes(config.max_sequences, config.max_step_tokens, decoder.num_positions)
        self._form = Form(decoder, pool, self.padded)
        self._compiler = None if mode == "no" else Compiler(self._form, config.compile_backend, mode)
        self._captures = self.device.type == "cuda" and mode != "dynamic"
        self._ready: dict[Shape, Call] = {}
        self._begun: set[Shape] = set()

    def find(self, piece: Piece, step: Step) -> Call | None:
        """Compiled now if need be; None while that goes on in the background, and where it is not to be."""
        if self._phases not in ("both", "decode" if piece.decodes else "prefill"):
            return None
        shape = self.shapes.of(piece)
        form = self.shapes.form(shape)
        if form in self._ready or form in self._begun:
            return self._ready.get(form)
        inputs = self.stage(piece, self.shapes.example(shape), step)
        if not self._aside:
            self._ready[form] = self._compile(inputs, self.cache)
            return self._ready[form]
        self._begun.add(form)
        arguments = (form, inputs, torch.get_num_threads())
        # No daemon: a process that ends in the midst of compiling crashes. It waits; the command line does not.
        threading.Thread(target=self._compile_aside, args=arguments, name="compile").start()
        return None

    def _compile(self, inputs: Inputs, cache: list[Tensor]) -> Call:
        """It is run once with these inputs, which writes what their step will write again."""
        if self._compiler is None:
            return self._plain
        log.info("compiling %s", inputs)
        began_s = time.perf_counter()
        call = self._compiler.compile(inputs, cache)
        seconds = time.perf_counter() - began_s
        self.compile_s += seconds
        log.info("compiled in %.1f s", seconds)
        return Captured(call, cuda_graph) if self._captures else call

    def _compile_aside(self, form: Shape, inputs: Inputs, threads: int) -> None:
        torch.set_num_threads(threads)  # a new thread starts with the system's number
        try:
            with torch.inference_mode(False):  # a cache that nobody else writes to, made like the real one
                cache = [torch.zeros(each.shape, dtype=each.dtype, device=each.device) for each in self.cache]
            self._ready[form] = self._compile(inputs, cache)
        except Exception as error:  # noqa: BLE001  (nobody waits for this thread: whatever it is, it is said)
            log.warning("%s; the plain modules go on serving", error)

    def _plain(self, inputs: Inputs, cache: list[Tensor]) -> Tensor:
        logits_RV: Tensor = self._form(*inputs.tensors, cache)
        return logits_RV
