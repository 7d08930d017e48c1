"""Texts of earlier requests, on disk: guesses are the tokens that followed the longest suffix of a sequence there.

A store is a folder of segments, which several processes may use at once. A segment is never changed. New texts stay in
memory until they are many or the store is closed; they are then written as one segment, together with the latest
segments that are not much larger. So there are few segments, and a guess looks into each of them. A file that is
damaged costs only guesses: it is left out, which is said once.
"""

import hashlib
import logging
import re
import secrets
import time
import warnings
import weakref
from array import array
from collections.abc import Iterator
from collections.abc import Sequence as List
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from tokenmill.errors import SnapshotError
from tokenmill.memory.bounded_folder import BoundedFolder
from tokenmill.memory.file_lock import NO_LOCKS, locked
from tokenmill.process import forget_in_child
from tokenmill.speculate.text_index import (
    BYTES_PER_TOKEN,
    FORMAT,
    NGRAMS,
    WINDOW,
    PendingTexts,
    Query,
    Segment,
    TextIndex,
    is_segment,
    joined,
    query_of,
    write_segment,
)
from tokenmill.units import size as as_size

log = logging.getLogger(__name__)

KEPT = (
    "finished texts are kept in %s to draft from, at most %s of all models; without suffix_dir no text is kept; the "
    "folder may be deleted"
)
ENDING = ".texts"
CANDIDATES = 24  # occurrences of an n-gram that a guess compares, the latest of each segment
PENDING_TOKENS = 1 << 17  # tokens in memory before they are written
SEGMENT_TOKENS = 1 << 22  # tokens in a segment, because a larger one takes too long to write
SEGMENT_PART = 8  # largest segments that fill the limit: the oldest goes as a whole
GROWTH = 4  # a segment this many times larger than the new texts is left as it is
SEGMENTS = re.compile(rf"[0-9a-f]{{16}}/\d{{20}}-[0-9a-f]{{8}}\{ENDING}")


class SuffixStore:
    """The store. limit_bytes: of the whole directory; oldest texts go first. identity: of the vocabulary or model."""

    def __init__(self, directory: Path, identity: str, vocab_size: int, limit_bytes: int) -> None:
        self._vocab_size, self._has_refused, self._is_closed = vocab_size, False, False
        self._folder = SegmentFolder(directory, identity, limit_bytes)
        self._pending = PendingTexts(self._folder.num_pending_tokens)
        self._finish = weakref.finalize(self, _finish, self._folder, self._pending)  # also when the process ends
        forget_in_child(self)

    def add(self, tokens: List[int]) -> None:
        """Keep a finished text. A text with anything but token ids is left out; the first time there is a warning."""
        if self._is_closed:
            return
        try:
            text = np.array(array("i", tokens), np.int32)
        except (TypeError, OverflowError):
            text = np.array([-1], np.int32)
        if len(text) and (text.min() < 0 or text.max() >= self._vocab_size):
            if not self._has_refused:
                warnings.warn(f"a text is not kept: token ids are from 0 to {self._vocab_size - 1}", stacklevel=2)
            self._has_refused = True
            return
        for start in range(0, len(text), self._pending.capacity):
            piece = text[start : start + self._pending.capacity]
            if not self._pending.has_room(len(piece)):
                self._folder.write(self._pending)
            if not self._pending.has_room(len(piece)):  # texts that could not be written are still there
                self._pending.keep(0.0)
            self._pending.add(piece)

    def guess(self, tokens: List[int], limit: int) -> tuple[list[int], int]:
        """Return at most `limit` tokens that followed the longest suffix found, and its length, at most WINDOW.

        Where several texts have it, the most frequent next token decides, then the latest text.
        """
        if self._is_closed:
            return [], 0
        query = query_of(tokens)
        places = [self._pending, *reversed(self._folder.segments)]
        for number in range(len(NGRAMS)):  # a shorter one only where the longer one never occurred
            found = _longest(places, number, query)
            if found:
                return self._following(*_most_frequent(found), limit)
        return [], 0

    def close(self) -> None:
        """Write the texts that are not on disk yet. Afterwards nothing is kept or guessed."""
        self._is_closed = True
        self._finish()
        self._folder.segments = []

    def forget(self) -> None:
        """Write nothing in a forked process: the pending texts are its parent's, which writes them."""
        self._finish.detach()

    def _following(self, matched: int, texts: TextIndex, at: int, limit: int) -> tuple[list[int], int]:
        """Read the tokens from there on, up to the end of that text, and the length of the match."""
        try:
            texts.check(at - matched, at + limit)
        except SnapshotError as error:
            self._folder.leave_out(texts, error)
            return [], 0
        following = texts.tokens[at : at + limit].tolist()
        ends = (place for place, token in enumerate(following) if not 0 <= token < self._vocab_size)
        return following[: next(ends, limit)], matched


