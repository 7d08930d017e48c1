"""The formats of tables that batches read and write, by the suffix of the file's name."""

from pathlib import Path

from tokenmill.batches.formats.csv_file import CSVFile
from tokenmill.batches.formats.json_lines import JSONLines
from tokenmill.batches.formats.parquet import Parquet
from tokenmill.batches.formats.table_format import TableFormat
from tokenmill.errors import ConfigError

FORMATS: dict[str, TableFormat] = {".jsonl": JSONLines(), ".parquet": Parquet(), ".csv": CSVFile()}


def format_of(path: Path, name: str) -> TableFormat:
    """Find the format that a path's suffix names; ConfigError otherwise. name: of the path's setting."""
    if (found := FORMATS.get(path.suffix)) is None:
        raise ConfigError(name, str(path), f"a name that ends with {', '.join(FORMATS)}")
    return found
