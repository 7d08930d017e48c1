"""Files and batches of clients on disk: for each a record in JSON, written whole, and beside a file's its content.

Each key has a folder of its own, in which there is one for files and one for batches. Nothing is kept in memory, so
what a client sees is what the next start of the server finds.
"""

import logging
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from tokenmill.memory.atomic_file import seal, unseal, writing
from tokenmill.serve.http.errors import ApiError, Json

FORMAT = 1
ID = re.compile(r"(file-|batch_)[0-9a-f]{24}")
MOST_LISTED, LISTED = 100, 20  # of a page; by default
NOT_FOUND = 404

log = logging.getLogger(__name__)


class Records:
    """The records of one kind. prefix: of their ids. Its methods may be called in any thread."""

    def __init__(self, root: Path, name: str, prefix: str) -> None:
        self._root, self._name, self.prefix = root, name, prefix

    def new_id(self) -> str:
        """Make an id that no record has; ids sort in the order in which they were made."""
        return f"{self.prefix}{time.time_ns() // 1000:014x}{secrets.token_hex(5)}"

    def folder(self, tenant: str) -> Path:
        """Return the folder of a client's records, which is made."""
        folder = self._root / tenant / self._name
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return folder

    def path(self, tenant: str, record: str) -> Path:
        """Return the place of a record. ApiError 404 for a wrong id of this kind."""
        if not (ID.fullmatch(record) and record.startswith(self.prefix)):
            raise self._absent(record)
        return self.folder(tenant) / f"{record}.json"

    def write(self, tenant: str, values: Json) -> None:
        """Keep a record, in the place of the one of its id."""
        path = self.path(tenant, values["id"])
        with no_space(), writing(path) as out:
            out.write(seal({"record": values}, FORMAT).encode())

    def read(self, tenant: str, record: str) -> Json:
        """Read a record. ApiError 404 if there is none."""
        try:
            return dict(unseal(self.path(tenant, record).read_bytes(), FORMAT)["record"])
        except FileNotFoundError:
            raise self._absent(record) from None
        except ValueError as error:
            raise ApiError(500, f"the record of {record} {error}") from None

    def all(self, tenant: str) -> list[Json]:
        """Read all records of a client, the newest first. A damaged one is logged and left out, and so is one that is
        deleted meanwhile: the others can be used.
        """
        names = [path.stem for path in self.folder(tenant).glob(f"{self.prefix}*.json")]
        found = []
        for name in filter(ID.fullmatch, names):
            try:
                found.append(self.read(tenant, name))
            except ApiError as error:
                if error.status != NOT_FOUND:
                    log.warning("%s", error.message)
        return sorted(found, key=lambda each: str(each["id"]), reverse=True)

    def tenants(self) -> Iterator[str]:
        """Yield the clients that have a folder."""
        if self._root.is_dir():
            yield from sorted(path.name for path in self._root.iterdir() if path.is_dir())

    def _absent(self, record: str) -> ApiError:
        return ApiError(404, f"there is no {self._name.removesuffix('s').removesuffix('e')} {record[:100]!r}", "id")


class StoredFiles(Records):
    """The files of clients, with their content. max_bytes: of all of them together."""

    def __init__(self, root: Path, max_bytes: int) -> None:
        super().__init__(root, "files", "file-")
        self._max_bytes = max_bytes

    def content(self, tenant: str, record: str) -> Path:
        """Return the content of a file, which may not be there."""
        return self.path(tenant, record).with_suffix(".jsonl")

    def add(self, tenant: str, source: BinaryIO, filename: str, purpose: str, record: str | None = None) -> Json:
        """Keep what a file holds. ApiError 507 where there is no room for it. record: the id of an output, for which
        there is room as long as the disk has it.
        """
        is_limited = record is None
        record = self.new_id() if record is None else record
        path = self.content(tenant, record)
        size = source.seek(0, 2)
        source.seek(0)
        if is_limited and (kept := self.num_bytes()) + size > self._max_bytes:
            message = f"{size:,} bytes are too many: {kept:,} of {self._max_bytes:,} are used, so delete other files"
            raise ApiError(507, message, "file", "not_saved")
        with no_space(), writing(path) as out:
            shutil.copyfileobj(source, out, 1 << 20)
        values = {
            "id": record,
            "object": "file",
            "bytes": size,
            "created_at": int(time.time()),
            "expires_at": None,
            "filename": filename[:255],
            "purpose": purpose,
            "status": "processed",
        }
        self.write(tenant, values)
        return values

    def delete(self, tenant: str, record: str) -> None:
        """Forget a file."""
        self.read(tenant, record)  # which raises for one that there is not
        self.path(tenant, record).unlink(missing_ok=True)
        self.content(tenant, record).unlink(missing_ok=True)

    def num_bytes(self) -> int:
        """Return the size of everything that is kept for all clients."""
        return sum(path.stat().st_size for path in self._root.rglob("*") if path.is_file())


@contextmanager
def no_space() -> Iterator[None]:
    """Raise what the system says against writing as an ApiError 507."""
    try:
        yield
    except OSError as error:
        raise ApiError(507, f"it cannot be written: {error.strerror or error}", code="not_saved") from None


def page_of(records: list[Json], after: str | None, limit: int) -> Json:
    """Make a page of records, as OpenAI's API has it, from behind the id `after`."""
    ids = [each["id"] for each in records]
    if after is not None and after not in ids:
        raise ApiError(404, f"there is no {after[:100]!r} to list after", "after")
    first = 0 if after is None else ids.index(after) + 1
    data = records[first : first + limit]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": first + limit < len(records),
    }
