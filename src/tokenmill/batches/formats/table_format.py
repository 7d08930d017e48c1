"""TableFormat: how a file of rows is read, row by row, and written."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO

from tokenmill.batches.row import Columns, Json, TableRow, dumps_cell

Write = Callable[[Json], None]


class TableFormat(ABC):
    """A format. Rows are read and written one after the other, so that a file may be larger than the memory."""

    @abstractmethod
    def rows(self, path: Path) -> Iterator[TableRow]:
        """Yield the rows of a file. RequestError for any other file; a line that is no row comes as a broken one."""

    @abstractmethod
    def columns(self, path: Path) -> Columns | None:
        """Return the columns that the file itself names; None if only its rows do."""

    @abstractmethod
    def writer(self, out: BinaryIO, columns: Columns) -> AbstractContextManager[Write]:
        """Give a function that writes a row, inside this context. All is written when the context ends."""


def cell(value: Any) -> str:
    """Write a value for a table whose cells hold texts: a text, a date, or a number that JSON lacks as it is, None as
    an empty text, and anything else as JSON.
    """
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    found = dumps_cell(value)
    return str(json.loads(found)) if found.startswith('"') else found
