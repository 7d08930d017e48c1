"""Rows in files: kept line by line, read back the same, refused when they are none of ours."""

import errno
import io
import json
import subprocess
from pathlib import Path

import pytest

from tokenmill.bench import rows
from tokenmill.bench.rows import COLUMNS, VERSION, append_row, check_output, commit, provenance, read_rows
from tokenmill.errors import ConfigError, TokenmillError
from tokenmill.kernels import native_library

ROW = {
    "version": VERSION,
    "kind": "bench",
    "test": "pp512",
    "status": "ok",
    "batch": 1,
    "decode_tok_s": 12.5,
    "cache": True,
    "noisy": False,
    "hash": "12345678",
    "reason": "",
    "prefill_ms": None,
    "itl_ms": [1.0, 2.0],
}


def test_json_lines_keep_everything(tmp_path):
    file = tmp_path / "rows.jsonl"
    append_row(file, ROW)
    append_row(file, {**ROW, "batch": 2})
    assert read_rows([file]) == [ROW, {**ROW, "batch": 2}]


def test_csv_keeps_the_columns_and_their_types(tmp_path):
    file = tmp_path / "rows.csv"
    for _ in range(2):
        append_row(file, {**ROW, "hash": "12e45678"})
    rows = read_rows([file])
    assert len(rows) == 2 and file.read_text().count("version") == 1
    expected = {**ROW, "hash": "12e45678"}
    del expected["itl_ms"]
    assert {name: rows[0][name] for name in expected} == expected
    assert set(rows[0]) == set(COLUMNS) - {"itl_ms", "accepted_histogram"}


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.jsonl", "no json\n", "line 1"),
        ("a.jsonl", json.dumps({**ROW, "version": 99}) + "\n", "version 99"),
        ("a.jsonl", json.dumps(ROW) + "\n[1]\n", "line 2"),
        ("a.csv", "a,b\n1,2\n", "version None"),
    ],
)
def test_foreign_files_are_refused_by_name(tmp_path, name, text, says):
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(TokenmillError, match=f"{name}.*{says}"):
        read_rows([file])
    with pytest.raises(TokenmillError, match=f"{name}.*{says}"):
        check_output(file)
    assert file.read_text() == text


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(TokenmillError, match=r"nothing\.jsonl cannot be read: No such file"):
        read_rows([tmp_path / "nothing.jsonl"])


@pytest.mark.parametrize("name", ["rows.txt", "a file/rows.jsonl", "."])
def test_what_cannot_be_written_is_refused_at_once(tmp_path, name):
    (tmp_path / "a file").touch()
    with pytest.raises(ConfigError, match="--output"):
        check_output(tmp_path / name)


def test_checking_leaves_nothing_behind(tmp_path):
    check_output(tmp_path / "rows.csv")
    assert not list(tmp_path.iterdir())


def test_every_row_says_where_it_comes_from():
    found = provenance()
    assert set(found) <= set(COLUMNS)
    assert found["cores"] and found["processor"] and found["torch"] and found["when"].endswith("+00:00")
    assert found["build"] == native_library.usable_build()


def test_rows_join_a_csv_file_that_has_other_columns(tmp_path):
    """As one has that an earlier version began."""
    path = tmp_path / "rows.csv"
    path.write_text("version,when,model,test\n1,then,a,b\n")
    append_row(path, {"version": VERSION, "model": "m", "test": "t", "when": "now", "build": "avx2"})
    assert read_rows([path])[1] == {"version": 1, "when": "now", "model": "m", "test": "t"}


class Full(io.StringIO):
    """A file on a disk that has room for ten characters more."""

    def __init__(self, path):
        super().__init__()
        self.path = path

    def write(self, text):
        with open(self.path, "ab") as file:  # noqa: PTH123  (Path.open is this one)
            file.write(text[:10].encode())
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("before", [b"", b"a row\n"])
def test_half_a_line_is_taken_back(before, tmp_path, monkeypatch):
    file = tmp_path / "rows.jsonl"
    file.write_bytes(before)
    monkeypatch.setattr(Path, "open", lambda path, *_, **__: Full(path))
    with pytest.raises(OSError, match="No space left"):
        append_row(file, ROW)
    monkeypatch.undo()
    assert file.read_bytes() == before


def test_a_folder_that_is_not_there_stays_so(tmp_path):
    with pytest.raises(FileNotFoundError):
        append_row(tmp_path / "nowhere" / "rows.jsonl", ROW)


@pytest.fixture
def fresh_commit():
    commit.cache_clear()
    yield
    commit.cache_clear()


@pytest.mark.parametrize(
    ("answer", "found"), [("0123456789+\n", "0123456789+"), ("", None), (OSError(), None), ("late", None)]
)
def test_the_commit_is_what_git_says(answer, found, fresh_commit, monkeypatch):
    asked = []

    def run(command, **how):
        asked.append((command, how["timeout"]))
        if answer == "late":
            raise subprocess.TimeoutExpired(command, 10)
        if isinstance(answer, OSError):
            raise answer
        return subprocess.CompletedProcess(command, 0, stdout=answer)

    monkeypatch.setattr(rows.subprocess, "run", run)
    monkeypatch.setattr(Path, "exists", lambda path: path.name == ".git")
    assert commit() == found
    ((command, timeout),) = asked
    root = Path(__file__).resolve().parents[2]
    assert command[:3] == ["git", "-C", str(root)] and timeout == 10 and "--dirty=+" in command


def test_an_installed_package_has_no_commit(fresh_commit, monkeypatch):
    monkeypatch.setattr(Path, "exists", lambda path: False)
    assert commit() is None


def test_cells_of_csv_have_their_types(tmp_path):
    file = tmp_path / "rows.csv"
    file.write_text(
        "version,batch,cache,noisy,tok_s,kernel,hash,drafted,text\n1,-3,True,False,1.5e3,gather,12e4,,007\n"
    )
    assert read_rows([file]) == [
        {"version": 1, "batch": -3, "cache": True, "noisy": False, "tok_s": 1500.0, "kernel": "gather",
         "hash": "12e4", "drafted": None, "text": "007"}
    ]  # fmt: skip


def test_rows_of_load_have_no_version(tmp_path):
    file = tmp_path / "load.jsonl"
    file.write_text('{"output_throughput": 1.0}\n')
    check_output(file)
    assert read_rows([file, file]) == [{"output_throughput": 1.0}] * 2
