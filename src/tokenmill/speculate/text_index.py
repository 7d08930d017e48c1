"""Texts as tokens, one after another, with an index of their n-grams: in memory, or as a segment in a file.

A segment is mapped into memory. Only its header is read and checked when it is opened, and each block of texts is
compared with its checksum when it is first used. The index needs no checksum, because the place that it points at is
compared with the texts.
"""

import mmap
import zlib
from array import array
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as List
from itertools import pairwise
from operator import mul
from pathlib import Path
from stat import S_ISREG
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokenmill.errors import SnapshotError
from tokenmill.memory.atomic_file import seal, unseal, writing
from tokenmill.value_reader import MAX_POSITIONS, ValueReader

MAGIC, FORMAT = b"TMTEXTS\n", 1  # the format changes with any constant here that the file follows
NGRAMS = (8, 3)  # sizes that are indexed, the largest first
WINDOW = 64  # the longest match whose length is known; a longer one counts as this
NEAR = 8  # tokens of a match that are compared first
BLOCK = 1024  # tokens with a checksum of their own
SLOTS_PART = 0.75  # slots of an index, to its tokens
BYTES_PER_TOKEN = round(4 + 4 * len(NGRAMS) * (1 + SLOTS_PART))
CHUNK = 1 << 14  # tokens that are indexed at a time, because more are sorted outside the caches
ALIGNMENT = 64  # bytes, of the arrays after the header
LONGEST_HEADER = 1 << 16

SEPARATOR, PADDING = -(1 << 31), 1 - (1 << 31)  # no tokens, and different: a match ends where a text begins
BITS, BYTES = 32, 4  # size of a token
from_bytes = int.from_bytes
WORD = (1 << 64) - 1
WEIGHTS = [pow(0x9E3779B97F4A7C15, power, WORD + 1) for power in range(1, max(NGRAMS) + 1)]  # the last token's first

Tokens = NDArray[np.int32]


class Query(NamedTuple):
    """The end of a text that is looked for: the last token, the last NEAR and the last WINDOW tokens, and a hash for
    each of NGRAMS.

    Many tokens are one number here, so they are compared in one operation, whose highest bit tells which token differs.
    """

    token: int
    near: int
    far: int
    keys: list[int]


def query_of(tokens: List[int]) -> Query:
    """Make the query of a sequence of any length."""
    tail = list(tokens[-WINDOW:])
    tail = [PADDING] * (WINDOW - len(tail)) + tail
    data = array("i", tail).tobytes()
    far = from_bytes(data, "little")
    return Query(tail[-1], from_bytes(data[-BYTES * NEAR :], "little"), far, [_hash_of(tail, size) for size in NGRAMS])


def _hash_of(tail: List[int], size: int) -> int:
    """Hash the last tokens as `_enter` does."""
    total: int = sum(map(mul, tail[: -size - 1 : -1], WEIGHTS))
    return total & WORD


class TextIndex:
    """Texts with a separator after each, and WINDOW separators at the front.

    heads: for each size of n-grams, by hash, the place after the latest one; links: by such a place, the one before. 0
    stands for no place.
    """

    def __init__(self, tokens: Tokens, heads: List[Tokens], links: List[Tokens]) -> None:
        self.tokens = tokens.data  # a memoryview is much faster than numpy for single elements
        self._bytes = self.tokens.cast("B")
        self.heads, self._links = [each.data for each in heads], [each.data for each in links]
        self.num_slots = len(heads[0])

    def matches(self, number: int, query: Query, at: int, count: int) -> list[tuple[int, int]]:
        """Find the length of, and the place after, each match among `count` places from `at`. number: of the size."""
        tokens, data, links = self.tokens, self._bytes, self._links[number]
        token, near, far, _ = query
        found, last = list[tuple[int, int]](), len(tokens)
        while count and WINDOW <= at < last:  # a damaged index may point anywhere
            if tokens[at - 1] == token:  # others only share the slot
                differs, length = from_bytes(data[BYTES * (at - NEAR) : BYTES * at], "little") ^ near, NEAR
                if not differs:
                    differs, length = from_bytes(data[BYTES * (at - WINDOW) : BYTES * at], "little") ^ far, WINDOW
                length -= (differs.bit_length() + BITS - 1) // BITS  # without the token that differs and all before it
                if length >= NGRAMS[number]:
                    found.append((length, at))
                if length == WINDOW:
                    break
            at, count = links[at], count - 1
        return found

    def check(self, first: int, last: int) -> None:
        """Raise SnapshotError if the tokens of [first, last) are not as they were written."""


