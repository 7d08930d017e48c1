"""The PyTorch modules, compiled for a few declared shapes; what is not compiled runs as it stands.

A shape is compiled when a step first needs it; with `compile_in_background` the plain modules serve until it is ready.
On CUDA a step of static shapes is captured in a graph.
"""

import logging
import threading
import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tokenmill.arena import Arena
from tokenmill.cache.pool import Pool
from tokenmill.cache.step import Span, Step
from tokenmill.config import EngineConfig
from tokenmill.model.decoder import Decoder
from tokenmill.program.captured import Captured, cuda_graph
from tokenmill.program.compiling import Call, Compiler
from tokenmill.program.eager import Eager
from tokenmill.program.form import Form, Inputs, flat_cache, stage
from tokenmill.program.shapes import Exact, Piece, Shape, Shapes, cut
from tokenmill.weights.image import ImageCheckpoint

__all__ = ["Compiled"]

log = logging.getLogger(__name__)


class Compiled(Eager):
    """See Program."""

    description = "torch.compile of the PyTorch modules"
    schemes = ("dense",)
    slow_schemes = ("q8", "q4", "file")
    only_asked = True

    def __init__(
        self, decoder: Decoder, pool: Pool, image: ImageCheckpoint | None = None, config: EngineConfig | None = None
    ) -> None:
        super().__init__(decoder, pool, image)
        if pool.layers[0].tensors[0].device.type == "cpu":
            into_huge_pages(decoder)
        config = config or EngineConfig()
        self._phases, self._aside = config.compile_phases, config.compile_in_background
        self._most, self._device = config.max_sequences, pool.layers[0].tensors[0].device
        size, length = pool.spec.block_size, decoder.num_positions
        self._num_blocks = -(-length // size)
        self._offsets_P = torch.arange(self._num_blocks * size, device=self._device)
        self._form, self._cache = Form(decoder, pool), flat_cache(pool.layers)
        mode = config.compile
        if mode == "auto":
            mode = "static" if self._device.type == "cuda" else "dynamic"
        self._shapes: Shapes | Exact = Shapes(config.max_sequences, config.max_step_tokens, length)
        if mode == "dynamic":
            self._shapes = Exact(len(self._offsets_P))
        self._compiler = None
        if mode != "no":
            self._compiler = Compiler(self._form, config.compile_backend, mode)
        self._captures = self._device.type == "cuda" and mode != "dynamic"
        self._ready: dict[Shape, Call] = {}
        self._begun: set[Shape] = set()

    # ---- a step

    def run(self, step: Step) -> Tensor:
        """See Program."""
        parts: dict[int, Tensor] = {}
        plain: list[Span] = []
        for piece in cut(step.spans, self._most):
            call = self._call(piece, step) if self._serves(piece) else None
            if call is None:
                plain += piece.spans
            else:
                inputs = self._stage(piece, self._shapes.of(piece), step)
                parts |= _wanted(piece, call(inputs, self._cache))
        if len(plain) == len(step.spans):
            return super().run(step)
        if plain:
            parts |= self._run_plain(step, plain)
        logits = [parts[span.first] for span in step.spans if span.num_logits]
        if len(logits) == 1:
            return logits[0]
        return torch.cat(logits) if logits else parts[step.spans[0].first]

    def _serves(self, piece: Piece) -> bool:
        return self._phases in ("both", "decode" if piece.decodes else "prefill")

    def _run_plain(self, step: Step, spans: Sequence[Span]) -> dict[int, Tensor]:
        """Some of a step's spans by the plain modules: the wanted rows of each, by its first token."""
        token_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        rows: list[int] = []
        packed: list[Span] = []
        for span in spans:
            own = slice(span.first, span.first + span.count)
            packed.append(span.at(len(token_ids)))
            token_ids += step.token_ids[own]
            positions += step.positions[own]
            slots += step.slots[own]
            rows += range(len(token_ids) - span.num_logits, len(token_ids))
        logits_RV = super().run(Step(token_ids, positions, slots, packed, rows, len(rows), step.device))
        parts = torch.split(logits_RV, [span.num_logits for span in spans])
        return {span.first: part for span, part in zip(spans, parts, strict=True)}

    # ---- what runs it

    def _stage(self, piece: Piece, shape: Shape, step: Step) -> Inputs:
        return stage(piece, shape, step, self._offsets_P, self._num_blocks)

    def _call(self, piece: Piece, step: Step) -> Call | None:
        """What runs that piece, compiled now if need be; None while that goes on in the background."""
        shape = self._shapes.of(piece)
        form = self._shapes.form(shape)
        if form in self._ready or form in self._begun:
            return self._ready.get(form)
        inputs = self._stage(piece, self._shapes.example(shape), step)
        if not self._aside:
            self._ready[form] = self._compile(inputs, self._cache)
            return self._ready[form]
        self._begun.add(form)
        arguments = (form, inputs, torch.get_num_threads())
        threading.Thread(target=self._compile_aside, args=arguments, name="compile", daemon=True).start()
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
        with torch.inference_mode(False):  # a cache that nobody else writes to, made like the real one
            cache = [torch.zeros_like(tensor) for tensor in self._cache]
        try:
            self._ready[form] = self._compile(inputs, cache)
        except Exception as error:  # noqa: BLE001  (nobody waits for this thread: whatever it is, it is said)
            log.warning("%s; the plain modules go on serving", error)

    def _plain(self, inputs: Inputs, cache: list[Tensor]) -> Tensor:
        logits_RV: Tensor = self._form(*inputs.tensors, cache)
        return logits_RV


def into_huge_pages(module: nn.Module) -> None:
    """Move all weights, one after the other, to where reading them is one stream."""
    tensors = [*module.parameters(), *module.buffers()]
    arena = Arena(sum(tensor.nbytes for tensor in tensors), len(tensors))
    for tensor in tensors:
        tensor.data = arena.zeros(tuple(tensor.shape), tensor.dtype).copy_(tensor.data)


def _wanted(piece: Piece, logits_RV: Tensor) -> dict[int, Tensor]:
    """The wanted rows of each span, by its first token."""
    if piece.all_rows:
        (span,) = piece.spans
        return {span.first: logits_RV[span.count - span.num_logits : span.count]}
    return {span.first: logits_RV[row : row + span.num_logits] for row, span in enumerate(piece.spans)}
