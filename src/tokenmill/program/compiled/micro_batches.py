"""A step split into micro-batches of a few shapes: each is run by the compiled function of its shape, or by the plain
modules where there is no such function.

Sequences that are fed one token each run together; every other span runs alone. Static shapes have sizes that are
rounded up to declared ones, so that no length of a prompt asks for another compilation. A compiled function takes no
more than a few small tensors of ints, and the KV cache, which it writes in place. Slots are computed inside it, from
block tables.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tokenmill.cache.padded_step import PaddedStep
from tokenmill.cache.step import Span, Step
from tokenmill.kernels.attend.kernel import choose
from tokenmill.memory.arena import Arena
from tokenmill.memory.transfer import to_device
from tokenmill.model.decoder import Decoder
from tokenmill.program.compiled.tables import BlockTables
from tokenmill.program.eager import Eager
from tokenmill.program.forward import ModelParts, Output


@dataclass(frozen=True)
class StepShape:
    """num_sequences of num_tokens each, which look at num_keys positions; logits of all tokens, or one a sequence."""

    num_sequences: int
    num_tokens: int
    num_keys: int
    all_rows: bool = False


MicroBatch = Sequence[Span]
"""Spans of a step that run together, in the order of their rows: one token of each, or one span alone."""


def split(spans: Sequence[Span], max_sequences: int) -> list[MicroBatch]:
    single = [span for span in spans if span.count == 1]
    batches: list[MicroBatch] = [single[at : at + max_sequences] for at in range(0, len(single), max_sequences)]
    return batches + [[span] for span in spans if span.count > 1]


class StaticShapes:
    """Declared sizes: powers of 2 of sequences, of 4 of tokens and of positions, up to what the engine allows."""

    def __init__(self, max_sequences: int, max_step_tokens: int, max_length: int) -> None:
        self.sequences = _powers(1, 2, max_sequences)
        self.tokens = [1, *_powers(8, 4, min(max_step_tokens, max_length))]
        self.keys = _powers(256, 4, max_length)

    def of(self, batch: MicroBatch) -> StepShape:
        """Find the smallest declared shape in which the micro-batch fits."""
        return StepShape(
            self.sequences[bisect_left(self.sequences, len(batch))],
            self.tokens[bisect_left(self.tokens, batch[0].count)],
            self.keys[bisect_left(self.keys, max(span.length for span in batch))],
            batch[0].num_logits > 1,
        )

    def compilation(self, shape: StepShape) -> tuple[StepShape, StepShape]:
        """Return the key of a shape's compiled function, and the shape to compile it with: both the shape itself."""
        return shape, shape


class DynamicShapes:
    """Sizes as they come, for code that takes any: one function for one sequence, one for several, one for a chunk.

    Positions are rounded up to whole vectors.
    """

    VECTOR, LONG = 32, 320

    def __init__(self, max_positions: int) -> None:
        self._max_positions = max_positions

    def of(self, batch: MicroBatch) -> StepShape:
        longest = max(span.length for span in batch)
        keys = min(longest + -longest % self.VECTOR, self._max_positions)
        return StepShape(len(batch), batch[0].count, keys, batch[0].num_logits > 1)

    def compilation(self, shape: StepShape) -> tuple[StepShape, StepShape]:
        """Return the key and the shape to compile with. A size of 1 is always a case of its own.

        The shape to compile with is long enough to be worth dividing among threads, and no two of its sizes are alike,
        because the compiler would take them for one.
        """
        key = StepShape(min(shape.num_sequences, 2), min(shape.num_tokens, 2), 0, shape.all_rows)
        num_keys = max(shape.num_keys, min(self.LONG, self._max_positions))
        num_sequences, num_tokens = (size + (size == num_keys) for size in (shape.num_sequences, shape.num_tokens))
        return key, StepShape(num_sequences, num_tokens, num_keys, shape.all_rows)


def _powers(first: int, factor: int, last: int) -> list[int]:
    sizes = [min(first, last)]
    while sizes[-1] < last:
        sizes.append(min(sizes[-1] * factor, last))
    return sizes