class PendingTexts(TextIndex):
    """Texts in memory; it grows up to a number of tokens."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self._end = capacity, WINDOW
        size = WINDOW + capacity + 1
        self._all = np.zeros(size, np.int32)
        self._all[:WINDOW] = SEPARATOR
        self._index = [np.zeros(size, np.int32) for _ in NGRAMS], [np.zeros(size, np.int32) for _ in NGRAMS]
        super().__init__(self._all, *self._index)

    def has_room(self, num_tokens: int) -> bool:
        return self._end + num_tokens < len(self._all)

    def add(self, text: Tokens) -> None:
        """Add a text for which there is room."""
        first, last = self._end, self._end + len(text)
        self._all[first:last], self._all[last] = text, SEPARATOR
        for size, heads, links in zip(NGRAMS, *self._index, strict=True):
            _enter(self._all, size, heads, links, first, last)
        self._end = last + 1

    def written(self) -> Tokens:
        """Return all texts, as they stand in a segment."""
        return self._all[: self._end]

    def keep(self, part: float) -> None:
        """Forget all but this part of the texts, the latest ones."""
        texts = list(_split(self.written()))
        self._end = WINDOW
        for heads in self._index[0]:
            heads[:] = 0
        for text in texts[len(texts) - int(len(texts) * part) :]:
            self.add(np.frombuffer(text, np.int32)[:-1])


class Segment(TextIndex):
    """A file of texts, mapped into memory.

    SnapshotError if it is no segment, damaged, or of another version or identity; OSError if it cannot be opened.
    """

    def __init__(self, path: Path, identity: str) -> None:
        self.path = path
        status = path.stat()
        if not S_ISREG(status.st_mode) or not status.st_size:  # a pipe would block, and an empty file cannot be mapped
            raise SnapshotError(f"{path} is empty, or no file")
        with path.open("rb") as opened:
            mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        start, sizes = _read_header(path, mapped, identity)
        parts = []
        for size in sizes:
            parts.append(np.frombuffer(mapped, np.int32, size, start))
            start += BYTES * size
        self._checksums, tokens, *tables = parts
        self._is_sound = bytearray(len(self._checksums))
        super().__init__(tokens, tables[: len(NGRAMS)], tables[len(NGRAMS) :])

    def check(self, first: int, last: int) -> None:
        """Compare blocks with their checksums. Only the first look at a block takes time."""
        for block in range(first // BLOCK, -(-min(last, len(self.tokens)) // BLOCK)):
            if not self._is_sound[block]:
                checksum = zlib.crc32(self.tokens[block * BLOCK : (block + 1) * BLOCK])
                if checksum != int(self._checksums[block]) & 0xFFFFFFFF:
                    raise SnapshotError(f"{self.path} is damaged: block {block} does not match its checksum")
                self._is_sound[block] = True


def joined(parts: Iterable[Tokens]) -> Tokens:
    """Join the texts of all parts; of equal texts, the latest is kept."""
    texts: dict[bytes, None] = {}
    for part in parts:
        for text in _split(part):
            texts.pop(text, None)
            texts[text] = None
    return np.concatenate([np.full(WINDOW, SEPARATOR, np.int32), np.frombuffer(b"".join(texts), np.int32)])


def write_segment(path: Path, tokens: Tokens, identity: str) -> None:
    """Write a new file, or raise OSError and leave none. It is not synced: damage is noticed when it is opened."""
    num_slots = int(len(tokens) * SLOTS_PART) + 1
    heads = [np.zeros(num_slots, np.int32) for _ in NGRAMS]
    links = [np.zeros(len(tokens), np.int32) for _ in NGRAMS]
    for number, size in enumerate(NGRAMS):
        for first in range(WINDOW, len(tokens), CHUNK):
            _enter(tokens, size, heads[number], links[number], first, min(first + CHUNK, len(tokens)))
    blocks = [zlib.crc32(tokens[first : first + BLOCK].data) for first in range(0, len(tokens), BLOCK)]
    header = seal({"identity": identity, "num_tokens": len(tokens), "num_slots": num_slots}, FORMAT).encode()
    front = MAGIC + len(header).to_bytes(8, "little") + header
    with writing(path, sync=False) as out:
        out.write(front + bytes(-len(front) % ALIGNMENT))
        for part in (np.array(blocks, np.uint32), tokens, *heads, *links):
            out.write(part.data)


def is_segment(path: Path) -> bool:
    """Say whether a file begins as `write_segment` writes it, even if it is cut or damaged."""
    try:
        if not path.is_file():  # a pipe would be waited for
            return False
        with path.open("rb") as opened:
            return opened.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def _read_header(path: Path, data: mmap.mmap, identity: str) -> tuple[int, list[int]]:
    """Read where the arrays begin, and the size of each; the first holds the checksums of the blocks."""
    begin = len(MAGIC) + 8
    if data[: len(MAGIC)] != MAGIC:
        raise SnapshotError(f"{path} holds no texts")
    length = min(int.from_bytes(data[len(MAGIC) : begin], "little"), LONGEST_HEADER)
    try:
        facts = unseal(data[begin : begin + length], FORMAT)
    except ValueError as error:
        raise SnapshotError(f"{path} {error}") from error
    reader = ValueReader(facts, f"{path} is damaged", SnapshotError, is_ours=True)
    if reader.text("identity", longest=LONGEST_HEADER) != identity:
        raise SnapshotError(f"{path} is of another identity")
    num_tokens, num_slots = (reader.count(name, maximum=MAX_POSITIONS) for name in ("num_tokens", "num_slots"))
    sizes = [-(-num_tokens // BLOCK), num_tokens, *[num_slots] * len(NGRAMS), *[num_tokens] * len(NGRAMS)]
    start = -(-(begin + length) // ALIGNMENT) * ALIGNMENT
    if (wanted := start + BYTES * sum(sizes)) != len(data):
        raise SnapshotError(f"{path} is cut or damaged: size {len(data)}, and its header says {wanted}")
    return start, sizes


def _enter(tokens: Tokens, size: int, heads: Tokens, links: Tokens, first: int, last: int) -> None:
    """Enter the n-grams of one size that end before a place in [first, last) and are followed by a token there."""
    keys, is_whole = np.zeros(last - first, np.uint64), tokens[first:last] >= 0
    for back in range(1, size + 1):
        part = tokens[first - back : last - back]
        keys += part.astype(np.uint64) * np.uint64(WEIGHTS[back - 1])
        is_whole &= part >= 0
    slots = keys % np.uint64(len(heads))
    pairs = (slots << np.uint64(32) | np.arange(first, last, dtype=np.uint64))[is_whole]
    pairs.sort()  # by slot, then by place
    slots, places = pairs >> np.uint64(32), pairs & np.uint64(0xFFFFFFFF)
    is_new = np.append(True, slots[1:] != slots[:-1])[: len(slots)]
    is_last = np.append(is_new[1:], True)[: len(slots)]
    links[places[1:]] = places[:-1]
    links[places[is_new]] = heads[slots[is_new]]
    heads[slots[is_last]] = places[is_last]


def _split(tokens: Tokens) -> Iterator[bytes]:
    data = tokens.tobytes()
    for before, behind in pairwise(np.flatnonzero(tokens == SEPARATOR).tolist()):
        if behind - before > 1:
            yield data[BYTES * (before + 1) : BYTES * (behind + 1)]
