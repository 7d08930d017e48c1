"""Sequences with the same beginning share full blocks: one publishes the blocks that it computed, others take them.

A block is published when its step is committed: its rows are written then, and known to be finite. Blocks may also lie
on disk: planning only looks whether one is there, and the runner loads it before the step that reads it.
"""

from collections.abc import Callable

from tokenmill.schedule.blocks import BlockAllocator, chain_digest
from tokenmill.schedule.sequence import Load, RowSource, Sequence

__all__ = ["PrefixCache"]


class PrefixCache:
    """Finds and publishes the blocks of one allocator. If is_on is False it finds and publishes none.

    find_stored: called with a digest, gives what reads that block from disk, or None if it is not there.
    """

    def __init__(self, allocator: BlockAllocator, is_on: bool) -> None:
        self._allocator, self._is_on = allocator, is_on
        self.find_stored: Callable[[bytes], RowSource | None] = lambda _: None

    def match_prefix(self, sequence: Sequence, num_blocks: int) -> list[Load] | None:
        """Give a sequence without blocks the rows of its first tokens that exist: shared, on disk, or saved.

        The last token, and every token whose logits are wanted, is still to be fed. Returns the loads. Returns None and
        takes nothing if fewer blocks are free than the sequence needs, which is num_blocks in all.
        """
        if sequence.rows.blocks:
            return [] if num_blocks - len(sequence.rows.blocks) <= self._allocator.num_free else None
        size, limit = self._allocator.block_size, min(len(sequence.tokens) - 1, sequence.first_logits)
        found = self._find(sequence, limit // size)
        num_saved = min(sequence.rows.num_saved, limit)
        shared = [place for _, place in found if isinstance(place, int)]
        for block in shared:
            self._allocator.share(block)
        if num_blocks - len(shared) > self._allocator.num_free:
            self._allocator.cut(shared, 0)
            return None
        loads = []
        for digest, place in found:
            block = place if isinstance(place, int) else self._new_block()
            sequence.rows.blocks.append(block)
            sequence.rows.block_hashes.append(digest)
            if not isinstance(place, int):
                loads.append(Load(sequence, (block,), place, 0, size))
        sequence.rows.num_computed = len(found) * size
        sequence.rows.num_published = next(
            (i for i, (_, at) in enumerate(found) if not isinstance(at, int)), len(found)
        )
        if sequence.rows.saved is not None and num_saved > sequence.rows.num_computed:
            first = sequence.rows.num_computed
            new = tuple(self._new_block() for _ in range(self._allocator.count(num_saved) - len(sequence.rows.blocks)))
            sequence.rows.blocks.extend(new)
            loads.append(Load(sequence, new, sequence.rows.saved, first, num_saved))
            sequence.rows.num_computed = num_saved
        return loads

    def publish(self, sequence: Sequence) -> list[tuple[bytes, int]]:
        """Publish full blocks that are not published yet; their digests and numbers."""
        if not self._is_on or not sequence.rows.is_own:
            return []
        size, stores = self._allocator.block_size, []
        for index in range(sequence.rows.num_published, sequence.rows.num_computed // size):
            if index == len(sequence.rows.block_hashes):
                parent = sequence.rows.block_hashes[-1] if sequence.rows.block_hashes else sequence.rows.salt
                sequence.rows.block_hashes.append(
                    chain_digest(parent, sequence.tokens[index * size : (index + 1) * size])
                )
            self._allocator.publish(sequence.rows.blocks[index], sequence.rows.block_hashes[index])
            sequence.rows.num_published = index + 1
            stores.append((sequence.rows.block_hashes[index], sequence.rows.blocks[index]))
        return stores

    def _find(self, sequence: Sequence, num_blocks: int) -> list[tuple[bytes, int | RowSource]]:
        """Digest and place of the leading full blocks that exist: a block of the cache, or rows on disk."""
        found: list[tuple[bytes, int | RowSource]] = []
        if not self._is_on or not sequence.rows.is_own:
            return found
        size, digest = self._allocator.block_size, sequence.rows.salt
        for start in range(0, num_blocks * size, size):
            digest = chain_digest(digest, sequence.tokens[start : start + size])
            block = self._allocator.find(digest)
            place = self.find_stored(digest) if block is None else block
            if place is None:
                break
            found.append((digest, place))
        return found

    def _new_block(self) -> int:
        block = self._allocator.allocate()
        assert block is not None, "the free blocks were counted before"
        return block
