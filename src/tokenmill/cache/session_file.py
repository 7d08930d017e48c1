"""A saved session: the tokens, settings and K and V rows in a snapshot file, checked before anything is made of them.

Nothing here knows an engine: the caller says which fields must be equal.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tokenmill.cache.header import check_compatible, checked_header
from tokenmill.cache.pool import STATES, Pool
from tokenmill.cache.snapshot import read_snapshot
from tokenmill.errors import ConfigError, SnapshotError
from tokenmill.schedule.keeps import RowSource
from tokenmill.settings.sampling_params import SamplingParams
from tokenmill.value_reader import brief


@dataclass(frozen=True)
class SavedSession:
    """The content of a saved session's file. answer_from: where the last prompt ends. constrained_from: where the text
    begins that the last constraint is about, if not with the answer. tensors: name → [num_rows - first_row, …]. states:
    name → [1, …], after num_rows tokens.

    first_row: rows before it are not in the file: they lie before every window. is_own: the rows were computed as this
    engine computes, so that they may be shared.
    """

    tokens: list[int]
    first_row: int
    num_rows: int
    answer_from: int
    constrained_from: int
    sampling: SamplingParams
    notes: dict[str, Any]
    tensors: Mapping[str, Tensor]
    states: Mapping[str, Tensor]
    is_own: bool

    @property
    def sources(self) -> tuple[RowSource, RowSource]:
        """Return the readers of the rows and of the states."""
        return self.rows, lambda first, last: self.states

    def rows(self, first: int, last: int) -> Mapping[str, Tensor]:
        """Read rows [first, last), with zeros in the place of rows that the file does not have."""
        begin = max(first - self.first_row, 0)
        found = {name: tensor[begin : last - self.first_row] for name, tensor in self.tensors.items()}
        if (missing := self.first_row - first) > 0:
            zeros = {name: tensor.new_zeros(missing, *tensor.shape[1:]) for name, tensor in found.items()}
            found = {name: torch.cat([zeros[name], tensor]) for name, tensor in found.items()}
        return found


def read_session(path: Path, ours: Mapping[str, Any], vocab_size: int, pool: Pool, convert: bool) -> SavedSession:
    """Read the session in a file. SnapshotError, by field, for a file that is damaged, impossible, or of another model.

    `ours` is the engine's compatibility header; `pool` is where the rows will lie.
    """
    facts, found = read_snapshot(path)
    rows = dict(found)
    reader = checked_header(path, facts)
    is_own = check_compatible(path, facts, ours, convert)
    # A setting that is null was not set, and may be one that only an earlier version had.
    given = {name: value for name, value in reader.inside("sampling").values.items() if value is not None}
    try:
        params = SamplingParams(**given)
    except ConfigError as error:
        raise SnapshotError(f"{path} is damaged: its sampling settings: {brief(str(error))}") from error
    tokens, first_row, num_rows = list(reader.token_ids("tokens", vocab_size)), facts["first_row"], facts["num_rows"]
    pool.check_rows(path, rows, num_rows - first_row, min(num_rows, 1), convert)
    states = {name: rows.pop(name) for name in pool.names(STATES)}
    begins = facts["answer_from"], facts.get("constrained_from") or 0
    return SavedSession(tokens, first_row, num_rows, *begins, params, facts["notes"], rows, states, is_own)
