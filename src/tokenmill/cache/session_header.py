"""The header of a saved session: every field has its type and range checked here."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenmill.cache.header import read_facts
from tokenmill.errors import SnapshotError
from tokenmill.value_reader import ValueReader


def read_session_facts(path: Path) -> dict[str, Any]:
    """Read and check the header. SnapshotError names the field that is wrong."""
    return dict(checked_header(path, read_facts(path)).values)


def checked_header(path: Path, facts: Mapping[str, Any]) -> ValueReader:
    """Make a reader of the header, in which every field has the right type and range."""
    reader = ValueReader(facts, f"{path} is damaged", SnapshotError, is_ours=True)
    for name in ("model", "rope", "cache_format", "dtype", "scheme", "program"):
        reader.text(name)
    for name in ("fingerprint", "shape", "versions", "sampling", "notes"):
        reader.inside(name, required=True)
    if not isinstance(reader.take("tokens"), list):
        raise reader.refuse("tokens", facts["tokens"], "a list of token ids")
    num_tokens = len(reader.token_ids("tokens"))
    reader.count("num_rows", minimum=0, maximum=max(num_tokens - 1, 0))  # the last token is what the next step feeds
    reader.count("first_row", minimum=0, maximum=facts["num_rows"])
    reader.count("answer_from", minimum=0, maximum=num_tokens)
    reader.count("constrained_from", 0, minimum=0, maximum=num_tokens)  # files of before constraints have none
    return reader
