"""TableFormat: how a file of rows is read, row by row, and written."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO

from tokenmill.batches.row import Columns, Json, Row, dumps

Write = Callable[[Json], None]


class TableFormat(ABC):
    """A format. Rows are read and written one after the other, so that a file may be larger than the memory."""

    @abstractmethod
    def rows(self, path: Path) -> Iterator[Row]:
        """The rows of a file. RequestError for what is no such file; a line that is no row comes as a broken one."""

    @abstractmethod
    def columns(self, path: Path) -> Columns | None:
        """The columns that the file itself names; None if only its rows do."""

    @abstractmethod
    def writer(self, out: BinaryIO, columns: Columns) -> AbstractContextManager[Write]:
        """A function that writes a row, inside this context. What it has written is whole when the context ends."""


def cell(value: Any) -> Any:
    """A value for a table whose cells hold texts: lists and objects as JSON, no value as an empty text."""
    if value is None:
        return ""
    return value if isinstance(value, str) else dumps(value, default=str)
