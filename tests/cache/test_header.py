"""Headers of saved rows: how a file of ours begins, and which fields must be equal for what."""

import json
import os
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tokenmill.cache.header import (
    FORMAT,
    FRONT,
    KEY,
    SERIALISED,
    begins_with,
    check_compatible,
    read_facts,
    shared_fields,
)
from tokenmill.errors import SnapshotError
from tokenmill.memory.atomic_file import seal

OURS = {
    "model": "m",
    "versions": {"torch": "1"},
    "fingerprint": {"a": "1", "b": "2"},
    "shape": {"layers": 2},
    "rope": "Rope()",
    "cache_format": "dense",
    "dtype": "float32",
    "scheme": "dense",
    "program": "native",
}
FILE = Path("x.kv")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"12345678front, and more", True),
        (b"12345678front", True),
        (b"12345678other one", False),
        (b"12345678fron", False),
        (b"1234567front", False),
        (b"123456789front", False),
        (b"front", False),
        (b"", False),
    ],
)
def test_how_a_file_begins(tmp_path, content, expected):
    (tmp_path / "x").write_bytes(content)
    assert begins_with(tmp_path / "x", b"front") is expected


def test_what_is_no_file_begins_with_nothing(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for ever
    (tmp_path / "file").write_bytes(b"12345678front")
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "nothing"):
        assert begins_with(path, b"front") is False

    def refuse(*_):
        raise PermissionError(13, "no")

    monkeypatch.setattr(Path, "open", refuse)
    assert begins_with(tmp_path / "file", b"front") is False


def test_the_fronts_are_those_of_the_two_writers(tmp_path):
    save_file({"x": torch.zeros(1)}, tmp_path / "x", metadata={KEY: "header"})
    assert begins_with(tmp_path / "x", SERIALISED) and not begins_with(tmp_path / "x", FRONT)
    text = json.dumps({"__metadata__": {KEY: json.dumps({"facts": {"a": 1}, "checksum": 2})}}).encode()
    assert text.startswith(FRONT) and FRONT.decode().endswith('{\\"facts\\": {')


def test_a_header_is_read(tmp_path):
    save_file({"x": torch.zeros(1)}, tmp_path / "x", metadata={KEY: seal({"a": 1}, FORMAT)})
    assert read_facts(tmp_path / "x") == {"a": 1, "format": FORMAT, "byteorder": sys.byteorder}
    assert FORMAT == 3  # files of today are read by tomorrow's tokenmill, or refused by their number


def test_what_has_no_header_is_refused_by_what_it_is(tmp_path):
    def refused(path):
        with pytest.raises(SnapshotError) as error:
            read_facts(path)
        assert str(error.value).startswith(str(path))
        return str(error.value).removeprefix(f"{path} ")

    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "text").write_text("text")
    save_file({"x": torch.zeros(1)}, tmp_path / "none")
    save_file({"x": torch.zeros(1)}, tmp_path / "other", metadata={"format": "pt"})
    save_file({"x": torch.zeros(1)}, tmp_path / "old", metadata={KEY: seal({}, FORMAT - 1)})
    assert refused(tmp_path) == "is a directory, not a snapshot"
    assert refused(tmp_path / "pipe") == "is a device or a pipe, not a snapshot"
    assert refused(tmp_path / "nothing") == "does not exist"
    assert refused(tmp_path / "text").startswith("is no saved cache, or is damaged: ")
    for name in ("none", "other"):
        assert refused(tmp_path / name) == "is a safetensors file, but no saved cache: it has no 'tokenmill' header"
    assert refused(tmp_path / "old") == "has format 2, and this tokenmill reads 3"


def test_rows_may_be_shared_where_everything_that_counts_is_equal():
    described = {"model": "n", "versions": {}}
    assert check_compatible(FILE, {**OURS, **described}, OURS, convert=False) is True
    assert shared_fields(OURS) == {name: OURS[name] for name in OURS if name not in described}
    assert check_compatible(FILE, {**OURS, "program": "eager"}, OURS, convert=False) is False
    assert check_compatible(FILE, {**OURS, "another": 1}, OURS, convert=False) is True
    assert check_compatible(FILE, {name: OURS[name] for name in OURS if name != "program"}, OURS, False) is False


@pytest.mark.parametrize(("name", "value"), [("dtype", "bfloat16"), ("scheme", "q8")])
def test_another_precision_is_converted_only_where_that_is_asked_for(name, value):
    with pytest.raises(SnapshotError) as error:
        check_compatible(FILE, {**OURS, name: value}, OURS, convert=False)
    assert str(error.value) == (
        f"x.kv has {name} '{value}' and this engine {OURS[name]!r}: the text would not be the same; "
        f"load the model with {name}='{value}', or open it with convert=True"
    )
    assert check_compatible(FILE, {**OURS, name: value}, OURS, convert=True) is False
    assert check_compatible(FILE, OURS, OURS, convert=True) is True


@pytest.mark.parametrize("convert", [False, True])
@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"rope": "Rope(1)"}, "rope is 'Rope(1)', here 'Rope()'"),
        ({"cache_format": "int8"}, "cache_format is 'int8', here 'dense'"),
        ({"shape": {"layers": 3}}, "shape: layers 3, here 2"),
        ({"fingerprint": {"a": "7", "c": "3"}}, "fingerprint: a '7', here '1'; c '3', here None; b None, here '2'"),
        ({"shape": {str(number): number for number in range(30)}},
         "shape: " + "; ".join(f"{number} {number}, here None" for number in range(20))),
    ],
)  # fmt: skip
def test_another_meaning_is_named_by_what_differs(change, difference, convert):
    with pytest.raises(SnapshotError) as error:
        check_compatible(FILE, {**OURS, **change}, OURS, convert)
    assert str(error.value) == f"x.kv is of another model or setting: {difference}"
