"""A step in pieces: each by the compiled form that it has, and what has none by the plain modules."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tokenmill.cache.pool import Pool
from tokenmill.cache.spec import CacheSpec
from tokenmill.cache.step import Span, Step
from tokenmill.config import EngineConfig
from tokenmill.kernels.attend import Attend, choose
from tokenmill.memory.arena import Arena
from tokenmill.model.config import ModelConfig
from tokenmill.model.decoder import Decoder
from tokenmill.program import Output, refuse_scheme
from tokenmill.program.compiled.form import Call, Inputs, flat_cache, stage
from tokenmill.program.compiled.shapes import Exact, Piece, Shape, Shapes, cut
from tokenmill.program.eager import Eager
from tokenmill.quant.schemes import Scheme
from tokenmill.weights.packed.model import PackedCheckpoint

__all__ = ["InPieces"]


class InPieces(Eager):
    """What programs of compiled forms have in common; see Program. Each has its own `find`."""

    only_asked = True
    shapes: Shapes | Exact

    @staticmethod
    def runs(scheme: Scheme) -> bool:
        """Those whose products a compiler can trace."""
        return scheme.is_traceable

    @staticmethod
    def prefers(scheme: Scheme) -> bool:
        """Of those, matrices of numbers."""
        return scheme.is_traceable and not scheme.is_integer

    @staticmethod
    def refuse(config: EngineConfig, model: ModelConfig, cache: CacheSpec, device: torch.device) -> str | None:
        """Runs what a compiler can trace."""
        del model, cache, device
        return refuse_scheme(InPieces.runs, config.scheme)

    def __init__(
        self,
        decoder: Decoder,
        pool: Pool,
        attend: Attend,
        packed: PackedCheckpoint | None = None,
        config: EngineConfig | None = None,
    ) -> None:
        super().__init__(decoder, pool, attend, packed)
        config = config or EngineConfig()
        self.decoder, self.device = decoder, pool.layers[0].tensors[0].device
        if self.device.type == "cpu":
            _into_huge_pages(decoder)
        shapes = decoder.description.attention_shapes
        _, self.padded = choose("auto", pool.spec, self.device, decoder.num_positions, shapes, padded=True)
        self.cache, self.block_size, self._most = flat_cache(pool.layers), pool.spec.block_size, config.max_sequences
        self._num_blocks = -(-decoder.num_positions // self.block_size)
        self._offsets_P = torch.arange(self._num_blocks * self.block_size, device=self.device)
        self.shapes = Exact(len(self._offsets_P))

    def find(self, piece: Piece, step: Step) -> Call | None:
        """What runs that piece of a step, or None."""
        raise NotImplementedError

    @torch.inference_mode()
    def run(self, step: Step) -> Output:
        """See Program."""
        parts: dict[int, Tensor] = {}
        plain: list[Span] = []
        for piece in cut(step.spans, self._most):
            call = self.find(piece, step)
            if call is None:
                plain += piece.spans
            else:
                inputs = self.stage(piece, self.shapes.of(piece), step)
                parts |= _wanted(piece, call(inputs, self.cache))
        if len(plain) == len(step.spans):
            return super().run(step)
        if plain:
            parts |= self._run_plain(step, plain)
        logits = [parts[span.first] for span in step.spans if span.num_logits]
        if len(logits) == 1:
            return Output(logits[0])
        return Output(torch.cat(logits) if logits else parts[step.spans[0].first])

    def stage(self, piece: Piece, shape: Shape, step: Step) -> Inputs:
        """The inputs of a form for this piece."""
        return stage(piece, shape, step, self._offsets_P, self._num_blocks)

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
        plain = Step(token_ids, positions, slots, packed, rows, len(rows), step.device, step.fed_R)
        logits_RV = super().run(plain).logits_RV
        parts = torch.split(logits_RV, [span.num_logits for span in spans])
        return {span.first: part for span, part in zip(spans, parts, strict=True)}


def _into_huge_pages(module: nn.Module) -> None:
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
