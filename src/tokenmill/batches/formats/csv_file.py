"""CSV in UTF-8 with a line of names: every value is a text. An empty cell is an empty text."""

import csv
import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from tokenmill.batches.formats.table_format import TableFormat, Write, cell
from tokenmill.batches.row import Columns, TableRow
from tokenmill.errors import RequestError

_END = "\r\n"
LONGEST_CELL = 64_000_000  # characters
_limit = threading.Lock()


class CsvReader(Protocol):
    """The interface of what csv.reader returns."""

    line_num: int

    def __next__(self) -> list[str]: ...
    def __iter__(self) -> Iterator[list[str]]: ...


class CSVFile(TableFormat):
    def rows(self, path: Path) -> Iterator[TableRow]:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            names = _header(path, reader)
            number = 0
            while (cells := _next(path, reader)) is not None:
                if cells:
                    yield _row(number, reader.line_num, names, cells)
                    number += 1

    def columns(self, path: Path) -> Columns | None:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return dict.fromkeys(_header(path, csv.reader(file, strict=True)), "text")

    @contextmanager
    def writer(self, out: BinaryIO, columns: Columns) -> Iterator[Write]:
        text = io.TextIOWrapper(out, encoding="utf-8", newline="", write_through=False)
        writer = csv.writer(_Lines(text), lineterminator=_END)
        writer.writerow(columns)
        try:
            yield lambda values: writer.writerow([cell(values.get(name)) for name in columns])
            text.flush()
        finally:
            text.detach()


@dataclass(frozen=True)
class _Lines:
    """An output for rows as csv.writer ends them, which ends them as everyone does. csv.writer quotes the characters
    that end its rows, and a carriage return inside a cell has to be quoted.
    """

    out: io.TextIOWrapper

    def write(self, row: str) -> int:
        return self.out.write(f"{row.removesuffix(_END)}\n")


def _header(path: Path, reader: CsvReader) -> list[str]:
    names = _next(path, reader)
    if not names:
        raise RequestError(f"{path} is empty: a line with the names of columns comes first")
    if twice := [name for name in names if names.count(name) > 1]:
        raise RequestError(f"{path} has two columns named {twice[0]!r}: give each a name of its own")
    return names


def _next(path: Path, reader: CsvReader) -> list[str] | None:
    """Read the cells of the next line; None at the end. Long cells are read too, and the process's own limit stays."""
    with _limit:
        before = csv.field_size_limit(LONGEST_CELL)
        try:
            return next(reader, None)
        except csv.Error as error:
            raise RequestError(f"{path}, line {reader.line_num} cannot be read as CSV: {error}") from None
        except UnicodeDecodeError:
            raise RequestError(f"{path} is not UTF-8, after line {reader.line_num}") from None
        finally:
            csv.field_size_limit(before)


def _row(number: int, line: int, names: list[str], cells: list[str]) -> TableRow:
    if len(cells) != len(names):
        return TableRow(number, line, None, f"line {line} has {len(cells)} cells, and there are {len(names)} columns")
    return TableRow(number, line, dict(zip(names, cells, strict=True)))
