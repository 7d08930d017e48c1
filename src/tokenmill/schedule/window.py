"""The rows that a sequence still needs where every layer has a window, and the blocks that this takes.

A query at position p of a layer with a window w reads the rows p - w + 1 to p of that layer. A block that lies wholly
before the largest window of the layers is never read again, and is given back. One block more than that is kept, so
that a sequence can go back by a few tokens (drafts that were not accepted, a stop text, the last token that is fed
again) without computing everything anew.
"""

from dataclasses import dataclass

from tokenmill.schedule.blocks import BlockAllocator
from tokenmill.schedule.sequence import Rows


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
        """Find the first block that is kept when the next token to be fed is that of `position`."""
        return max(self.first_block(position) - 1, 0)

    def max_blocks(self, num_tokens: int, num_fed: int = 1, num_sequences: int = 1) -> int:
        """Count the most blocks that sequences of num_tokens hold at once, where a step feeds num_fed of all their
        tokens.

        A sequence of which c tokens are fed holds their rows, size - 1 before them, and a block before these. n rows in
        succession lie in at most (n + 2 * block_size - 2) // block_size blocks.
        """
        whole = num_sequences * -(-num_tokens // self.block_size)
        if self.size is None:
            return whole
        return min(whole, (num_sequences * (self.size + 3 * self.block_size - 3) + num_fed) // self.block_size)


def give_back(rows: Rows, window: Window, allocator: BlockAllocator) -> None:
    """Release the blocks of a sequence that no later step reads. No step in flight may read them either."""
    first = window.first_kept(rows.num_computed)
    if (count := first - rows.first_row // window.block_size) > 0:
        given, rows.blocks = rows.blocks[:count], rows.blocks[count:]
        rows.first_row = first * window.block_size
        for block in given:
            allocator.release(block)


def max_fed(rows: Rows, allocator: BlockAllocator) -> int:
    """Count the tokens that a step can feed of a sequence which has the whole cache to itself."""
    return (rows.first_row // allocator.block_size + allocator.num_blocks) * allocator.block_size - rows.num_computed


def keep_rows(rows: Rows, num_rows: int, window: Window, allocator: BlockAllocator) -> None:
    """Forget all rows but the first, with their blocks and digests; all of them if one that would be read is gone."""
    if rows.first_row > window.first_row(num_rows):
        num_rows = 0
    num_full = num_rows // allocator.block_size
    rows.num_computed = num_rows
    if not num_rows:
        rows.first_row = 0
    rows.num_published = min(rows.num_published, num_full)
    del rows.block_hashes[num_full:]
    allocator.cut(rows.blocks, allocator.count(num_rows) - rows.first_row // allocator.block_size)
