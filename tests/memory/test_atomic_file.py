"""Files that are there in full or not at all, their leftovers, and headers with a checksum."""

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
    remove_leftovers,
    seal,
    unseal,
    writing,
)

HOUR = 3600.0


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


# ---- leftovers

NAMES = re.compile(r"[a-z]+/[a-z]+\.kv")


def leave(path, content=b"", age=HOUR + 1, now=1e9):
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    os.utime(path, (now - age, now - age))
    return path


def clean(folder, monkeypatch):
    monkeypatch.setattr(atomic_file.time, "time", lambda: 1e9)
    remove_leftovers(folder, NAMES, lambda path: path.read_bytes().startswith(b"ours"))


@pytest.mark.parametrize(("content", "age"), [(b"", HOUR + 1), (b"ours", HOUR + 1), (b"", 2e8)])
def test_what_a_killed_process_left_is_deleted_an_hour_later(tmp_path, monkeypatch, content, age):
    left = leave(tmp_path / "f" / ".a.kv.123-0123abcd", content, age)
    clean(tmp_path, monkeypatch)
    assert not left.exists()


@pytest.mark.parametrize(
    ("name", "content", "age"),
    [
        (".a.kv.123-0123abcd", b"", HOUR),  # it may still be written
        (".a.kv.123-0123abcd", b"ours", 5.0),
        (".a.kv.123-0123abcd", b"", -HOUR - 1),  # by a clock that goes after
        (".a.kv.123-0123abcd", b"users", HOUR + 1),
        (".a.kv.123-0123abc", b"", HOUR + 1),  # no name that `beside` gives
        (".a.kv", b"", HOUR + 1),
        ("a.kv.123-0123abcd", b"", HOUR + 1),
        (".a.txt.123-0123abcd", b"ours", HOUR + 1),  # of another file than those of this folder
        (".7.kv.123-0123abcd", b"ours", HOUR + 1),
    ],
)
def test_everything_else_stays(tmp_path, monkeypatch, name, content, age):
    stays = leave(tmp_path / "f" / name, content, age)
    clean(tmp_path, monkeypatch)
    assert stays.exists()


def test_only_the_folders_of_the_directory_are_looked_at(tmp_path, monkeypatch):
    (tmp_path / "f" / "deep").mkdir(parents=True)
    stays = [leave(tmp_path / ".a.kv.1-0123abcd"), leave(tmp_path / "f" / "deep" / ".a.kv.1-0123abcd")]
    gone = [leave(tmp_path / "f" / ".a.kv.1-0123abcd"), leave(tmp_path / "g" / ".b.kv.1-0123abcd")]
    clean(tmp_path, monkeypatch)
    assert [path.exists() for path in (*stays, *gone)] == [True, True, False, False]


def test_another_process_may_be_faster(tmp_path, monkeypatch):
    """A link to nothing has a status, and cannot be opened; the next leftover is deleted all the same."""
    (tmp_path / "f").mkdir()
    link = tmp_path / "f" / ".a.kv.1-0123abcd"
    link.symlink_to(tmp_path / "gone")
    os.utime(link, (0, 0), follow_symlinks=False)
    gone = leave(tmp_path / "g" / ".b.kv.1-0123abcd")
    clean(tmp_path, monkeypatch)
    assert link.is_symlink() and not gone.exists()


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
