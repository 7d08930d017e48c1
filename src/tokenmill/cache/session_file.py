"""A saved session: the tokens, settings and K and V rows in a snapshot file, checked before anything is made of them.

Every field of the header has its type and range checked here, the rows their names, shapes and types; then the
compatibility header is compared with the engine's own. Knows no engine: the caller says what the rows must be like.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tokenmill.cache.compatibility import check_compatible
from tokenmill.cache.snapshot import read_facts, read_snapshot
from tokenmill.config import SamplingParams, from_keywords
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
        """See RowSource."""
        return {name: tensor[first:last] for name, tensor in self.tensors.items()}


def read_session_facts(path: Path) -> dict[str, Any]:
    """The header, every field of the right type. SnapshotError names the field that is not."""
    facts = read_facts(path)
    _check_types(path, facts)
    return facts


def read_session(
    path: Path,
    ours: Mapping[str, Any],
    vocab_size: int,
    layout: Mapping[str, tuple[tuple[int, ...], torch.dtype]],
    convert: bool = False,
) -> SavedSession:
    """The session in a file. SnapshotError, by field, for what is damaged, impossible, or of another model.

    `ours` is the engine's compatibility header; `layout` gives shape and dtype of one row under each name.
    """
    snapshot = read_snapshot(path)
    facts = snapshot.facts
    _check_types(path, facts)
    is_own = check_compatible(path, facts, ours, convert)
    reader = ValueReader(facts, f"{path} is damaged", SnapshotError)
    tokens = reader.token_ids("tokens", vocab_size)
    # The last token has no row: it is what the next step feeds.
    num_rows = reader.count("num_rows", minimum=0, maximum=max(len(tokens) - 1, 0))
    answer_from = reader.count("answer_from", minimum=0, maximum=len(tokens))
    _check_rows(path, snapshot.rows, num_rows, layout, convert)
    notes = dict(reader.inside("notes").values)
    return SavedSession(list(tokens), num_rows, answer_from, _sampling(path, reader), notes, snapshot.rows, is_own)


def _check_types(path: Path, facts: Mapping[str, Any]) -> None:
    reader = ValueReader(facts, f"{path} is damaged", SnapshotError)
    for name in ("model", "rope", "cache_format", "dtype", "scheme", "program"):
        reader.text(name)
    for name in ("fingerprint", "shape", "versions", "sampling", "notes"):
        ValueReader(reader.take(name), f"{path} is damaged: {name}", SnapshotError)
    if not isinstance(reader.take("tokens"), list):
        raise reader.refuse("tokens", facts["tokens"], "a list of token ids")
    reader.token_ids("tokens")
    for name in ("num_rows", "answer_from"):
        reader.count(name, minimum=0)


def _check_rows(
    path: Path,
    rows: Mapping[str, Tensor],
    num_rows: int,
    layout: Mapping[str, tuple[tuple[int, ...], torch.dtype]],
    convert: bool,
) -> None:
    if set(rows) != set(layout):
        odd = brief(sorted(set(rows) ^ set(layout)))
        raise SnapshotError(f"{path} is damaged: these of its tensors are missing or unknown: {odd}")
    for name, (shape, dtype) in layout.items():
        tensor = rows[name]
        if tuple(tensor.shape) != (num_rows, *shape):
            raise SnapshotError(
                f"{path} is damaged: {name} is {list(tensor.shape)}, and its header says {[num_rows, *shape]}"
            )
        if tensor.dtype != dtype and not (convert and tensor.is_floating_point() and dtype.is_floating_point):
            raise SnapshotError(f"{path} is damaged: {name} holds {tensor.dtype}, which should be {dtype}")


def _sampling(path: Path, reader: ValueReader) -> SamplingParams:
    saved = dict(reader.inside("sampling").values)
    bias = ValueReader(saved.get("logit_bias", {}), f"{path} is damaged: logit_bias", SnapshotError).values
    if not all(token.isdecimal() and token.isascii() and len(token) < 20 for token in bias):
        raise reader.refuse("sampling", saved, "token ids in logit_bias")
    saved["logit_bias"] = {int(token): amount for token, amount in bias.items()}  # JSON's keys are texts
    try:
        params: SamplingParams = from_keywords(SamplingParams, saved)
    except ConfigError as error:
        raise SnapshotError(f"{path} is damaged: its sampling settings: {brief(str(error))}") from error
    return params
