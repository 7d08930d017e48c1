"""A saved session: the tokens, settings and K and V rows in a snapshot file, checked before anything is made of them.

Every field of the header has its type and range checked here. Knows no engine: the caller says what must be equal.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from tokenmill.cache.pool import Pool
from tokenmill.cache.snapshot import check_compatible, read_facts, read_snapshot
from tokenmill.config import SamplingParams
from tokenmill.errors import ConfigError, SnapshotError
from tokenmill.value_reader import ValueReader, brief

__all__ = ["SavedSession", "read_session", "read_session_facts"]


@dataclass(frozen=True)
class SavedSession:
    """What a session is made of. answer_from: where the last prompt ends. tensors: name → [num_rows, …].

    is_own: the rows were computed as this engine computes, so that they may be shared.
    """

    tokens: list[int]
    num_rows: int
    answer_from: int
    sampling: SamplingParams
    notes: dict[str, Any]
    tensors: Mapping[str, Tensor]
    is_own: bool

    def rows(self, first: int, last: int) -> Mapping[str, Tensor]:
        return {name: tensor[first:last] for name, tensor in self.tensors.items()}


def read_session_facts(path: Path) -> dict[str, Any]:
    """The header, checked. SnapshotError names the field that is wrong."""
    return dict(_checked(path, read_facts(path)).values)


def read_session(path: Path, ours: Mapping[str, Any], vocab_size: int, pool: Pool, convert: bool) -> SavedSession:
    """The session in a file. SnapshotError, by field, for what is damaged, impossible, or of another model.

    `ours` is the engine's compatibility header; `pool` is where the rows will lie.
    """
    facts, rows = read_snapshot(path)
    reader = _checked(path, facts)
    is_own = check_compatible(path, facts, ours, convert)
    try:
        params = SamplingParams(**reader.inside("sampling").values)
    except ConfigError as error:
        raise SnapshotError(f"{path} is damaged: its sampling settings: {brief(str(error))}") from error
    tokens, num_rows = list(reader.token_ids("tokens", vocab_size)), facts["num_rows"]
    pool.check_rows(path, rows, num_rows, convert)
    return SavedSession(tokens, num_rows, facts["answer_from"], params, facts["notes"], rows, is_own)


def _checked(path: Path, facts: Mapping[str, Any]) -> ValueReader:
    """A reader of the header, in which every field has the right type and range."""
    reader = ValueReader(facts, f"{path} is damaged", SnapshotError, is_ours=True)
    for name in ("model", "rope", "cache_format", "dtype", "scheme", "program"):
        reader.text(name)
    for name in ("fingerprint", "shape", "versions", "sampling", "notes"):
        reader.inside(name, required=True)
    if not isinstance(reader.take("tokens"), list):
        raise reader.refuse("tokens", facts["tokens"], "a list of token ids")
    num_tokens = len(reader.token_ids("tokens"))
    reader.count("num_rows", minimum=0, maximum=max(num_tokens - 1, 0))  # the last token is what the next step feeds
    reader.count("answer_from", minimum=0, maximum=num_tokens)
    return reader