class Inputs(NamedTuple):
    """A micro-batch as int64 tensors. offsets_L: 0, 1, … up to its longest. rows_B: None where all rows are wanted.
    states_B and saves_S2, where layers keep states: see PaddedStep.
    """

    token_ids_BC: Tensor
    positions_BC: Tensor
    tables_BM: Tensor
    offsets_L: Tensor
    rows_B: Tensor | None
    states_B: Tensor | None = None
    saves_S2: Tensor | None = None

    def __str__(self) -> str:
        sequences, tokens = self.token_ids_BC.shape
        what = f"a step of {sequences} x {tokens} tokens, {len(self.offsets_L)} positions"
        return what + (", all logits" if self.rows_B is None and tokens > 1 else "")

    def padded(self, size: int) -> PaddedStep:
        """Make the step, with the slots that follow from the tables of blocks of that size."""
        keys_BL = self.tables_BM[:, self.offsets_L // size] * size + self.offsets_L % size
        slots_BC = torch.gather(self.tables_BM, 1, self.positions_BC // size) * size + self.positions_BC % size
        token_ids_T = self.token_ids_BC.flatten()
        num_rows = len(token_ids_T) if self.rows_B is None else len(self.rows_B)
        places = self.positions_BC.flatten(), slots_BC.flatten(), keys_BL
        return PaddedStep(token_ids_T, *places, self.rows_B, num_rows, self.states_B, self.saves_S2)

    def without_states(self) -> "Inputs":
        """Leave all states as they are: what is run only to be compiled or recorded may run several times."""
        if self.saves_S2 is None:
            return self
        saves_S2 = self.saves_S2.clone()
        saves_S2[:, 1] = -1
        return self._replace(saves_S2=saves_S2)


Cache = list[tuple[Tensor, ...]]
"""The tensors of each layer of the KV cache."""

Call = Callable[[Inputs, Cache], Tensor]
"""The logits of the wanted rows, [B, V], or of all, [B · C, V]."""


class MicroBatched(Eager):
    """The common part of the programs of compiled functions, which have a `find` each."""

    shapes: StaticShapes | DynamicShapes
    adapted: Decoder | None = None  # with the hooks of adapters, once there is one: it computes what is not compiled
    reads_slots = False  # but for spans that the modules compute

    def __init__(self, parts: ModelParts) -> None:
        super().__init__(parts)
        decoder, pool = self.decoder, parts.pool
        self._slots_of = pool.slots_of
        self.cache = [layer.tensors for layer in pool.layers]
        self.keeps_states = bool(pool.spec.states)
        self.device, self.block_size = decoder.embedding.weight.device, pool.spec.block_size
        self._max_sequences = parts.config.max_sequences
        if self.device.type == "cpu":
            _into_huge_pages(decoder)
        shapes = decoder.description.attention_shapes
        _, self.padded = choose("auto", pool.spec, self.device, decoder.num_positions, shapes, padded=True)
        num_blocks = -(-decoder.num_positions // self.block_size)
        self._tables = BlockTables(self._max_sequences + 1, num_blocks)  # an example to compile has one row more
        self._offsets_P = torch.arange(num_blocks * self.block_size, device=self.device)
        self.shapes = DynamicShapes(len(self._offsets_P))

    def find(self, batch: MicroBatch, step: Step) -> Call | None:
        """Find the function that runs this micro-batch of a step, or None."""
        raise NotImplementedError

    @torch.inference_mode()
    def run(self, step: Step) -> Output:
        parts: dict[int, Tensor] = {}
        plain = [span for span in step.spans if span.adapter is not None]
        for batch in split([span for span in step.spans if span.adapter is None], self._max_sequences):
            call = self.find(batch, step)
            if call is None:
                plain += batch
            else:
                parts |= _wanted(batch, call(self.stage(batch, self.shapes.of(batch), step), self.cache))
        if len(plain) == len(step.spans):
            step.spans = [self._with_slots(span) for span in step.spans]
            return self._run_modules(step)
        if plain:
            parts |= self._run_plain(step, plain)
        logits = [parts[span.first] for span in step.spans]
        return Output(logits[0] if len(logits) == 1 else torch.cat(logits))

    def stage(self, batch: MicroBatch, shape: StepShape, step: Step) -> Inputs:
        """Pad a micro-batch to `shape`, by repeating the last token of a sequence and the last sequence."""
        token_ids, positions = lists = list[list[int]](), list[list[int]]()
        for span in batch:
            fill = shape.num_tokens - span.count
            ids = list(step.token_ids[span.first : span.first + span.count])
            token_ids.append(ids + ids[-1:] * fill)
            positions.append([*range(span.start, span.length), *[span.length - 1] * fill])
        missing = shape.num_sequences - len(batch)
        for each in lists:
            each.extend([each[-1]] * missing)
        token_ids_BC, positions_BC = (to_device(each, step.device) for each in lists)
        tables_BM = self._tables.staged([span.blocks for span in batch], shape.num_sequences, step.device)
        rows_B = None
        if not shape.all_rows and shape.num_tokens > 1:
            last = [row * shape.num_tokens + span.count - 1 for row, span in enumerate(batch)]
            rows_B = to_device(last + last[-1:] * missing, step.device)
        offsets_L = self._offsets_P[: shape.num_keys]
        inputs = Inputs(step.fed(token_ids_BC), positions_BC, tables_BM, offsets_L, rows_B)
        return self._with_states(inputs, batch, step.device) if self.keeps_states else inputs

    def _with_states(self, inputs: Inputs, batch: MicroBatch, device: torch.device) -> Inputs:
        """Add the slots of states. A span has as many saves as it has of nothing else, and never one: a compiler takes
        two sizes that are alike for one, and 1 for a case of its own.
        """
        states = [-1 if span.state is None else span.state for span in batch]
        saves = [save for span in batch for save in span.saves]
        num_saves, num_tokens = inputs.token_ids_BC.shape
        states += states[-1:] * (num_saves - len(batch))
        if num_tokens > 1:
            num_saves = max(len(saves), 2)
            while num_saves in (num_tokens, len(inputs.offsets_L)):
                num_saves += 1
        saves += saves[-1:] * (num_saves - len(saves))
        return inputs._replace(states_B=to_device(states, device), saves_S2=to_device(saves, device))

    def _run_modules(self, step: Step) -> Output:
        if self.adapted is None:
            return super().run(step)
        return Output(self.adapted(step, self._layers, self._attend))

    def _with_slots(self, span: Span) -> Span:
        """Add the slots of all positions to a span of several blocks, as the modules read them."""
        if span.base is not None:
            return span
        blocks = span.blocks[: -(-span.length // self.block_size)]
        return span._replace(slots_L=self._slots_of(blocks, span.length))

    def _run_plain(self, step: Step, spans: Sequence[Span]) -> dict[int, Tensor]:
        """Run some of a step's spans by the plain modules; return the wanted rows of each, by its first token."""
        tokens, rows, packed = list[int](), list[int](), list[Span]()
        for span in spans:
            packed.append(self._with_slots(span)._replace(first=len(tokens)))
            tokens += range(span.first, span.first + span.count)
            rows += range(len(tokens) - span.num_logits, len(tokens))
        fields = (step.token_ids, step.positions, step.slots)
        token_ids, positions, slots = ([field[token] for token in tokens] for field in fields)
        plain = Step(token_ids, positions, slots, packed, rows, len(rows), step.device, step.fed_R)
        parts = torch.split(self._run_modules(plain).logits_RV, [span.num_logits for span in spans])
        return {span.first: part for span, part in zip(spans, parts, strict=True)}


def _into_huge_pages(module: nn.Module) -> None:
    """Move all weights into one arena, in their order, so that reading them is one stream of memory."""
    tensors = [*module.parameters(), *module.buffers()]
    arena = Arena(sum(tensor.nbytes for tensor in tensors), len(tensors))
    for tensor in tensors:
        tensor.data = arena.zeros(tuple(tensor.shape), tensor.dtype).copy_(tensor.data)


def _wanted(batch: MicroBatch, logits_RV: Tensor) -> dict[int, Tensor]:
    """Choose the wanted rows of each span, by its first token."""
    if batch[0].num_logits > 1:
        (span,) = batch
        return {span.first: logits_RV[span.count - span.num_logits : span.count]}
    return {span.first: logits_RV[row : row + span.num_logits] for row, span in enumerate(batch)}
