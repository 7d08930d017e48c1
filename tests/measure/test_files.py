"""Output files: whether they can be written is found out before the work, and nothing is left of the attempt."""

import errno
from pathlib import Path

import pytest

from tokenmill.errors import ConfigError
from tokenmill.measure import files
from tokenmill.measure.files import check_appendable, make_directory, write_atomically


def test_a_file_that_is_not_there_is_not_made(tmp_path):
    check_appendable(tmp_path / "a" / "b" / "rows.jsonl", "output")
    assert [path.name for path in (tmp_path / "a").rglob("*")] == ["b"]


def test_a_file_that_is_there_stays_as_it_is(tmp_path):
    (tmp_path / "rows").write_bytes(b"row")
    check_appendable(tmp_path / "rows", "output")
    assert (tmp_path / "rows").read_bytes() == b"row"
    assert [path.name for path in tmp_path.iterdir()] == ["rows"]


def refused(function, *given):
    with pytest.raises(ConfigError) as error:
        function(*given)
    return str(error.value)


@pytest.mark.parametrize("below", ["file/rows", "file/a/rows"])
def test_a_file_in_the_place_of_a_folder(tmp_path, below):
    (tmp_path / "file").touch()
    for function in (check_appendable, make_directory):
        assert "Not a directory" in refused(function, tmp_path / below, "output")
    assert "Not a directory" in refused(write_atomically, tmp_path / below, b"x", "output")


def test_what_cannot_be_written_names_the_setting_and_the_reason(tmp_path):
    message = refused(check_appendable, tmp_path, "output")
    assert "output" in message and str(tmp_path) in message
    assert message.endswith("a file that can be written (Is a directory)")
    (tmp_path / "file").touch()
    assert refused(make_directory, tmp_path / "file", "output").endswith(
        "a directory that can be written (Not a directory)"
    )
    assert refused(write_atomically, tmp_path, b"", "output").endswith(
        "a file that can be written (it is no regular file)"
    )


@pytest.mark.parametrize("there", [False, True], ids=["file", "folder"])
def test_a_folder_in_which_no_file_can_be_made(tmp_path, monkeypatch, there):
    def refuse(path, exist_ok):
        assert exist_ok is False
        raise OSError(errno.EROFS, "read-only")

    monkeypatch.setattr(Path, "touch", refuse)
    if there:
        assert refused(make_directory, tmp_path, "output").endswith("a directory that can be written (read-only)")
    else:
        assert refused(check_appendable, tmp_path / "x", "output").endswith("a file that can be written (read-only)")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_devices():
    check_appendable(Path("/dev/null"), "output")
    assert refused(check_appendable, Path("/dev/full"), "output").endswith("(No space left on device)")


def test_a_directory_is_made_with_those_above_it(tmp_path):
    make_directory(tmp_path / "a" / "b", "output")
    make_directory(tmp_path / "a" / "b", "output")
    assert (tmp_path / "a" / "b").is_dir() and list((tmp_path / "a" / "b").iterdir()) == []


def test_a_file_is_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr(files.Path, "mkdir", None)  # its folder is there already
    (tmp_path / "x").write_bytes(b"old")
    write_atomically(tmp_path / "x", b"new", "output")
    assert (tmp_path / "x").read_bytes() == b"new"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
