"""The meaning of a model's name, where nothing is fetched."""

import errno
import os
import socket
from pathlib import Path

import pytest

from tokenmill.errors import CheckpointError
from tokenmill.hub import names
from tokenmill.hub.names import is_there, locate


class Asked:
    """Replaces the hub's repository, and remembers what it was made with and asked for."""

    def __init__(self, *given):
        self.given = given
        asked.append(self)

    def fetch(self, file):
        self.file = file
        return "/fetched"


asked = []


@pytest.fixture(autouse=True)
def hub(monkeypatch):
    asked.clear()
    monkeypatch.setattr(names, "lookup", lambda *_: Asked)


@pytest.mark.parametrize(
    ("name", "repository", "revision", "file"),
    [
        ("owner/name", "owner/name", None, None),
        ("owner/name/", "owner/name", None, None),
        ("o.w_n-er/na.me", "o.w_n-er/na.me", None, None),
        ("owner/name:file.gguf", "owner/name", None, "file.gguf"),
        ("owner/name:folder/file.gguf", "owner/name", None, "folder/file.gguf"),
        ("HF.co/owner/name:Q4_K_M", "owner/name", None, "Q4_K_M"),
        ("http://www.huggingface.co/owner/name/tree/v1.0", "owner/name", "v1.0", None),
        ("owner/name/blob/main/folder/x.gguf", "owner/name", "main", "folder/x.gguf"),
        ("owner/name/resolve/main/x.gguf?download=true", "owner/name", "main", "x.gguf"),
    ],
)
def test_the_parts_of_a_hub_name(name, repository, revision, file):
    assert locate(name) == Path("/fetched")
    [made] = asked
    assert made.given[:3] == (repository, revision, False)
    assert made.file == file


def test_the_revision_that_is_given_is_taken_before_that_of_the_address():
    locate("owner/name/tree/main", revision="v2", offline=True)
    assert asked[0].given[:3] == ("owner/name", "v2", True)


@pytest.mark.parametrize(
    "name", ["./owner/name", "-o/name", "owner/name:", "huggingface.co/huggingface.co/a/b", "a/b?x"]
)
def test_what_is_no_hub_name_is_not_asked_for(name):
    with pytest.raises(CheckpointError, match="a hub name looks like owner/name"):
        locate(name)
    assert asked == []


def test_the_error_suggests_a_short_name_that_is_near():
    shown = (
        "there is no such directory or file; smollm2-135m, gemma3-270m and others are short names "
        "(`tokenmill list --names`); a hub name looks like owner/name; "
    )
    with pytest.raises(CheckpointError) as error:
        locate("smollm2-135")
    assert str(error.value).startswith(f"no model 'smollm2-135' (did you mean 'smollm2-135m'?): {shown}")
    with pytest.raises(CheckpointError) as error:
        locate("x")
    assert str(error.value).startswith(f"no model 'x': {shown}")


def test_a_link_to_nothing_is_named_with_its_target(tmp_path):
    (tmp_path / "model").symlink_to(tmp_path / "gone")
    with pytest.raises(CheckpointError) as error:
        locate(str(tmp_path / "model"))
    assert str(error.value) == f"{tmp_path}/model is a link to {tmp_path}/gone, which does not exist"


def test_what_is_no_regular_file_holds_no_model(tmp_path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        with pytest.raises(CheckpointError) as error:
            locate(str(tmp_path / "s"))
    assert str(error.value) == f"{tmp_path}/s is neither a directory nor a regular file, so it holds no model"


def test_a_file_that_may_not_be_read_is_said_at_once(tmp_path, monkeypatch):
    (tmp_path / "a.gguf").touch()

    def refuse(path, *_):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(CheckpointError, match=r"a\.gguf cannot be read: Permission denied"):
        locate(str(tmp_path / "a.gguf"))


def test_a_home_folder_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.gguf").touch()
    assert locate("~/a.gguf") == tmp_path / "a.gguf"


def test_the_home_of_nobody_is_refused():
    with pytest.raises(CheckpointError, match="no model '~nosuchuser/x'"):
        locate("~nosuchuser/x")


def test_whether_a_path_is_there(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    assert is_there(tmp_path) is True
    assert is_there(tmp_path / "file") is True
    assert is_there(tmp_path / "none") is False
    assert is_there(tmp_path / ("x" * 300)) is False  # a name that is too long, such as a prompt

    def refuse(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "is_dir", refuse)
    with pytest.raises(CheckpointError) as error:
        is_there(tmp_path / "file")
    assert str(error.value) == f"{tmp_path}/file cannot be read: Permission denied"
