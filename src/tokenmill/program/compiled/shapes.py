"""The few shapes that a compiled step comes in, and how a step is cut into them. Pure ints.

Sequences that are fed one token each go together; every other span goes alone. Sizes are rounded up to those declared
here, so that no length of a prompt asks for another compilation.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tokenmill.cache.step import Span

__all__ = ["Exact", "Piece", "Shape", "Shapes", "cut"]


@dataclass(frozen=True)
class Shape:
    """num_sequences of num_tokens each, which look at num_keys positions; logits of all tokens, or one a sequence."""

    num_sequences: int
    num_tokens: int
    num_keys: int
    all_rows: bool = False


@dataclass(frozen=True)
class Piece:
    """Spans that run together, in the order of their rows."""

    spans: Sequence[Span]
    all_rows: bool

    @property
    def decodes(self) -> bool:
        """Whether it is one token of each."""
        return self.spans[0].count == 1


def cut(spans: Sequence[Span], most: int) -> list[Piece]:
    """The pieces of a step; at most `most` sequences in one."""
    single = [span for span in spans if span.count == 1]
    pieces = [Piece(single[first : first + most], False) for first in range(0, len(single), most)]
    return pieces + [Piece([span], span.num_logits > 1) for span in spans if span.count > 1]


class Shapes:
    """Declared sizes: powers of 2 of sequences, of 4 of tokens and of positions, up to what the engine allows."""

    def __init__(self, max_sequences: int, max_step_tokens: int, max_length: int) -> None:
        self.sequences = _powers(1, 2, max_sequences)
        self.tokens = [1, *_powers(8, 4, min(max_step_tokens, max_length))]
        self.keys = _powers(256, 4, max_length)

    def of(self, piece: Piece) -> Shape:
        """The smallest declared shape that it fits in."""
        return Shape(
            _at_least(self.sequences, len(piece.spans)),
            _at_least(self.tokens, piece.spans[0].count),
            _at_least(self.keys, max(span.length for span in piece.spans)),
            piece.all_rows,
        )

    def form(self, shape: Shape) -> Shape:
        """What is compiled once: every shape is its own."""
        return shape

    def example(self, shape: Shape) -> Shape:
        """What its form is compiled with: itself."""
        return shape


class Exact:
    """Sizes as they come, for code that takes any: one form for one sequence, one for several, one for a chunk.

    Positions are rounded up to whole vectors.
    """

    VECTOR, LONG = 32, 320

    def __init__(self, max_positions: int) -> None:
        self._most = max_positions

    def of(self, piece: Piece) -> Shape:
        """See Shapes."""
        longest = max(span.length for span in piece.spans)
        keys = min(longest + -longest % self.VECTOR, self._most)
        return Shape(len(piece.spans), piece.spans[0].count, keys, piece.all_rows)

    def form(self, shape: Shape) -> Shape:
        """See Shapes. 1 is always a case of its own."""
        return Shape(min(shape.num_sequences, 2), min(shape.num_tokens, 2), 0, shape.all_rows)

    def example(self, shape: Shape) -> Shape:
        """See Shapes. Long enough to be worth dividing among threads, and no two sizes alike, or they count as one."""
        num_keys = max(shape.num_keys, min(self.LONG, self._most))
        num_sequences, num_tokens = (size + (size == num_keys) for size in (shape.num_sequences, shape.num_tokens))
        return Shape(num_sequences, num_tokens, num_keys, shape.all_rows)


def _powers(first: int, factor: int, last: int) -> list[int]:
    sizes = []
    while first < last:
        sizes.append(first)
        first *= factor
    return [*sizes, last]


def _at_least(sizes: list[int], wanted: int) -> int:
    return next(size for size in sizes if size >= wanted)
