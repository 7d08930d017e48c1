"""Blocks of the cache that are free, shared or findable: reference counts and chained hashes, ints only.

A block is `block_size` consecutive slots. A contiguous cache is the same thing with a block as long as the longest
sequence. A block whose last reference goes keeps its content until it is needed again, so a published block can be
found by a later sequence that begins with the same tokens. Nothing here knows tensors or sequences.
"""

from array import array
from collections.abc import Sequence
from hashlib import blake2b


def chain_digest(parent: bytes, tokens: Sequence[int]) -> bytes:
    """Name a full block by a hash over its tokens and the name of the block before it (for the first, a salt)."""
    return blake2b(parent + array("q", tokens).tobytes(), digest_size=16).digest()


class BlockAllocator:
    """The allocator of blocks 0 … num_blocks - 1, which counts the references to each."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self.clear()

    def clear(self) -> None:
        """Forget all references and names: every block is free."""
        self.references = [0] * self.num_blocks
        # A dict is an ordered set: the block that has been free longest is reused first.
        self._free: dict[int, None] = dict.fromkeys(range(self.num_blocks))
        self._digest_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}

    @property
    def num_free(self) -> int:
        """Count the blocks without a reference; published ones among them still count as free."""
        return len(self._free)

    def count(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def cut(self, table: list[int], keep: int) -> None:
        """Release all but the first `keep` blocks of a table, last ones first: the head of a prefix stays longest."""
        while len(table) > keep:
            self.release(table.pop())

    @property
    def num_named(self) -> int:
        return len(self._block_of)

    def is_named(self, block: int) -> bool:
        """Say whether the block can be found."""
        return block in self._digest_of

    def state_of(self, block: int) -> str:
        """Return `f` for free, `k` for free and still findable, `u` for in use, `s` for shared."""
        return "us"[self.references[block] > 1] if self.references[block] else "fk"[block in self._digest_of]

    def allocate(self) -> int | None:
        """Return a block with one reference and no name, or None when every block is in use."""
        if not self._free:
            return None
        block = self._next_free()
        del self._free[block]
        self.unpublish(block)
        self.references[block] = 1
        return block

    def _next_free(self) -> int:
        """Choose a free block: the one that has been free longest."""
        return next(iter(self._free))

    def share(self, block: int) -> None:
        """Add a reference; a free but still findable block comes back into use."""
        self._free.pop(block, None)
        self.references[block] += 1

    def release(self, block: int) -> None:
        """Take a reference away; without any the block is free, and findable until it is reused."""
        assert self.references[block] > 0, f"block {block} was released twice"
        self.references[block] -= 1
        if not self.references[block]:
            self._free[block] = None

    def publish(self, block: int, digest: bytes) -> None:
        """Offer a full block for sharing. The first block of a name keeps it."""
        if digest not in self._block_of and block not in self._digest_of:
            self._block_of[digest] = block
            self._digest_of[block] = digest

    def unpublish(self, block: int) -> None:
        """Forget a block's name, because it is about to hold something else."""
        digest = self._digest_of.pop(block, None)
        if digest is not None:
            del self._block_of[digest]

    def find(self, digest: bytes) -> int | None:
        """Find the block of that name. Take it with `share` before anything is allocated."""
        return self._block_of.get(digest)

    def is_findable(self, digest: bytes) -> bool:
        """Say whether a block of that name is there."""
        return digest in self._block_of

    def forget_names(self) -> None:
        self._digest_of.clear()
        self._block_of.clear()
