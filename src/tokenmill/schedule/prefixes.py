"""Sequences that begin alike: full blocks of accepted tokens are published, and taken over by those that come later."""

from tokenmill.schedule.blocks import BlockAllocator, BlockStore, chain_digest
from tokenmill.schedule.sequence import Sequence

__all__ = ["Prefixes"]


class Prefixes:
    """Over the blocks of one allocator; where it is off it does nothing."""

    def __init__(self, allocator: BlockAllocator, is_on: bool) -> None:
        self._allocator, self._is_on = allocator, is_on
        self.store: BlockStore | None = None
        """Where published blocks are kept beyond this process, if anywhere."""

    def take_over(self, sequence: Sequence) -> bool:
        """Give a sequence the published blocks that hold its first tokens; the last token is always fed."""
        if not self._is_on or sequence.blocks:
            return False
        size = self._allocator.block_size
        digest = b""
        for start in range(0, min(len(sequence.tokens) - 1, sequence.first_logits) - size + 1, size):
            digest = chain_digest(digest, sequence.tokens[start : start + size])
            block = self._allocator.find(digest)
            if block is not None:
                self._allocator.share(block)
            elif (block := self._bring(digest)) is None:
                break
            sequence.blocks.append(block)
            sequence.digests.append(digest)
        sequence.num_computed_tokens = len(sequence.blocks) * size
        return bool(sequence.blocks)

    def publish(self, sequence: Sequence) -> None:
        """Offer its full blocks that were not offered before."""
        if not self._is_on:
            return
        size = self._allocator.block_size
        for index in range(len(sequence.digests), sequence.num_computed_tokens // size):
            parent = sequence.digests[-1] if sequence.digests else b""
            digest = chain_digest(parent, sequence.tokens[index * size : (index + 1) * size])
            sequence.digests.append(digest)
            self._allocator.publish(sequence.blocks[index], digest)
            if self.store is not None:
                self.store.save(digest, sequence.blocks[index])

    def _bring(self, digest: bytes) -> int | None:
        """A block filled from the store and published, ours; None where the store has none, or there is no room."""
        if self.store is None or (block := self._allocator.allocate()) is None:
            return None
        if not self.store.load(digest, block):
            self._allocator.release(block)
            return None
        self._allocator.publish(block, digest)
        return block
