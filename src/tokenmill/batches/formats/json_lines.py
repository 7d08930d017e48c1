"""JSON Lines: an object in each line. Empty lines are passed over, and so is a byte order mark."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from math import isinf
from pathlib import Path
from typing import BinaryIO

from tokenmill.batches.formats.table_format import TableFormat, Write
from tokenmill.batches.row import Columns, Json, TableRow, dumps_cell
from tokenmill.value_reader import refuse_constant

MARK = b"\xef\xbb\xbf"


class JSONLines(TableFormat):
    def rows(self, path: Path) -> Iterator[TableRow]:
        number = 0
        with path.open("rb") as file:
            for line, data in enumerate(file, start=1):
                content = (data.removeprefix(MARK) if line == 1 else data).strip()
                if content:
                    yield _row(number, line, content)
                    number += 1

    def columns(self, path: Path) -> Columns | None:
        return None

    @contextmanager
    def writer(self, out: BinaryIO, columns: Columns) -> Iterator[Write]:
        def write(values: Json) -> None:
            out.write(f"{dumps_cell(values)}\n".encode())

        yield write


def _row(number: int, line: int, content: bytes) -> TableRow:
    try:
        row = TableRow(number, line, json.loads(content, parse_constant=refuse_constant, parse_float=_finite))
        if isinstance(row.values, dict):
            _ = row.digest  # fails at lone surrogates, which no answer could repeat
            return row
    except (ValueError, RecursionError) as error:
        return TableRow(number, line, None, f"line {line} is no JSON: {_why(error)}")
    return TableRow(number, line, None, f"line {line} is no JSON object")


def _why(error: Exception) -> str:
    if isinstance(error, UnicodeError):
        return "it is not UTF-8"
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)


def _finite(text: str) -> float:
    if isinf(value := float(text)):
        raise ValueError(f"{text[:20]} is too large a number")
    return value
