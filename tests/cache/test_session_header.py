"""Every field of a saved session's header: its type, and what it may hold."""

import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tokenmill.cache.header import FORMAT, KEY, checked_header, read_session_facts
from tokenmill.errors import SnapshotError
from tokenmill.memory.atomic_file import seal

GOOD = {
    **dict.fromkeys(("model", "rope", "cache_format", "dtype", "scheme", "program"), "text"),
    **{name: {} for name in ("fingerprint", "shape", "versions", "sampling", "notes")},
    "tokens": [5, 6, 7],
    "first_row": 1,
    "num_rows": 2,
    "answer_from": 3,
}


def check(**changes):
    return checked_header(Path("x.kv"), {**GOOD, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"first_row": 0, "num_rows": 0, "answer_from": 0},
        {"tokens": [], "first_row": 0, "num_rows": 0, "answer_from": 0},
        {"tokens": [1], "first_row": 0, "num_rows": 0, "answer_from": 1},
        {"first_row": 2},
        {"unknown": 1},
    ],
)
def test_what_is_allowed(changes):
    assert check(**changes).values == {**GOOD, **changes}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(
            (name, value)
            for name in ("model", "rope", "cache_format", "dtype", "scheme", "program")
            for value in (1, None)
        ),
        *(
            (name, value)
            for name in ("fingerprint", "shape", "versions", "sampling", "notes")
            for value in ([], "x", None)
        ),
        *(("tokens", value) for value in (5, None, "5", [-1], ["5"], [1.5], [True])),
        *(("first_row", value) for value in (-1, 3, "2", None, 1.5, True)),
        *(("num_rows", value) for value in (-1, 3, "2", None, 1.5, True)),
        *(("answer_from", value) for value in (-1, 4, "2", None, 1.5, True)),
    ],
)
def test_what_is_damaged_is_named(field, value):
    with pytest.raises(SnapshotError, match=f"^x.kv is damaged.*{field}"):
        check(**{field: value})


@pytest.mark.parametrize("field", GOOD)
def test_every_field_is_needed(field):
    with pytest.raises(SnapshotError, match=field):
        checked_header(Path("x.kv"), {name: value for name, value in GOOD.items() if name != field})


def test_without_tokens_there_are_no_rows():
    with pytest.raises(SnapshotError, match="num_rows"):
        check(tokens=[], num_rows=1, answer_from=0)


def test_the_header_of_a_file(tmp_path):
    path = tmp_path / "x.kv"
    save_file({"x": torch.zeros(1)}, path, metadata={KEY: seal(GOOD, FORMAT)})
    assert read_session_facts(path) == {**GOOD, "format": FORMAT, "byteorder": sys.byteorder}
