"""What is remembered of packed models that were verified: until the file changes, or the machine starts again."""

import json
import os
from hashlib import sha256

import pytest

from tokenmill.weights.packed import verified
from tokenmill.weights.packed.verified import forget, is_verified, last_used, remember, settle


@pytest.fixture
def file(tmp_path):
    (tmp_path / "x.packed").write_bytes(b"weights")
    return tmp_path / "x.packed"


def is_known(file) -> bool:
    with file.open("rb") as opened:
        return is_verified(verified.record_of(file), opened.fileno())


def know(file) -> None:
    with file.open("rb") as opened:
        remember(verified.record_of(file), opened.fileno(), verified.facts_of(opened.fileno()))


def record_of(folder, file):
    return folder / "verified" / f"{sha256(os.fsencode(file)).hexdigest()[:16]}.json"


def test_a_file_is_known_once_it_was_verified(file, folder):
    assert not is_known(file)
    know(file)
    assert is_known(file)
    status = file.stat()
    assert json.loads(record_of(folder, file).read_text()) == {
        "boot": verified.BOOT.read_text().strip() if verified.BOOT.exists() else "",
        "device": status.st_dev,
        "inode": status.st_ino,
        "size": 7,
        "changed": status.st_ctime_ns,
        "modified": status.st_mtime_ns,
    }
    forget(file)
    assert not is_known(file)
    forget(file)


def test_another_file_under_the_name_is_not_known(file):
    know(file)
    file.with_name("y").write_bytes(b"weights")
    file.with_name("y").replace(file)
    assert not is_known(file)
    know(file)
    os.utime(file, ns=(1, 1))
    assert not is_known(file)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "\udcff", "[" * 100_000])
def test_a_record_that_is_damaged_says_nothing(file, folder, text):
    know(file)
    record_of(folder, file).write_bytes(text.encode("utf-8", "surrogateescape"))
    assert not is_known(file)


def test_a_link_is_the_file(file, folder):
    know(file)
    link = file.with_name("link")
    link.symlink_to(file)
    assert is_known(link)


@pytest.mark.parametrize("boots", [("one\n", "two\n"), ("one\n", None), (None, "two\n")])
def test_a_restart_of_the_machine_forgets(file, tmp_path, monkeypatch, boots):
    monkeypatch.setattr(verified, "BOOT", tmp_path / "boot")
    for boot in boots:
        verified.BOOT.unlink(missing_ok=True)
        if boot:
            verified.BOOT.write_text(boot)
        assert not is_known(file)
        know(file)
        assert is_known(file)


def settled(file) -> None:
    with file.open("rb") as opened:
        settle(verified.record_of(file), opened.fileno(), verified.facts_of(opened.fileno()))


def test_a_file_that_is_on_the_disk_is_known_after_a_restart(file, tmp_path, monkeypatch):
    monkeypatch.setattr(verified, "BOOT", tmp_path / "boot")
    synced = []
    monkeypatch.setattr(os, "fsync", lambda opened: synced.append(os.fstat(opened).st_ino))
    settled(file)
    assert not is_known(file), "it was never verified"
    for boot in ("one", "two"):
        verified.BOOT.write_text(boot)
        assert not is_known(file)
        know(file)
    settled(file)
    verified.BOOT.write_text("three")
    assert is_known(file) and synced == [file.stat().st_ino] * 2
    file.write_bytes(b"others")
    assert not is_known(file)


def test_a_file_that_the_disk_does_not_take_is_verified_after_a_restart(file, tmp_path, monkeypatch):
    def full(_opened) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(verified, "BOOT", tmp_path / "boot")
    verified.BOOT.write_text("one")
    know(file)
    monkeypatch.setattr(os, "fsync", full)
    settled(file)
    assert is_known(file)
    verified.BOOT.write_text("two")
    assert not is_known(file)


@pytest.mark.parametrize(("age", "kept"), [(0.999, False), (1.0, True), (1.5, True)])
def test_a_file_that_has_just_changed_may_change_again(file, monkeypatch, age, kept):
    monkeypatch.setattr(verified, "SETTLED_S", 1.0)
    changed = file.stat().st_ctime
    monkeypatch.setattr(verified.time, "time", lambda: changed + age)
    know(file)
    assert is_known(file) == (kept and (changed + age) - changed >= 1.0)


def test_the_last_use_is_when_it_was_asked_for(file, folder):
    assert last_used(file.with_name("absent")) == 0.0
    os.utime(file, (2000, 2000))
    assert last_used(file) == 2000.0
    know(file)
    os.utime(record_of(folder, file), (3000, 3000))
    assert last_used(file) == 3000.0
    assert is_known(file)
    assert last_used(file) > 1e9


def test_a_folder_that_cannot_be_written_is_no_error(file, folder):
    folder.parent.write_text("a file")
    know(file)
    assert not is_known(file)


def test_a_record_is_not_synced(file, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: pytest.fail("it takes as long as verifying"))
    know(file)
    assert is_known(file)


def test_a_file_that_changed_while_it_was_verified_is_not_known(file):
    with file.open("rb") as opened:
        before = verified.facts_of(opened.fileno())
        file.write_bytes(b"others!")
        remember(verified.record_of(file), opened.fileno(), before)
    assert not is_known(file)
