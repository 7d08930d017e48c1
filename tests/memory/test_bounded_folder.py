"""The bounded folder: what is its own, what goes first, what is counted, and what is said when it cannot write."""

import errno
import os
import re
import time
import warnings
from functools import partial
from pathlib import Path

import pytest

from tokenmill.memory import file_lock
from tokenmill.memory.atomic_file import beside
from tokenmill.memory.bounded_folder import BoundedFolder, MarkedFolder

NAMES, FRONT = re.compile(r"[a-z]\.x"), b"ours"


def is_own(path):
    return path.read_bytes().startswith(FRONT)


def folder_of(root, limit=1000, **how):
    return BoundedFolder(root, "files", NAMES, is_own, limit, **how)


def put(path, size=100, age=0.0):
    path.write_bytes(FRONT.ljust(size, b"."))
    os.utime(path, (time.time() - age,) * 2)
    return path


def names(root):
    return sorted(path.name for path in root.iterdir() if path.name != ".lock")


def test_only_its_own_files_are_listed_the_least_recently_used_first(tmp_path):
    for age, name in ((10, "b.x"), (30, "a.x"), (20, "c.x")):
        put(tmp_path / name, age=age)
    put(tmp_path / "letters.x")
    (tmp_path / "d.x").write_bytes(b"theirs")
    (tmp_path / "e.x").mkdir()
    (tmp_path / "f.x").symlink_to(tmp_path / "a.x")
    os.mkfifo(tmp_path / "g.x")
    assert [file.path.name for file in folder_of(tmp_path).files()] == ["a.x", "c.x", "b.x"]
    assert folder_of(tmp_path / "new").files() == folder_of(tmp_path / "a.x").files() == []


def test_names_in_folders(tmp_path):
    for each in ("12", "notes"):
        (tmp_path / each).mkdir()
        put(tmp_path / each / "a.x")
    put(tmp_path / "a.x")
    folder = BoundedFolder(tmp_path, "files", re.compile(r"\d+/a\.x"), is_own, 1000, in_folders=True)
    assert [file.path for file in folder.files()] == [tmp_path / "12" / "a.x"]


def test_room_is_made_by_the_least_recently_used(tmp_path):
    for number, name in enumerate("abcd"):
        put(tmp_path / f"{name}.x", age=100 - number)
    put(tmp_path / "letters.x", 5000)
    folder = folder_of(tmp_path, 400)
    assert folder.make_room() == 400
    assert folder.make_room(150) == 200
    assert names(tmp_path) == ["c.x", "d.x", "letters.x"]
    assert folder.make_room(401) == 200  # nothing is deleted in vain
    begun = put(beside(tmp_path / "e.x"), 300)
    assert folder.make_room(101) == 500
    assert folder.make_room(100) == 300 and names(tmp_path) == sorted([begun.name, "letters.x"])


def test_room_is_also_made_while_there_is_no_space(tmp_path):
    for number, name in enumerate("abcd"):
        put(tmp_path / f"{name}.x", age=100 - number)
    assert folder_of(tmp_path).make_room(1, lambda: not (tmp_path / "b.x").exists()) == 200
    assert names(tmp_path) == ["c.x", "d.x"]


def test_what_is_added_stays_within_the_limit(tmp_path):
    folders = [folder_of(tmp_path, 1000) for _ in range(2)]
    for number, name in enumerate("abcdefghijklm"):
        path = tmp_path / f"{name}.x"
        assert folders[number % 2].add(100, partial(put, path, age=-number))
        assert sum(file.num_bytes for file in folders[0].files()) <= 1000
    assert names(tmp_path) == [f"{name}.x" for name in "efghijklm"]  # a tenth is left free where files had to go
    assert (tmp_path / ".lock").read_text() == "900"
    assert not folders[0].add(1001, lambda: put(tmp_path / "z.x", 1001))
    folders[0].recount()
    assert (tmp_path / ".lock").read_text() == ""


def test_another_process_that_holds_the_lock_costs_a_file(tmp_path):
    with file_lock.locked(tmp_path / ".lock"):
        assert not folder_of(tmp_path).add(100, lambda: put(tmp_path / "a.x"))
    assert folder_of(tmp_path).add(100, lambda: put(tmp_path / "a.x"))


def test_without_locks_files_are_counted_each_time(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(file_lock.fcntl, "flock", refuse)
    for name in "abc":
        assert folder_of(tmp_path, 200).add(100, lambda name=name: put(tmp_path / f"{name}.x"))
    assert len(names(tmp_path)) == 1


def test_that_it_cannot_write_is_said_once(tmp_path):
    folder = folder_of(tmp_path)

    def full():
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.warns(UserWarning, match=f"no more files are kept in {tmp_path}: No space left on device$"):
        assert not folder.add(100, full)
    assert (tmp_path / ".lock").read_text() == "0"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not folder.add(100, lambda: put(tmp_path / "a.x"))
    assert names(tmp_path) == [] and not folder.can_write


def test_a_file_that_cannot_be_deleted_still_counts(tmp_path, monkeypatch):
    put(tmp_path / "a.x")

    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "unlink", refuse)
    assert folder_of(tmp_path, 100).make_room(50) == 100
    assert not folder_of(tmp_path, 100).add(50, lambda: put(tmp_path / "b.x", 50))


def test_leftovers_are_deleted_when_they_are_old(tmp_path):
    left = {beside(tmp_path / "a.x"): (FRONT, 7200), beside(tmp_path / "b.x"): (b"", 7200)}
    stay = {
        beside(tmp_path / "c.x"): (FRONT, 60),
        beside(tmp_path / "d.x"): (b"letters", 7200),
        beside(tmp_path / "letters"): (FRONT, 7200),
        tmp_path / "a.x": (FRONT, 7200),
        tmp_path / ".e.x.backup": (FRONT, 7200),
    }
    for path, (content, age) in {**left, **stay}.items():
        path.write_bytes(content)
        os.utime(path, (time.time() - age,) * 2)
    folder_of(tmp_path).remove_leftovers()
    assert names(tmp_path) == sorted(path.name for path in stay)


def test_a_marked_folder_is_removed_with_what_is_its_own(tmp_path):
    folder = MarkedFolder(tmp_path / "work", "tests", NAMES)
    for _ in range(2):
        folder.make()
    put(folder.root / "a.x")
    put(beside(folder.root / "b.x"))
    (folder.root / "letters").write_text("")
    assert not MarkedFolder(folder.root, "others", NAMES).remove()
    assert folder.remove() == ["letters"] and names(folder.root) == [".tokenmill", "letters"]
    (folder.root / "letters").unlink()
    assert folder.remove() == [] and not folder.root.exists()
    put(tmp_path / "a.x")
    assert MarkedFolder(tmp_path, "tests", NAMES).remove() == [] and names(tmp_path) == ["a.x"]
