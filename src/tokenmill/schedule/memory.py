"""The memory of texts: the one place that moves num_computed and block tables, and finds, shares and publishes blocks.

It loops over the kinds of layers of a model (keeps.py). Texts with the same beginning share full blocks: one publishes
the blocks that it computed, others take them. A block is published when its step is committed: it is written then, and
known to be finite. Blocks may also lie on disk: planning only looks whether one is there, and the runner loads it
before the step that reads it. The digest of a block stands for all tokens before it, so a text can go on from the last
blocks alone where every layer has a window, and from the last state where layers keep states.
"""

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Protocol

from tokenmill.schedule.blocks import chain_digest
from tokenmill.schedule.keeps import Keeps, Kept, RowSource, Table, Undo
from tokenmill.schedule.sequence import Copy, Load, Plan, Store
from tokenmill.schedule.sequence import Sequence as Text

Place = int | RowSource | None
"""The place of a block: in the cache, on disk, or nowhere."""
OPENING = 8
"""Tokens with which a chat template opens an answer, of which the next turn's prompt may keep only the beginning (Qwen
3: `<|im_start|>assistant`, a line break, `<think>`, a line break: 5). A prompt's last state is kept before them."""
Take = Callable[[Keeps], int | None]
"""Gives a free block of a kind; None where all are in use."""


class BlockStore(Protocol):
    """The port to the place where full blocks outlive the process: cache/prefix_store.py."""

    def find(self, name: bytes, kind: int) -> RowSource | None:
        """Find the reader of the block of that name, of a kind of layers; None if it is not there."""

    def save(self, store: Store) -> None:
        """Write a full block, unless it is there."""


