"""The output: written whole, in the order of the input, when every answer is there; and told from other files. Shards
of it, which several runs write, and which `join` makes one file of.
"""

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from tokenmill.batches.formats import format_of
from tokenmill.batches.journal import not_written
from tokenmill.batches.row import Columns, Json, TableRow
from tokenmill.batches.scan import Index
from tokenmill.batches.task import Task, digest_in
from tokenmill.errors import ConfigError, RequestError
from tokenmill.memory.atomic_file import writing

WAY_OUT = "give another output, or move this file away"


MOST = 10_000


@dataclass(frozen=True)
class Shard:
    """A shard: row r, counted from 0, belongs to shard r mod n + 1, whatever the rows are and however many there are.
    number: from 1 on, of `count` shards. The one shard of one is all rows.
    """

    number: int = 1
    count: int = 1

    def has(self, row: int) -> bool:
        """Tell whether a row, by its number, belongs to it."""
        return row % self.count == self.number - 1

    def path(self, target: Path) -> Path:
        """Return the file of this shard of an output: out-2-of-4.jsonl."""
        return target if self.count == 1 else target.with_stem(f"{target.stem}-{self.number}-of-{self.count}")


def parse_shard(text: str) -> Shard:
    """Parse a shard as people write it, 2/4 for the second of four."""
    found = re.fullmatch(r"(\d{1,5})/(\d{1,5})", text)
    number, count = map(int, found.groups()) if found else (0, 0)
    if not 1 <= number <= count <= MOST:
        raise ConfigError("shard", text, f"i/n with i from 1 to n, as 2/4 for the second of four, and n at most {MOST}")
    return Shard(number, count)


def rows_of(index: Index, shard: Shard) -> Iterator[TableRow]:
    """Read the rows of a shard again. RequestError where they are not the rows of the first reading."""
    num_read = 0
    try:
        for row in format_of(index.path, "input").rows(index.path):
            num_read += 1
            if shard.has(row.number):
                index.check(row)
                yield row
    except OSError as error:
        raise RequestError(f"{index.path} cannot be read: {error.strerror or error}; what is done is kept") from None
    index.check_end(num_read)


def write(target: Path, columns: Columns, rows: Iterator[Json]) -> None:
    """Write all rows, or leave everything as it was. A symbolic link stays one: what it points to is written."""
    target = Path(os.path.realpath(target))
    try:
        with writing(target) as out, format_of(target, "output").writer(out, columns) as put:
            for values in rows:
                put(values)
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # so that the file has its name before anything that could replace it is deleted
        finally:
            os.close(folder)
    except OSError as error:
        raise not_written(target, error) from None


def run_of_output(target: Path, index: Index, shard: Shard, task: Task) -> str | None:
    """Read the digits of the run that has written an output, if there is one. RequestError for any other file there,
    and for an output of other rows.
    """
    if not target.exists():
        return None
    if not target.is_file():
        raise RequestError(f"{target} is no file: {WAY_OUT}")
    wanted = (int(digest) for digest in index.digests[shard.number - 1 :: shard.count])
    runs = set[str]()
    try:
        for written, digest in zip_longest(format_of(target, "output").rows(target), wanted):
            key = None if written is None or written.values is None else task.key_of(written.values)
            if digest is None or digest_in(key) != digest:
                raise RequestError(f"{target} exists, and its rows do not match {index.path}: {WAY_OUT}")
            runs.add(str(key)[16:])
    except OSError as error:
        raise RequestError(f"{target} cannot be read: {error.strerror}") from None
    if len(runs) > 1:
        raise RequestError(f"{target} holds rows of several runs with different settings: {WAY_OUT}")
    return runs.pop() if runs else None  # a shard without rows


def join(index: Index, target: Path, num_shards: int, task: Task, told: Callable[[int], None]) -> None:
    """Write one file of the files of all shards, each row in its place. RequestError where they are not of one run."""
    paths = [Shard(number, num_shards).path(target) for number in range(1, num_shards + 1)]
    if missing := [str(path) for path in paths if not path.exists()]:
        raise RequestError(f"there is no {', '.join(missing)}: join needs the files of all {num_shards} shards")
    shards = [Shard(number, num_shards) for number in range(1, num_shards + 1)]
    filled = [(path, shard) for path, shard in zip(paths, shards, strict=True) if shard.number <= index.num_rows]
    runs = {path: run_of_output(path, index, shard, task) for path, shard in filled}
    if len(set(runs.values())) > 1:
        first, other = next((one, two) for one in runs for two in runs if runs[one] != runs[two])
        raise RequestError(f"{first} and {other} are of runs with different models, versions or settings")
    if target.exists():
        if run_of_output(target, index, Shard(), task) != next(iter(runs.values())):
            raise RequestError(f"{target} exists, and comes from another run: {WAY_OUT}")
        return
    form = format_of(target, "output")
    read = [form.rows(path) for path, _ in filled]

    def rows() -> Iterator[Json]:
        for number in range(index.num_rows):
            values = next(read[number % num_shards]).values
            assert values is not None, "it was read before"
            told(number + 1)
            yield values

    columns = form.columns(paths[0])
    write(target, columns if columns is not None else task.columns(index.columns), rows())
