"""The forward as a function of tensors alone, of declared shapes: what is compiled, exported and captured.

    logits = form(token_ids_BC, positions_BC, tables_BM, offsets_L, rows_B, cache)

The cache is an input that is written in place. Slots are worked out inside, from block tables, so that a step hands
over no more than a few small tensors of ints.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tokenmill.cache.formats import LayerKV
from tokenmill.cache.pool import Pool
from tokenmill.cache.step import PaddedStep, Span, Step
from tokenmill.kernels.attend import Attend
from tokenmill.memory.transfer import to_device
from tokenmill.model.decoder import Decoder, run_layer
from tokenmill.program.compiled.shapes import Piece, Shape

__all__ = ["Call", "Form", "Inputs", "flat_cache", "stage"]


@dataclass(frozen=True)
class Inputs:
    """What a step hands to a form, int64: [B, C], [B, C], [B, M], [L], and [B] or None where all rows are wanted."""

    token_ids_BC: Tensor
    positions_BC: Tensor
    tables_BM: Tensor
    offsets_L: Tensor
    rows_B: Tensor | None

    def __str__(self) -> str:
        sequences, tokens = self.token_ids_BC.shape
        what = f"a step of {sequences} x {tokens} tokens, {len(self.offsets_L)} positions"
        return what + (", all logits" if self.rows_B is None and tokens > 1 else "")

    def copy(self) -> "Inputs":
        """Copies of all tensors."""
        rows_B = None if self.rows_B is None else self.rows_B.clone()
        return Inputs(
            self.token_ids_BC.clone(), self.positions_BC.clone(), self.tables_BM.clone(), self.offsets_L.clone(), rows_B
        )

    def padded(self, block_size: int) -> PaddedStep:
        """The step, with the slots that follow from the tables."""
        size, offsets_L, tables_BM = block_size, self.offsets_L, self.tables_BM
        keys_BL = tables_BM[:, offsets_L // size] * size + offsets_L % size
        slots_BC = torch.gather(tables_BM, 1, self.positions_BC // size) * size + self.positions_BC % size
        token_ids_T = self.token_ids_BC.flatten()
        num_rows = len(token_ids_T) if self.rows_B is None else len(self.rows_B)
        return PaddedStep(token_ids_T, self.positions_BC.flatten(), slots_BC.flatten(), keys_BL, self.rows_B, num_rows)

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """In the order of Form.forward."""
        return (self.token_ids_BC, self.positions_BC, self.tables_BM, self.offsets_L, self.rows_B)


Call = Callable[[Inputs, list[Tensor]], Tensor]
"""From inputs and the cache to logits."""


class Form(nn.Module):
    """A decoder over padded steps."""

    def __init__(self, decoder: Decoder, pool: Pool, attend: Attend) -> None:
        super().__init__()
        self.decoder = decoder
        self._layers, self._block_size, self._attend = pool.layers, pool.spec.block_size, attend
        self._run_layer = torch.compiler.nested_compile_region(run_layer)  # equal layers are compiled once

    def forward(
        self,
        token_ids_BC: Tensor,
        positions_BC: Tensor,
        tables_BM: Tensor,
        offsets_L: Tensor,
        rows_B: Tensor | None,
        cache: list[Tensor],
    ) -> Tensor:
        """Logits of the rows, [B, V]; of all, [B · C, V]."""
        inputs = Inputs(token_ids_BC, positions_BC, tables_BM, offsets_L, rows_B)
        step = inputs.padded(self._block_size)
        each = len(cache) // len(self._layers)
        layers = [layer.over(*cache[each * i : each * (i + 1)]) for i, layer in enumerate(self._layers)]
        logits_RV: Tensor = self.decoder(step, layers, self._attend, self._run_layer)
        return logits_RV


def flat_cache(layers: Sequence[LayerKV]) -> list[Tensor]:
    """Every tensor of the cache, layer by layer."""
    return [tensor for layer in layers for tensor in layer.tensors]


def stage(piece: Piece, shape: Shape, step: Step, offsets_P: Tensor, num_blocks: int) -> Inputs:
    """The inputs of a form of `shape` for a piece of a step.

    offsets_P: 0, 1, 2, … on the device. num_blocks: length of every block table.
    """
    token_ids: list[list[int]] = []
    positions: list[list[int]] = []
    tables: list[list[int]] = []
    for span in piece.spans:
        fill = shape.num_tokens - span.count
        ids = list(step.token_ids[span.first : span.first + span.count])
        token_ids.append(ids + ids[-1:] * fill)
        positions.append([*range(span.start, span.length), *[span.length - 1] * fill])
        tables.append(_table(span, num_blocks))
    missing = shape.num_sequences - len(piece.spans)
    for each in (token_ids, positions, tables):
        each.extend([each[-1]] * missing)
    last = [row * shape.num_tokens + span.count - 1 for row, span in enumerate(piece.spans)]
    rows_B = None if shape.all_rows or shape.num_tokens == 1 else last + last[-1:] * missing
    token_ids_BC, positions_BC, tables_BM = (to_device(rows, step.device) for rows in (token_ids, positions, tables))
    return Inputs(
        step.fed(token_ids_BC),
        positions_BC,
        tables_BM,
        offsets_P[: shape.num_keys],
        None if rows_B is None else to_device(rows_B, step.device),
    )


def _table(span: Span, num_blocks: int) -> list[int]:
    blocks = list(span.blocks[:num_blocks])
    return blocks + [0] * (num_blocks - len(blocks))
