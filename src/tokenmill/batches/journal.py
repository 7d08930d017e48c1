"""The journal of a batch: every answer that is there, appended as soon as it is, in a file beside the output.

The first line is a header with the settings that the answers depend on. Each record is a line of its own: a checksum,
the digest of its row, the answer as JSON. A record that was cut, as by a full disk or a process that was killed, is
removed when the journal is opened; one that is damaged is passed over, and its row computed again. So whatever happens
to a process, the next one finds every finished answer.
"""

import json
import os
import time
import zlib
from array import array
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from tokenmill.batches.row import dumps
from tokenmill.batches.scan import Digests, Index, Places
from tokenmill.errors import RequestError, TokenmillError
from tokenmill.memory.atomic_file import seal, unseal

KIND, FORMAT = "journal of tokenmill batch", 1
SYNC_S = 1.0  # a machine that fails loses the answers of this time; a killed process loses none
SHARE = 0.01  # of the time that may go into syncing: a slow disk is synced less often
HEADER_BYTES = 1 << 20
DIGEST = slice(9, 25)  # of a record, after the checksum and a space


class OtherRun(RequestError):
    """A journal is of a run with other settings."""


def journal_path(target: Path) -> Path:
    """Return the path of the journal of an output."""
    return target.with_name(f"{target.name}.journal")


class Journal:
    """An open journal, which belongs to this process: `file` is locked.

    offsets: for each place of an Index, where its record begins; -1 where there is none.
    """

    def __init__(self, path: Path, file: IO[bytes], index: Index, facts: Mapping[str, Any]) -> None:
        """Open a journal that goes on, or begin one. facts: what its answers depend on; RequestError for others."""
        self.path, self._file = path, file
        self.num_damaged = 0
        self.offsets: Places = np.full(int(index.places.max()) + 1, -1, np.int64)
        self._reader = path.open("rb")
        self._sync_at_s = time.monotonic() + SYNC_S
        self._is_synced = True
        try:
            if not self._begin(facts):
                self._check_header(facts)
                self._end = self._read_records(index)
                os.ftruncate(file.fileno(), self._end)
        except BaseException:
            self.close()
            raise

    def append(self, place: int, digest: int, answer: Any) -> None:
        """Write the answer of a row. TokenmillError where it cannot be written; what was there before is kept."""
        content = f"{digest:016x} {dumps(answer)}".encode()
        record = b"%08x %s\n" % (zlib.crc32(content), content)
        self._write(record)
        self.offsets[place] = self._end
        self._end += len(record)
        self._is_synced = False
        if time.monotonic() >= self._sync_at_s:
            self.sync()

    def read(self, place: int) -> Any:
        """Return the answer of a row that has one."""
        self._reader.seek(int(self.offsets[place]))
        checked = _content(self._reader.readline())
        if checked is None:
            raise TokenmillError(f"{self.path} was changed while it was read: give the command again")
        return json.loads(checked[17:])

    def sync(self) -> None:
        """Have everything on the disk."""
        begun_s = time.monotonic()
        if not self._is_synced:
            with _space_errors(self.path):
                os.fsync(self._file.fileno())
            self._is_synced = True
        now_s = time.monotonic()
        self._sync_at_s = now_s + max(SYNC_S, (now_s - begun_s) / SHARE)

    def close(self) -> None:
        """Close it; the lock is its owner's."""
        self._reader.close()

    def remove(self) -> None:
        """Delete it: it was opened, so its header was ours."""
        self.path.unlink()
        self._is_synced = True  # nobody reads it any more

    def _begin(self, facts: Mapping[str, Any]) -> bool:
        """Write the header of a journal that is empty, or whose header was cut."""
        header = f"{seal({'kind': KIND, **facts}, FORMAT)}\n".encode()
        there = self._reader.read(len(header))
        if there != header and header.startswith(there):
            os.ftruncate(self._file.fileno(), 0)
            self._end = 0
            self._write(header)
            self._end = len(header)
            self._is_synced = False
            self.sync()
            self._reader.seek(len(header))
            return True
        self._reader.seek(0)
        return False

    def _check_header(self, facts: Mapping[str, Any]) -> None:
        advice = "delete it to begin anew, or give another output"
        try:
            found = unseal(self._reader.readline(HEADER_BYTES), FORMAT)
        except ValueError as error:
            raise RequestError(f"{self.path} {error}; {advice}") from None
        if found.get("kind") != KIND:
            raise RequestError(f"{self.path} is no {KIND}: {advice}")
        wanted = json.loads(json.dumps(dict(facts)))
        if other := [name for name in wanted if found.get(name) != wanted[name]]:
            told = "; ".join(_difference(name, found.get(name), wanted[name]) for name in other)
            raise OtherRun(f"{self.path} is of a run with other settings ({told}): give those, or {advice}")

    def _read_records(self, index: Index) -> int:
        """Find the records, and return the end of the last whole one."""
        digests, offsets = array("Q"), array("q")
        end = offset = self._reader.tell()
        for record in self._reader:
            content = _content(record)
            if content is not None:
                digests.append(int(content[:16], 16))
                offsets.append(offset)
            else:
                self.num_damaged += record.endswith(b"\n")
            offset += len(record)
            end = offset if record.endswith(b"\n") else end
        self._find(np.frombuffer(digests, np.uint64), np.frombuffer(offsets, np.int64), index)
        return end

    def _find(self, digests: Digests, offsets: Places, index: Index) -> None:
        if not len(digests):
            return
        order = np.argsort(digests, kind="stable")
        at = np.minimum(np.searchsorted(digests[order], index.digests), len(digests) - 1)
        found = digests[order][at] == index.digests
        self.offsets[index.places[found]] = offsets[order][at[found]]

    def _write(self, data: bytes) -> None:
        """Append all of it, or nothing."""
        number, done = self._file.fileno(), 0
        try:
            with _space_errors(self.path):
                while done < len(data):
                    done += os.write(number, data[done:])
        except TokenmillError:
            os.ftruncate(number, self._end)
            raise


@contextmanager
def _space_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise not_written(path, error) from None


class NotWritten(TokenmillError):
    """A file cannot be written, for a reason that may go away: the run can go on then."""


def not_written(path: Path, error: OSError) -> NotWritten:
    """Make the error for a file that the system does not let us write."""
    return NotWritten(
        f"{path} cannot be written: {error.strerror or error}; what is done is kept in the journal, so make room and "
        "give the same command again"
    )


def _content(record: bytes) -> bytes | None:
    """Return a record without its checksum; None if it is damaged or cut."""
    try:
        is_sound = record.endswith(b"\n") and int(record[:8], 16) == zlib.crc32(record[9:-1])
        int(record[DIGEST], 16)
    except ValueError:
        return None
    return record[9:-1] if is_sound else None


def _difference(name: str, then: Any, now: Any) -> str:
    """Say how two values of a fact differ, by the names inside it where it has some."""
    if isinstance(then, dict) and isinstance(now, dict):
        names = [each for each in {**then, **now} if then.get(each) != now.get(each)]
        return ", ".join(_difference(each, then.get(each), now.get(each)) for each in names)
    return f"{name} was {dumps(then)[:100]}, now {dumps(now)[:100]}"
