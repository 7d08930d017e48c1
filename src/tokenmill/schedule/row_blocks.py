"""Rows in blocks: a layer keeps a row of each token, of K and V or whatever its format stores.

A query at position p of a layer with a window w reads the rows p - w + 1 to p. A block that lies wholly before the
largest window of the layers is never read again, and is given back. One block more is kept, so that a text can go back
by a few tokens (drafts that were not accepted, a stop text, the last token that is fed again) without computing
everything anew.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tokenmill.schedule.blocks import BlockAllocator
from tokenmill.schedule.keeps import Keeps, Kept, Table, Undo


@dataclass(frozen=True, slots=True)
class Window:
    """size: the most past tokens that a query of any layer sees, itself included; None if some layer sees all."""

    size: int | None
    block_size: int

    def first_row(self, position: int) -> int:
        """Find the first row that queries at `position` and later read."""
        return 0 if self.size is None else max(position - self.size + 1, 0)

    def first_block(self, position: int) -> int:
        """Find the block of a sequence that holds this row."""
        return self.first_row(position) // self.block_size

    def first_kept(self, position: int) -> int:
        """Find the first block that is kept when the token at `position` is fed next."""
        return max(self.first_block(position) - 1, 0)

    def max_blocks(self, num_tokens: int, num_fed: int = 1, num_sequences: int = 1) -> int:
        """Count the most blocks that sequences of num_tokens hold at once, where a step feeds num_fed of all their
        tokens.

        A sequence that is fed c tokens holds their rows, size - 1 rows before them, and a block before these. n rows in
        succession lie in at most (n + 2 * block_size - 2) // block_size blocks.
        """
        whole = num_sequences * -(-num_tokens // self.block_size)
        if self.size is None:
            return whole
        return min(whole, (num_sequences * (self.size + 3 * self.block_size - 3) + num_fed) // self.block_size)


class RowBlocks:
    """The rows of all layers that keep rows. window: of all these layers together."""

    at = 0

    def __init__(self, allocator: BlockAllocator, window: Window | None = None) -> None:
        self.allocator, self.window = allocator, window or Window(None, allocator.block_size)
        self.needs_all = self.window.size is None

    def reads(self, num_tokens: int) -> range:
        return range(self.window.first_block(num_tokens), self.allocator.count(num_tokens))

    def load_range(self, first: int, num_tokens: int) -> tuple[int, int]:
        return first, num_tokens

    def begin(self, kept: Kept, first_row: int, num_tokens: int) -> None:
        kept.tables[self.at].first_row = first_row

    def max_blocks(self, num_tokens: int, num_fed: int = 1) -> int:
        return self.window.max_blocks(num_tokens, num_fed)

    def num_missing(self, table: Table, first: int, num_tokens: int, num_fed: int) -> int:
        at_once = min(self.max_blocks(num_tokens, num_fed), self.allocator.num_blocks)
        return min(self.allocator.count(num_tokens) - first, at_once) - len(table.blocks)

    def max_fed(self, kept: Kept, count: int, budget: int) -> int:
        if self.window.size is None:
            return budget
        end = (kept.first_row // self.allocator.block_size + self.allocator.num_blocks) * self.allocator.block_size
        return min(budget, end - kept.num_computed)  # 0: the step in flight has filled the cache, and gives blocks back

    def max_drafts(self) -> int | None:
        return None

    def reserve(
        self, kept: Kept, count: int, undo: Undo, take: Callable[[Keeps], int | None]
    ) -> list[tuple[int, int]] | None:
        table, size, copies = kept.tables[self.at], self.allocator.block_size, list[tuple[int, int]]()
        start, num_before = kept.num_computed, table.first_row // size  # blocks of the text before its table
        needed = self.allocator.count(start + count) - num_before
        while len(table.blocks) < needed:
            if (block := take(self)) is None:
                return None
            table.blocks.append(block)
        for index in range(start // size - num_before, needed):
            old = table.blocks[index]
            if self.allocator.references[old] == 1:
                self.allocator.unpublish(old)  # it is about to change
                continue
            if (new := take(self)) is None:
                return None
            if (num_before + index) * size < start:
                copies.append((old, new))
            self.allocator.release(old)
            table.blocks[index] = new
        return copies

    def computed(self, kept: Kept, num_tokens: int) -> None:
        """Do nothing: num_computed tells which rows count."""

    def can_keep(self, kept: Kept, num_tokens: int) -> int:
        return 0 if kept.first_row > self.window.first_row(num_tokens) else num_tokens

    def cut(self, kept: Kept, num_tokens: int) -> None:
        table = kept.tables[self.at]
        if not num_tokens:
            table.first_row = 0
        self.allocator.cut(
            table.blocks, self.allocator.count(num_tokens) - table.first_row // self.allocator.block_size
        )

    def give_back(self, kept: Kept) -> None:
        if self.window.size is None:
            return
        table, first = kept.tables[self.at], self.window.first_kept(kept.num_computed)
        if (count := first - table.first_row // self.allocator.block_size) > 0:
            given, table.blocks = table.blocks[:count], table.blocks[count:]
            table.first_row = first * self.allocator.block_size
            for block in given:
                self.allocator.release(block)

    def publish(self, kept: Kept, index: int, has_ended: bool) -> int | None:
        table = kept.tables[self.at]
        if index < max(kept.num_published, self.allocator.count(table.first_row)):
            return None  # it was offered before, or a part of it was given back
        block = table.blocks[index - table.first_row // self.allocator.block_size]
        self.allocator.publish(block, kept.block_hashes[index])
        return block

    def num_saved(self, kept: Kept, limit: int) -> int:
        num_rows = min(kept.num_saved, limit)  # 0 if the last token, fed again, reads earlier rows than the file has
        return num_rows if kept.first_saved <= self.window.first_row(max(num_rows - 1, 0)) else 0
