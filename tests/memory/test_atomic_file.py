"""Files that are there in full or not at all, and headers with a checksum."""

import errno
import json
import os
import re
import sys
import zlib

import pytest

from tokenmill.memory import atomic_file
from tokenmill.memory.atomic_file import (
    TEMPORARY,
    beside,
    make_folder,
    refuse_other,
    seal,
    unseal,
    writing,
)


def test_a_temporary_name_lies_beside_the_file_and_is_no_others(tmp_path):
    first, second = beside(tmp_path / "a.kv"), beside(tmp_path / "a.kv")
    assert first != second
    for path in (first, second):
        assert path.parent == tmp_path
        assert re.fullmatch(rf"\.a\.kv\.{os.getpid()}-[0-9a-f]{{8}}", path.name)
        assert TEMPORARY.fullmatch(path.name)[1] == "a.kv"


def test_a_folder_is_made_with_those_above_it(tmp_path):
    make_folder(tmp_path / "a" / "b")
    make_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()


@pytest.mark.parametrize("below", ["file", "file/b"])
def test_a_file_in_the_place_of_a_folder_is_no_directory(tmp_path, below):
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError) as error:
        make_folder(tmp_path / below)
    assert error.value.errno == errno.ENOTDIR
    assert error.value.filename == str(tmp_path / below)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_new_file_is_seen_at_the_end_alone(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with writing(path) as out:
        out.write(b"new")
        assert path.read_bytes() == b"old"
        assert len(names(tmp_path)) == 2
    assert path.read_bytes() == b"new"
    assert names(tmp_path) == ["a"]


def test_after_an_error_the_old_file_is_there_and_nothing_else(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt), writing(path) as out:
        out.write(b"new")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["a"]


@pytest.mark.parametrize("how", [{}, {"sync": True}, {"sync": False}])
def test_all_of_it_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch, how):
    path, seen = tmp_path / "a", []
    monkeypatch.setattr(atomic_file.os, "fsync", lambda number: seen.append((os.fstat(number).st_size, path.exists())))
    with writing(path, **how) as out:
        out.write(b"new")
    assert seen == ([] if how == {"sync": False} else [(3, False)])


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_what_is_no_regular_file_is_not_replaced(tmp_path, kind):
    path = tmp_path / "x"
    path.mkdir() if kind == "folder" else os.mkfifo(path)
    for attempt in (lambda: refuse_other(path), lambda: writing(path).__enter__()):
        with pytest.raises(OSError, match="it is no regular file") as error:
            attempt()
        assert (error.value.errno, error.value.filename) == (errno.EINVAL, str(path))
    assert names(tmp_path) == ["x"]


def test_a_file_and_nothing_are_no_other(tmp_path):
    (tmp_path / "file").touch()
    refuse_other(tmp_path / "file")
    refuse_other(tmp_path / "nothing")


# ---- headers


def test_a_header_says_its_version_its_byte_order_and_a_checksum():
    document = json.loads(seal({"b": (1, 2), "a": "ä"}, 7))
    assert document["facts"] == {"b": [1, 2], "a": "ä", "format": 7, "byteorder": sys.byteorder}
    text = f'{{"a": "\\u00e4", "b": [1, 2], "byteorder": "{sys.byteorder}", "format": 7}}'
    assert document["checksum"] == zlib.crc32(text.encode())


@pytest.mark.parametrize("kind", [str, str.encode])
def test_what_was_sealed_is_read_again(kind):
    facts = unseal(kind(seal({"x": 1.5, "y": None}, 3)), 3)
    assert facts == {"x": 1.5, "y": None, "format": 3, "byteorder": sys.byteorder}


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"facts": 1, "checksum": 0}', '{"facts": {}}', b"\xff", "[" * 99999]
)
def test_what_is_no_header_is_cut_or_damaged(text):
    with pytest.raises(ValueError, match=r"^is cut or damaged: its header cannot be read \(.+\)$"):
        unseal(text, 1)


def test_a_changed_header_is_damaged():
    with pytest.raises(ValueError, match=r"^is damaged: its header does not match its checksum$"):
        unseal(seal({"x": 1}, 1).replace('"x": 1', '"x": 2'), 1)


def test_another_version_or_byte_order_is_refused(monkeypatch):
    with pytest.raises(ValueError, match=r"^has format 1, and this tokenmill reads 2$"):
        unseal(seal({}, 1), 2)
    ours = sys.byteorder
    other = {"little": "big", "big": "little"}[ours]
    monkeypatch.setattr(atomic_file.sys, "byteorder", other)
    text = seal({}, 1)
    monkeypatch.setattr(atomic_file.sys, "byteorder", ours)
    with pytest.raises(ValueError, match=f"^has byteorder '{other}', and this tokenmill reads '{ours}'$"):
        unseal(text, 1)
