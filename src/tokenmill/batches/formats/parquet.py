"""Parquet, through pyarrow, which is imported here when such a file is read or written (extra: `[batch]`)."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from tokenmill.batches.formats.table_format import TableFormat, Write
from tokenmill.batches.row import KINDS, Columns, Json, TableRow, dumps_cell
from tokenmill.errors import RequestError, TokenmillError

READ, WRITTEN = 256, 4096  # rows at a time; the second is the size of a row group


class Parquet(TableFormat):
    def rows(self, path: Path) -> Iterator[TableRow]:
        number = 0
        with _opened(path) as file:
            for batch in file.iter_batches(READ):
                for values in batch.to_pylist():
                    yield TableRow(number, number + 1, values)
                    number += 1

    def columns(self, path: Path) -> Columns | None:
        with _opened(path) as file:
            names = file.schema_arrow.names
            if twice := [name for name in names if names.count(name) > 1]:
                raise RequestError(f"{path} has two columns named {twice[0]!r}: give each a name of its own")
            return {field.name: field.type for field in file.schema_arrow}

    @contextmanager
    def writer(self, out: BinaryIO, columns: Columns) -> Iterator[Write]:
        arrow, parquet = _pyarrow()
        schema = schema_of(columns)
        as_json = [name for name, kind in columns.items() if kind == "json"]
        waiting: list[Json] = []
        with parquet.ParquetWriter(out, schema) as writer:

            def flush() -> None:
                writer.write_table(arrow.Table.from_pylist(waiting, schema=schema))
                waiting.clear()

            def write(values: Json) -> None:
                waiting.append(values | {name: _as_json(values.get(name)) for name in as_json})
                if len(waiting) == WRITTEN:
                    flush()

            yield write
            flush()


def schema_of(columns: Columns) -> Any:
    """Convert the columns to a schema of pyarrow."""
    arrow, _ = _pyarrow()
    return arrow.schema([(name, _type(arrow, kind)) for name, kind in columns.items()])


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    _, parquet = _pyarrow()
    try:
        with parquet.ParquetFile(path) as file:
            yield file
    except ValueError as error:  # ArrowInvalid is one, and so is what Python has no value for
        raise RequestError(f"{path} cannot be read as Parquet: {error}") from None


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow  # noqa: PLC0415  (an extra that only Parquet needs)
        import pyarrow.parquet  # noqa: PLC0415
    except ModuleNotFoundError:
        raise TokenmillError("Parquet needs pyarrow: pip install 'tokenmill[batch]'") from None
    return pyarrow, pyarrow.parquet


def _type(arrow: Any, kind: Any) -> Any:
    """Find the data type of a column; a kind after "list of " gives a list."""
    if not isinstance(kind, str):
        return kind
    if kind.startswith("list of "):
        return arrow.list_(arrow.field("element", _type(arrow, kind.removeprefix("list of "))))
    assert kind in KINDS or not kind
    whole = arrow.int64()
    return {"int": whole, "long": whole, "float": arrow.float64(), "bool": arrow.bool_()}.get(kind, arrow.string())


def _as_json(value: Any) -> str | None:
    return None if value is None else dumps_cell(value)
