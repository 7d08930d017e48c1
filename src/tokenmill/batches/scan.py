"""The first reading of an input: the number of its rows, a digest of each, its columns, ids that are there twice."""

from array import array
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np

from tokenmill.batches.formats import format_of
from tokenmill.batches.row import Columns, TableRow, joint, kind_of
from tokenmill.errors import RequestError

Digests = np.ndarray[tuple[int], np.dtype[np.uint64]]
Places = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True, eq=False)
class Index:
    """The facts of an input after one reading: a few numbers for each row, so that a million rows are no matter.

    digests: of each row. places: the place of each row's answer among all answers; equal rows share one. columns: the
    names of all rows in the order in which they came, and their kinds. broken: what is wrong with lines that are no
    rows, the first ones; num_broken: the number of all.
    """

    path: Path
    digests: Digests
    places: Places
    columns: Columns
    broken: list[str]
    num_broken: int

    @property
    def num_rows(self) -> int:
        """Rows, broken ones too."""
        return len(self.digests)

    def check(self, row: TableRow) -> None:
        """Raise RequestError for a row that was another one at the first reading."""
        if row.number >= self.num_rows or row.digest != int(self.digests[row.number]):
            raise self._changed(f"line {row.line}")

    def check_end(self, num_rows: int) -> None:
        """Raise RequestError for an input that had another number of rows at the first reading."""
        if num_rows != self.num_rows:
            raise self._changed(f"it had {self.num_rows} rows, and has {num_rows}")

    def _changed(self, how: str) -> RequestError:
        return RequestError(
            f"{self.path} was changed while it was read ({how}): give the command again, which keeps what is done"
        )


MOST_TOLD = 100


def scan(path: Path, id_field: str | None = None) -> Index:
    """Read an input once. id_field: the column whose values must differ. RequestError if two are equal, or no row is in
    it.
    """
    form = format_of(path, "input")
    digests, ids, lines = array("Q"), array("Q"), array("Q")
    columns, own = Columns(), form.columns(path)
    broken, num_broken = list[str](), 0
    for row in form.rows(path):
        digests.append(row.digest)
        if row.values is None:
            num_broken += 1
            broken += [row.problem] if num_broken <= MOST_TOLD else []
            continue
        if own is None:
            for name, value in row.values.items():
                columns[name] = joint(columns.get(name, ""), kind_of(value))
        if id_field is not None and isinstance(row.values.get(id_field), str):
            digest = blake2b(row.values[id_field].encode(), digest_size=8).digest()
            ids.append(int.from_bytes(digest))
            lines.append(row.line)
    if not digests:
        raise RequestError(f"{path} has no rows")
    _check_ids(path, id_field, np.frombuffer(ids, np.uint64), np.frombuffer(lines, np.uint64))
    found = np.frombuffer(digests, np.uint64)
    _, places = np.unique(found, return_inverse=True)
    return Index(path, found, places.astype(np.int64), own if own is not None else columns, broken, num_broken)


def _check_ids(path: Path, field: str | None, ids: Digests, lines: Digests) -> None:
    """Raise RequestError that names the first two lines with the same id."""
    order = np.argsort(ids, kind="stable")
    same = np.flatnonzero(ids[order][1:] == ids[order][:-1])
    if len(same):
        second = int(np.min(order[same + 1]))
        first = int(np.flatnonzero(ids == ids[second])[0])
        raise RequestError(
            f"{path}: lines {lines[first]} and {lines[second]} have the same {field}: each row needs one of its own"
        )
