"""Rows in files: kept line by line, read back the same, refused when they are none of ours."""

import json

import pytest

from tokenmill.bench.rows import COLUMNS, VERSION, append_row, check_output, provenance, read_rows
from tokenmill.errors import ConfigError, TokenmillError

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
