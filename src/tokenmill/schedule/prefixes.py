"""Sequences with the same beginning share full blocks: one publishes the blocks that it computed, others take them.

A block is published when its step is committed: its rows are written then, and known to be finite. Blocks may also lie
on disk: planning only looks whether one is there, and the runner loads it before the step that reads it. Where every
layer has a window, a sequence takes the blocks inside of the window alone: the digest of a block stands for all tokens
before it, and the rows before the window are not read.
"""

from collections.abc import Callable

from tokenmill.schedule.blocks import BlockAllocator, chain_digest
from tokenmill.schedule.sequence import Load, RowSource, Sequence
from tokenmill.schedule.window import Window


class PrefixCache:
    """Finds and publishes the blocks of one allocator. If is_on is False it finds and publishes none.

    find_stored: called with a digest, gives what reads that block from disk, or None if it is not there.
    """

    def __init__(self, allocator: BlockAllocator, window: Window, is_on: bool) -> None:
        self._allocator, self._window, self._is_on = allocator, window, is_on
        self.find_stored: Callable[[bytes], RowSource | None] = lambda _: None

    def match_prefix(self, sequence: Sequence, max_blocks: int) -> list[Load] | None:
        """Give a sequence without rows those of its first tokens that exist: shared, on disk, or saved.

        The last token, and every token whose logits are wanted, is still to be fed. Of rows that lie before every
        window none is needed or taken. Returns the loads. Returns None and takes nothing if fewer blocks are free than
        the sequence needs for its tokens, of which it holds at most max_blocks at once.
        """
        rows, size = sequence.rows, self._allocator.block_size
        if rows.blocks or rows.num_computed:
            needed = self._num_needed(sequence, rows.first_row // size, max_blocks)
            return [] if needed - len(rows.blocks) <= self._allocator.num_free else None
        limit = min(len(sequence.tokens) - 1, sequence.first_logits)
        hashes, places = self._find(sequence, limit // size)
        num_saved, num_found = self.num_saved(sequence, limit), len(hashes)
        first = self._window.first_block(max(num_found * size, num_saved))
        shared = [place for place in places[first:] if isinstance(place, int)]
        for block in shared:
            self._allocator.share(block)
        if self._num_needed(sequence, first, max_blocks) - len(shared) > self._allocator.num_free:
            self._allocator.cut(shared, 0)
            return None
        loads = []
        for place in places[first:]:
            block = place if isinstance(place, int) else self._new_block()
            rows.blocks.append(block)
            if not isinstance(place, int):
                assert place is not None, "every block of the window was found"
                loads.append(Load(sequence, (block,), place, 0, size))
        rows.block_hashes, rows.first_row, rows.num_computed = hashes, first * size, num_found * size
        if rows.saved is not None and num_saved > num_found * size:
            begin = max(first, num_found)
            new = tuple(self._new_block() for _ in range(begin, self._allocator.count(num_saved)))
            rows.blocks.extend(new)
            loads.append(Load(sequence, new, rows.saved, begin * size, num_saved))
            rows.num_computed = num_saved
            if begin == first:
                rows.first_row = max(first * size, rows.first_saved)
        rows.num_published = next((i for i in range(first, num_found) if not isinstance(places[i], int)), num_found)
        return loads

    def publish(self, sequence: Sequence) -> list[tuple[bytes, int]]:
        """Publish full blocks that are not published yet; their digests and numbers."""
        if not self._is_on or not sequence.rows.is_own:
            return []
        rows, size, stores = sequence.rows, self._allocator.block_size, []
        first_complete = self._allocator.count(rows.first_row)
        for index in range(max(rows.num_published, first_complete), rows.num_computed // size):
            while len(rows.block_hashes) <= index:
                first = len(rows.block_hashes) * size
                parent = rows.block_hashes[-1] if rows.block_hashes else rows.salt
                rows.block_hashes.append(chain_digest(parent, sequence.tokens[first : first + size]))
            block = rows.blocks[index - rows.first_row // size]
            self._allocator.publish(block, rows.block_hashes[index])
            rows.num_published = index + 1
            stores.append((rows.block_hashes[index], block))
        return stores

    def num_saved(self, sequence: Sequence, limit: int) -> int:
        """Rows at most `limit` that a file has of the sequence; none if the file begins after the first that is read,
        also if the last token is fed again."""
        rows = sequence.rows
        num_rows = min(rows.num_saved, limit)
        return num_rows if rows.first_saved <= self._window.first_row(max(num_rows - 1, 0)) else 0

    def _num_needed(self, sequence: Sequence, first_block: int, max_blocks: int) -> int:
        """Count the blocks that a sequence will hold at once for its tokens, if it holds none before first_block."""
        return min(self._allocator.count(len(sequence.tokens)) - first_block, max_blocks)

    def _find(self, sequence: Sequence, num_blocks: int) -> tuple[list[bytes], list[int | RowSource | None]]:
        """Digests and places of the most leading blocks after which a text can go on: every block that is still read
        exists, as a block of the cache or as rows on disk."""
        hashes, places, num_found = list[bytes](), list[int | RowSource | None](), 0
        if not self._is_on or not sequence.rows.is_own:
            return hashes, places
        size, digest, first = self._allocator.block_size, sequence.rows.salt, 0
        for index in range(num_blocks):
            digest = chain_digest(digest, sequence.tokens[index * size : (index + 1) * size])
            block = self._allocator.find(digest)
            place = self.find_stored(digest) if block is None else block
            hashes.append(digest)
            places.append(place)
            if place is None:
                first = index + 1  # of the blocks that exist without a gap up to here
                if self._window.size is None:
                    break
            elif first <= self._window.first_block((index + 1) * size):
                num_found = index + 1
        return hashes[:num_found], places[:num_found]

    def _new_block(self) -> int:
        block = self._allocator.allocate()
        assert block is not None, "the free blocks were counted before"
        return block
