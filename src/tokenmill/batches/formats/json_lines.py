"""JSON Lines: an object in each line. Empty lines are passed over, and so is a byte order mark."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NoReturn

from tokenmill.batches.formats.table_format import TableFormat, Write
from tokenmill.batches.row import Columns, Json, Row, dumps

MARK = b"\xef\xbb\xbf"


class JSONLines(TableFormat):
    """See the module."""

    def rows(self, path: Path) -> Iterator[Row]:
        """See TableFormat."""
        number = 0
        with path.open("rb") as file:
            for line, data in enumerate(file, start=1):
                content = (data.removeprefix(MARK) if line == 1 else data).strip()
                if content:
                    yield _row(number, line, content)
                    number += 1

    def columns(self, path: Path) -> Columns | None:
        """See TableFormat."""
        return None

    @contextmanager
    def writer(self, out: BinaryIO, columns: Columns) -> Iterator[Write]:
        """See TableFormat."""

        def write(values: Json) -> None:
            out.write(f"{dumps(values, default=str)}\n".encode())

        yield write


def _row(number: int, line: int, content: bytes) -> Row:
    try:
        row = Row(number, line, json.loads(content, parse_constant=_refuse_constant))
        if isinstance(row.values, dict):
            _ = row.digest  # which has none with lone surrogates or infinite numbers, and no answer could repeat these
            return row
    except (ValueError, RecursionError) as error:
        return Row(number, line, None, f"line {line} is no JSON: {_why(error)}")
    return Row(number, line, None, f"line {line} is no JSON object")


def _why(error: Exception) -> str:
    if isinstance(error, UnicodeError):
        return "it is not UTF-8"
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")