class SegmentFolder:
    """The segments of one identity, in a directory that holds the segments of several."""

    def __init__(self, directory: Path, identity: str, limit_bytes: int) -> None:
        self._identity, self._limit_bytes = identity, limit_bytes
        self._all = BoundedFolder(directory, "texts", SEGMENTS, is_segment, limit_bytes, in_folders=True)
        name = hashlib.blake2b(f"{FORMAT} {identity}".encode(), digest_size=8).hexdigest()
        self._folder = directory / name
        self._largest = min(SEGMENT_TOKENS, max(limit_bytes // SEGMENT_PART // BYTES_PER_TOKEN, WINDOW))
        self.num_pending_tokens = min(PENDING_TOKENS, self._largest)
        self._left_out: set[Path] = set()
        self.segments: list[Segment] = []  # the oldest first
        self._look()

    def write(self, pending: PendingTexts) -> None:
        """Move the pending texts into a segment. If the disk refuses, warn once, and keep the latter half in memory."""
        if self._all.can_write:
            try:
                is_new = not self._folder.exists()
                self._folder.mkdir(parents=True, exist_ok=True)
                with _alone(self._folder / ".lock") as is_alone:
                    self._look()
                    self._merge(pending, self._to_merge(len(pending.written())) if is_alone else [])
                self._all.remove_leftovers()
                self._all.make_room()
                if is_new:
                    log.info(KEPT, self._folder, as_size(self._limit_bytes))
            except OSError as error:
                self._all.stop(error)
        pending.keep(0.0 if self._all.can_write else 0.5)
        self._look()

    def leave_out(self, texts: TextIndex, error: SnapshotError) -> None:
        """Forget a segment that is damaged."""
        for segment in self.segments:
            if segment is texts:
                self._warn(segment.path, error)
        self.segments = [segment for segment in self.segments if segment is not texts]

    def _warn(self, path: Path, error: Exception) -> None:
        if not self._left_out:
            warnings.warn(f"some texts to guess from are left out: {error}", stacklevel=2)
        self._left_out.add(path)

    def _look(self) -> None:
        """Map the segments that are new, and forget those that are gone."""
        known, found = {segment.path: segment for segment in self.segments}, []
        for path in sorted(self._folder.glob(f"*{ENDING}")):
            if path not in self._left_out and self._all.is_named(path):
                try:
                    found.append(known.get(path) or Segment(path, self._identity))
                except FileNotFoundError:
                    pass  # another process deleted it
                except (SnapshotError, OSError) as error:
                    self._warn(path, error)
        self.segments = found

    def _to_merge(self, num_tokens: int) -> list[Segment]:
        """Choose the latest segments: so many that few remain, and so few that a text is written only a few times."""
        found: list[Segment] = []
        for segment in reversed(self.segments):
            more = len(segment.tokens)
            if more > GROWTH * num_tokens or num_tokens + more > self._largest:
                break
            try:
                segment.check(0, more)
            except SnapshotError as error:
                self.leave_out(segment, error)
            else:
                num_tokens += more
                found.insert(0, segment)
        return found

    def _merge(self, pending: PendingTexts, others: List[Segment]) -> None:
        path = self._folder / f"{time.time_ns():020d}-{secrets.token_hex(4)}{ENDING}"
        texts = joined([*(np.asarray(segment.tokens) for segment in others), pending.written()])
        write_segment(path, texts, self._identity)
        for segment in others:
            segment.path.unlink(missing_ok=True)


@contextmanager
def _alone(path: Path) -> Iterator[bool]:
    """Say inside the context whether no other process is inside it."""
    with ExitStack() as stack:
        try:
            is_alone = stack.enter_context(locked(path))
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            is_alone = False
        yield is_alone


def _finish(folder: SegmentFolder, pending: PendingTexts) -> None:
    if len(pending.written()) > WINDOW:
        folder.write(pending)


def _longest(places: List[TextIndex], number: int, query: Query) -> list[tuple[int, TextIndex, int]]:
    """Find the longest matches, all of one length: (length, texts, place)."""
    longest, found, left, key = 0, list[tuple[int, TextIndex, int]](), CANDIDATES, query.keys[number]
    starts = [(texts, at) for texts in places if (at := texts.heads[number][key % texts.num_slots])]
    for place, (texts, start) in enumerate(starts):
        matches = texts.matches(number, query, start, max(left // (len(starts) - place), 1))
        left -= len(matches)
        for length, at in matches:
            if length > longest:
                longest, found = length, []
            if length == longest:
                found.append((length, texts, at))
        if longest == WINDOW:
            break
    return found


def _most_frequent(found: List[tuple[int, TextIndex, int]]) -> tuple[int, TextIndex, int]:
    """Choose the first match that is followed by the most frequent token."""
    if len(found) == 1:
        return found[0]
    following = [texts.tokens[at] for _, texts, at in found]
    counts: dict[int, int] = {}
    for token in following:
        counts[token] = counts.get(token, 0) + 1
    return found[following.index(max(counts, key=counts.__getitem__))]  # among equals, the match that was found first
