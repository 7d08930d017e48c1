"""The port Keeps: what one kind of layer keeps of texts; and the record Kept of one text.

A kind is rows in blocks (row_blocks.py) or states in slots (state_slots.py). A slot of a state counts as a block here:
both have a number, references and perhaps a name by which a later text finds them (blocks.py). The scheduler asks
memory.py alone, which loops over the kinds of a model.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from tokenmill.schedule.blocks import BlockAllocator

RowSource = Callable[[int, int], Mapping[str, Any]]
"""Reads entries [first, last) of what was computed earlier and lies on disk: tensors by name. SnapshotError if the file
cannot be used."""


@dataclass(slots=True)
class Table:
    """The blocks of one kind that a text holds, in the order of its tokens.

    first_row: for rows in blocks, the first row that is there; earlier ones lie before every window. ends: for states,
    the number of tokens after which each of them stands.
    """

    blocks: list[int] = field(default_factory=list)
    first_row: int = 0
    ends: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Kept:
    """The entries that the layers keep of a text, in the cache or still in a file.

    tables: one for each kind, rows first. block_hashes: chained hashes of its leading blocks of tokens; the first
    num_published of them were offered for sharing. adapter: computes the entries; None for the model alone. salt:
    starts that chain, so that only texts with the same salt (a tenant, an adapter) share blocks. saved: for each kind
    the reader of a file, which has rows first_saved to num_saved and the states after num_saved tokens; loaded when the
    text next gets blocks. is_own: False if the file comes from another program, dtype or scheme; then the text neither
    takes nor offers blocks. num_shared: its first tokens whose rows were found when it began; without a state there it
    goes on earlier. prompt_end: the end of a block near the end of its prompt, where a later text may begin to differ.
    """

    num_computed: int = 0
    tables: list[Table] = field(default_factory=lambda: [Table()])
    block_hashes: list[bytes] = field(default_factory=list)
    num_published: int = 0
    salt: bytes = b""
    adapter: Any = None
    saved: Sequence[RowSource] = ()
    first_saved: int = 0
    num_saved: int = 0
    is_own: bool = True
    num_shared: int = 0
    prompt_end: int = 0

    @property
    def blocks(self) -> list[int]:
        """List the blocks of the text's rows, from the block of first_row on."""
        return self.tables[0].blocks

    @property
    def first_row(self) -> int:
        return self.tables[0].first_row

    @property
    def state(self) -> int | None:
        """Find the slot of the states after num_computed tokens, between two steps; None before the first."""
        return self.tables[1].blocks[-1] if len(self.tables) > 1 and self.tables[1].blocks else None

    def states(self, start: int) -> tuple[int | None, tuple[tuple[int, int], ...]]:
        """Find the slot of the states after `start` tokens, with which a step begins, None before the first; and the
        slots that it fills, each with the number of its tokens after which the states are taken.
        """
        table = self.tables[1]
        pairs = list(zip(table.ends, table.blocks, strict=True))
        filled = tuple((end - start, slot) for end, slot in pairs if end > start)
        earlier = [slot for end, slot in pairs if end == start]
        return (earlier[-1] if earlier else table.blocks[-1]) if start else None, filled

    def row_blocks(self, block_size: int) -> list[int]:
        """List the blocks of the text's rows from position 0 on. In the place of each block that was given back stands
        the first block that is there, because rows to which no query may attend still have to be numbers; with a window
        of one token there may be none.
        """
        begin, rows = self.tables[0].first_row // block_size, self.tables[0].blocks
        return (rows[:1] or [0]) * begin + rows if begin else rows

    def copy(self) -> "Kept":
        """Copy the record for another text. The caller counts the references of the blocks."""
        tables = [replace(table, blocks=list(table.blocks), ends=list(table.ends)) for table in self.tables]
        return replace(self, tables=tables, block_hashes=list(self.block_hashes))


class Undo(NamedTuple):
    """The tokens of a step that may be taken away again. num_drafts: the last so many, of which any number may stay.
    may_all: all of them, though that is not likely.
    """

    num_drafts: int = 0
    may_all: bool = False


class Keeps(Protocol):
    """One kind of layer. `at`: its place among the kinds. Numbers of tokens are counted from the text's begin."""

    at: int

    @property
    def allocator(self) -> BlockAllocator:
        """Return the allocator of the kind's blocks."""

    needs_all: bool
    """A text can go on nowhere after a block of tokens that is missing."""

    def reads(self, num_tokens: int) -> range:
        """Find the blocks that a text reads when it goes on after so many tokens, counted in blocks of tokens."""

    def load_range(self, first: int, num_tokens: int) -> tuple[int, int]:
        """Find the entries of a saved file that belong to tokens `first` to num_tokens."""

    def begin(self, kept: Kept, first_row: int, num_tokens: int) -> None:
        """Note that the table holds the entries of so many tokens; of rows, the rows from first_row on."""

    def max_blocks(self, num_tokens: int, num_fed: int = 1) -> int:
        """Count the most blocks that a text of so many tokens holds at once, fed num_fed in a step."""

    def num_missing(self, table: Table, first: int, num_tokens: int, num_fed: int) -> int:
        """Count the blocks to be allocated for a text whose table begins at block `first`, until its end."""

    def max_fed(self, kept: Kept, count: int, budget: int) -> int:
        """Count the tokens, of `count` that are pending and a budget that is not less than 1, that a step can feed."""

    def max_drafts(self) -> int | None:
        """Count the drafts of a text of which any number may be accepted, so that nothing is computed again; None if
        they are not limited.
        """

    def reserve(
        self, kept: Kept, count: int, undo: Undo, take: Callable[["Keeps"], int | None]
    ) -> list[tuple[int, int]] | None:
        """Give a text blocks of its own for its next `count` tokens; return the copies before the step, as (source,
        target). None if `take` gave no block.
        """

    def computed(self, kept: Kept, num_tokens: int) -> None:
        """Note that a step has brought the text to so many tokens."""

    def can_keep(self, kept: Kept, num_tokens: int) -> int:
        """Find the number of tokens, at most num_tokens, to which the text can go back."""

    def cut(self, kept: Kept, num_tokens: int) -> None:
        """Forget the entries of tokens after num_tokens, a number that can_keep gave."""

    def give_back(self, kept: Kept) -> None:
        """Release the blocks that no later step reads. No step in flight may read them either."""

    def publish(self, kept: Kept, index: int, has_ended: bool) -> int | None:
        """Offer what is there at the end of block `index` of the tokens under its name; return the block that is to be
        written to disk, if there is one. has_ended: the text is complete.
        """

    def num_saved(self, kept: Kept, limit: int) -> int:
        """Count the tokens, at most `limit`, from which the text can go on with the entries in its file."""
