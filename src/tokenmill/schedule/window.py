"""The rows that a sequence still needs where every layer has a window, and the blocks that this takes.

A query at position p of a layer with a window w reads the rows p - w + 1 to p of that layer. A block that lies wholly
before the largest window of the layers is never read again, and is given back. One block more than that is kept, so
that a sequence can go back by a few tokens (drafts that were not accepted, a stop text, the last token that is fed
again) without computing everything anew.
"""

from dataclasses import dataclass


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
