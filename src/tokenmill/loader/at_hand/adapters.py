"""The adapters that lie where models lie, as `tokenmill list` shows them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenmill.errors import CheckpointError
from tokenmill.hub.places.entry import FoundModel
from tokenmill.weights.adapters.outline import is_adapter, read_adapter_header


@dataclass(frozen=True)
class FoundAdapter:
    """An adapter. facts: of read_adapter_header; empty where it cannot be read, with the reason in `problem`."""

    entry: FoundModel
    facts: dict[str, Any]
    problem: str = ""


def adapter_of(entry: FoundModel) -> FoundAdapter | None:
    """Read the header of an adapter; None for an entry that is none, or cannot be read as far as to tell it."""
    assert entry.path is not None, "it has files"
    if not entry.is_adapter and not _is_file_of_adapter(entry.path):
        return None
    try:
        return FoundAdapter(entry, read_adapter_header(entry.path)[0])
    except (CheckpointError, OSError) as error:
        return FoundAdapter(entry, {}, str(error))


def _is_file_of_adapter(path: Path) -> bool:
    try:
        return path.is_file() and is_adapter(path)
    except (CheckpointError, OSError):
        return False