class Memory:
    """The kinds of a model, rows first. prefix_cache: blocks are found and published. store: blocks on disk."""

    def __init__(self, kinds: Sequence[Keeps], prefix_cache: bool = True) -> None:
        self.kinds, self.prefix_cache = tuple(kinds), prefix_cache
        self.block_size = self.kinds[0].allocator.block_size
        self.store: BlockStore | None = None

    # ---- room

    def check_length(self, num_tokens: int) -> tuple[int, int] | None:
        """Return the blocks that a text of so many tokens needs, and their number there, where it needs more."""
        for kind in self.kinds:
            if (needed := kind.max_blocks(num_tokens)) > kind.allocator.num_blocks:
                return needed, kind.allocator.num_blocks
        return None

    def has_room(self, text: Text, num_fed: int) -> bool:
        """Say whether as many blocks are free as the text holds at once, fed at most so many tokens in a step."""
        most = ((kind, kind.max_blocks(len(text.tokens), num_fed)) for kind in self.kinds)
        return all(min(count, kind.allocator.num_blocks) <= kind.allocator.num_free for kind, count in most)

    def max_fed(self, text: Text, budget: int) -> int:
        """Count the tokens that a step can feed of a text; 0 if it has to wait for blocks."""
        for kind in self.kinds:
            budget = kind.max_fed(text.kept, text.num_pending_tokens, budget) if budget > 0 else 0
        return budget

    def max_drafts(self) -> int | None:
        """Count the drafts of a text that can be taken away one by one; None if they are not limited."""
        return min((most for kind in self.kinds if (most := kind.max_drafts()) is not None), default=None)

    def reserve(self, text: Text, count: int, undo: Undo, plan: Plan, take: Take) -> bool:
        """Give a text blocks of its own for its next `count` tokens; False if `take` gave no block."""
        for kind in self.kinds:
            copies = kind.reserve(text.kept, count, undo, take)
            if copies is None:
                return False
            plan.moves += [Copy(kind.at, *copy) for copy in copies]
        return True

    # ---- progress

    def computed(self, text: Text, num_tokens: int) -> None:
        """Note that a step has brought the text to so many tokens."""
        text.kept.num_computed = num_tokens
        for kind in self.kinds:
            kind.computed(text.kept, num_tokens)

    def settle(self, text: Text, num_tokens: int) -> None:
        """Let at most so many computed tokens count at the end of a step, and keep what the next ones read."""
        if num_tokens < text.kept.num_computed:
            self.keep(text, num_tokens)

    def keep(self, text: Text, num_tokens: int) -> None:
        """Go back to at most so many tokens, and forget the entries of others."""
        self._cut(text.kept, self._can_keep(text.kept, min(num_tokens, text.kept.num_computed)))

    def _can_keep(self, kept: Kept, num_tokens: int) -> int:
        for kind in reversed(self.kinds[: len(kept.tables)]):  # a state can go back to few places, rows to any
            num_tokens = kind.can_keep(kept, num_tokens)
        return num_tokens

    def _cut(self, kept: Kept, num_tokens: int) -> None:
        kept.num_computed, num_full = num_tokens, num_tokens // self.block_size
        kept.num_published = min(kept.num_published, num_full)
        kept.num_shared, kept.prompt_end = min(kept.num_shared, num_tokens), min(kept.prompt_end, num_tokens)
        del kept.block_hashes[num_full:]
        for kind in self.kinds[: len(kept.tables)]:
            kind.cut(kept, num_tokens)

    # ---- texts

    def share(self, kept: Kept) -> Kept:
        """Copy what a text keeps; blocks are shared until one of the two writes."""
        for kind, table in zip(self.kinds, kept.tables, strict=False):
            for block in table.blocks:
                kind.allocator.share(block)
        return kept.copy()

    def release(self, kept: Kept) -> None:
        """Give all blocks of a text back; it does not run again."""
        for kind, table in zip(self.kinds, kept.tables, strict=False):
            kind.allocator.cut(table.blocks, 0)

    def clear(self) -> None:
        """Forget all blocks of all texts, after a step that broke off somewhere."""
        for kind in self.kinds:
            kind.allocator.clear()

    def forget(self, text: Text) -> None:
        """Note that a text has no block any more, since all were cleared."""
        for table in text.kept.tables:
            table.blocks.clear()
        self._cut(text.kept, 0)

    def forget_names(self) -> None:
        """Forget all names, so that later texts find no block of earlier ones."""
        for kind in self.kinds:
            kind.allocator.forget_names()

    def distrust(self, text: Text) -> None:
        """Let nothing be found that a text has computed or taken, since its logits were not finite."""
        for kind in self.kinds:
            for digest in text.kept.block_hashes:
                if (block := kind.allocator.find(digest)) is not None:
                    kind.allocator.unpublish(block)
        self.keep(text, 0)

    def holds(self, text: Text) -> bool:
        """Say whether a text has blocks."""
        return any(table.blocks for table in text.kept.tables)

    # ---- saved texts

    def open_saved(self, kept: Kept, saved: Sequence[RowSource], first: int, num_tokens: int, is_own: bool) -> None:
        """Let a text without blocks load a file's entries of its first tokens. first: the file's first row."""
        kept.saved, kept.first_saved, kept.num_saved, kept.is_own = saved, first, num_tokens, is_own

    def drop_saved(self, text: Text) -> None:
        """Have the entries in a file computed, because it cannot be read."""
        text.kept.saved, text.kept.num_saved = (), 0

    def rewound(self, text: Text, num_tokens: int) -> None:
        """Note that a text has gone back to so many tokens: saved entries of others do not count any more."""
        kept = text.kept
        kept.num_saved = self.num_saved(text, num_tokens)
        if not kept.num_computed and not kept.num_saved:
            kept.saved, kept.is_own = (), True  # nothing computed under other conditions is left

    def num_saved(self, text: Text, limit: int) -> int:
        """Count the tokens, at most `limit`, from which the text can go on with the entries in its file."""
        return min(kind.num_saved(text.kept, limit) for kind in self.kinds)

    # ---- the prefix cache

    def match(self, text: Text, num_fed: int) -> list[Load] | None:
        """Give a text without blocks the entries that exist of its first tokens: shared, on disk, or saved; return the
        loads.

        The last token, and every token whose logits are wanted, is still to be fed. None, and nothing is taken, if
        fewer blocks are free than the text needs for its tokens, of which a step feeds at most num_fed.
        """
        kept = text.kept
        kept.tables += [Table() for _ in range(len(kept.tables), len(self.kinds))]
        kept.num_shared = 0
        kept.prompt_end = max(len(text.tokens) - 1 - OPENING, 0) // self.block_size * self.block_size
        if self.holds(text) or kept.num_computed:
            return [] if self._is_room(text, num_fed) else None
        limit = min(len(text.tokens) - 1, text.first_logits)
        hashes, places, num_shared = self._find(text, limit // self.block_size)
        num_found = len(hashes) * self.block_size
        num_tokens = max(num_found, num_saved) if (num_saved := self.num_saved(text, limit)) else num_found
        for kind, own in zip(self.kinds, places, strict=True):
            found = own[kind.reads(num_tokens).start : len(hashes)]
            kept.tables[kind.at].blocks = [place for place in found if isinstance(place, int)]
            for block in kept.tables[kind.at].blocks:
                kind.allocator.share(block)
        if not self._is_room(text, num_fed, num_tokens):
            self.release(kept)
            return None
        loads = [load for kind, own in zip(self.kinds, places, strict=True)
                 for load in self._loads(text, kind, own[: len(hashes)], num_tokens)]  # fmt: skip
        kept.block_hashes, kept.num_computed = hashes, num_tokens
        kept.num_shared, kept.prompt_end = num_shared, max(kept.prompt_end, num_shared)
        on_disk = (index for kind, own in zip(self.kinds, places, strict=True)
                   for index in range(kind.reads(num_tokens).start, len(hashes))
                   if not isinstance(own[index], int))  # fmt: skip
        kept.num_published = min(on_disk, default=len(hashes))
        return loads

    def _loads(self, text: Text, kind: Keeps, places: Sequence[Place], num_tokens: int) -> list[Load]:
        """Make a kind's table of the places of found blocks, and of the entries in the text's file after them."""
        size, reads, blocks, loads = self.block_size, kind.reads(num_tokens), list[int](), list[Load]()
        for place in places[reads.start :]:
            block = place if isinstance(place, int) else _new_block(kind)
            blocks.append(block)
            if not isinstance(place, int):
                assert place is not None, "every block that is read was found"
                loads.append(Load(kind.at, text, (block,), place, *kind.load_range(0, size)))
        begin = max(reads.start, len(places))
        if new := tuple(_new_block(kind) for _ in range(begin, reads.stop)):
            blocks.extend(new)
            span = kind.load_range(begin * size, num_tokens)
            loads.append(Load(kind.at, text, new, text.kept.saved[kind.at], *span))
        from_file = begin == reads.start and bool(new)
        text.kept.tables[kind.at].blocks = blocks
        kind.begin(text.kept, max(reads.start * size, text.kept.first_saved if from_file else 0), num_tokens)
        return loads

    def _is_room(self, text: Text, num_fed: int, num_tokens: int | None = None) -> bool:
        """Say whether blocks for the rest of a text are free; it goes on after num_tokens, or from where it is."""
        for kind in self.kinds:
            table = text.kept.tables[kind.at]
            first = table.first_row // self.block_size if num_tokens is None else kind.reads(num_tokens).start
            if kind.num_missing(table, first, len(text.tokens), num_fed) > kind.allocator.num_free:
                return False
        return True

    def _find(self, text: Text, num_blocks: int) -> tuple[list[bytes], list[list[Place]], int]:
        """Find the most leading blocks after which a text can go on, so that every kind has all that is read then:
        their digests, and their places for each kind; and the number of tokens after which it could go on with its
        rows alone.
        """
        hashes, rows, places = list[bytes](), self.kinds[0], list[Place]()
        size, digest = self.block_size, text.kept.salt
        ends, gap_end = list[int](), 0  # numbers of blocks whose rows are there; the first block after the last gap
        for index in range(num_blocks if self.prefix_cache and text.kept.is_own else 0):
            digest = chain_digest(digest, text.tokens[index * size : (index + 1) * size])
            hashes.append(digest)
            places.append(self._place(rows, digest))
            if places[-1] is None:
                gap_end = index + 1
                if rows.needs_all:
                    break
            if gap_end <= rows.reads((index + 1) * size).start:
                ends.append(index + 1)
        for count in reversed(ends):  # a state stands at few of them
            read = [kind.reads(count * size) for kind in self.kinds[1:]]
            others = [[self._place(kind, hashes[index]) for index in reads]
                      for kind, reads in zip(self.kinds[1:], read, strict=True)]  # fmt: skip
            if all(None not in own for own in others):
                before = [[None] * reads.start for reads in read]
                filled = [[*none, *own] for none, own in zip(before, others, strict=True)]
                return hashes[:count], [places, *filled], ends[-1] * size
        return [], [[] for _ in self.kinds], ends[-1] * size if ends else 0

    def _place(self, kind: Keeps, digest: bytes) -> Place:
        if (block := kind.allocator.find(digest)) is not None or self.store is None:
            return block
        return self.store.find(_stored_name(kind, digest), kind.at)

    def publish(self, text: Text, has_ended: bool = False) -> list[Store]:
        """Publish full blocks that are not published yet, then release blocks not read any more; return the stores.

        has_ended: the text is complete, which may decide that its last block is stored.
        """
        kept, size, stores = text.kept, self.block_size, list[Store]()
        num_full = kept.num_computed // size if self.prefix_cache and kept.is_own else 0
        for index in range(min(kept.num_published, max(num_full - has_ended, 0)), num_full):
            while len(kept.block_hashes) <= index:
                first = len(kept.block_hashes) * size
                parent = kept.block_hashes[-1] if kept.block_hashes else kept.salt
                kept.block_hashes.append(chain_digest(parent, text.tokens[first : first + size]))
            digest = kept.block_hashes[index]
            for kind in self.kinds:
                if (block := kind.publish(kept, index, has_ended)) is not None:
                    stores.append(Store(kind.at, _stored_name(kind, digest), block))
            kept.num_published = index + 1
        for kind in self.kinds:
            kind.give_back(kept)
        return stores


def _stored_name(kind: Keeps, digest: bytes) -> bytes:
    """Name an entry of a kind at the end of a block on disk, where the blocks of all kinds lie in one folder.

    No block of tokens has that name: a digest is followed by eight bytes for each token there.
    """
    return digest if kind.at == 0 else blake2b(digest + bytes([kind.at]), digest_size=len(digest)).digest()


def _new_block(kind: Keeps) -> int:
    block = kind.allocator.allocate()
    assert block is not None, "the free blocks were counted before"
    return block
