"""Files of rows: compared with what json, csv and pyarrow read of them."""

import csv
import datetime
import io
import json
import math
import sys

import pyarrow
import pyarrow.parquet
import pytest

from tests.batches.conftest import run, table_task, write_lines
from tokenmill.batches.formats import format_of
from tokenmill.batches.scan import scan
from tokenmill.errors import ConfigError, RequestError, TokenmillError

TEXTS = ["w1 w2", 'w3, "quoted"', "w4\nline", "w5\rw6\r\n", "\r\n", "ü €", " w5 ", "w6"]


def rows_of(path):
    return [row.values for row in format_of(path, "input").rows(path)]


def written(path, rows, columns):
    with path.open("wb") as out, format_of(path, "output").writer(out, columns) as write:
        for values in rows:
            write(values)
    return path


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_what_is_written_is_read(tmp_path, suffix):
    rows = [{"id": str(number), "text": text} for number, text in enumerate(TEXTS)]
    path = written(tmp_path / f"a.{suffix}", rows, {"id": "text", "text": "text"})
    assert rows_of(path) == rows
    others = {
        "jsonl": lambda: [json.loads(line) for line in path.read_text().splitlines()],
        "csv": lambda: list(csv.DictReader(io.StringIO(path.read_bytes().decode(), newline=""))),
        "parquet": lambda: pyarrow.parquet.read_table(path).to_pylist(),
    }
    assert others[suffix]() == rows


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_tables_of_others(engine, tmp_path, suffix):
    """What the csv module and pyarrow write; the columns of Parquet keep their types, beside the new ones."""
    source, target = tmp_path / f"in.{suffix}", tmp_path / f"out.{suffix}"
    if suffix == "csv":
        with source.open("w", newline="") as out:
            csv.writer(out).writerows([["text", "n"], *([text, number] for number, text in enumerate(TEXTS))])
    else:
        columns = {
            "text": TEXTS,
            "n": pyarrow.array(range(len(TEXTS)), pyarrow.int16()),
            "ids": [[number] for number in range(len(TEXTS))],
        }
        columns["when"] = pyarrow.array([None, *range(1, len(TEXTS))], pyarrow.timestamp("ms"))
        pyarrow.parquet.write_table(pyarrow.table(columns), source)
    run(engine, source, target, table_task("{text} {n}"))
    if suffix == "parquet":
        before, after = pyarrow.parquet.read_table(source), pyarrow.parquet.read_table(target)
        assert after.select(before.column_names).to_pylist() == before.to_pylist()
        assert [after.schema.field(name).type for name in before.column_names] == before.schema.types
        assert after.schema.field("prompt_tokens").type == pyarrow.int64()
    else:
        assert [(row["text"], row["n"]) for row in rows_of(target)] == [(t, str(n)) for n, t in enumerate(TEXTS)]
    assert all(row["generated_text"] for row in rows_of(target))


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_values_that_json_has_not(engine, tmp_path, suffix):
    """Parquet has numbers that are none, and dates."""
    source, target = tmp_path / "in.parquet", tmp_path / f"out.{suffix}"
    columns = {"n": [1.5, math.nan, -math.inf], "when": [datetime.date(2026, 1, 2)] * 3, "list": [[math.nan], [], None]}
    pyarrow.parquet.write_table(pyarrow.table({"text": ["w1"] * 3, **columns}), source)
    assert run(engine, source, target, table_task("{text} {n} {when}")).num_errors == 0
    assert run(engine, source, target, table_task("{text} {n} {when}")).was_there
    found = rows_of(target)
    if suffix == "parquet":
        assert repr([row["n"] for row in found]) == repr(columns["n"]) and found[0]["when"] == columns["when"][0]
    else:
        one = "1.5" if suffix == "csv" else 1.5
        assert [row["n"] for row in found] == [one, "NaN", "-Infinity"] and found[0]["when"] == "2026-01-02"
        assert found[0]["list"] == ('["NaN"]' if suffix == "csv" else ["NaN"])


def test_parquet_that_cannot_be_read(tmp_path):
    path = tmp_path / "in.parquet"
    twice = pyarrow.Table.from_arrays([pyarrow.array(["w1"])] * 2, names=["text", "text"])
    pyarrow.parquet.write_table(twice, path)
    with pytest.raises(RequestError, match="two columns named 'text'"):
        scan(path)


def test_kinds_of_columns_are_found_in_all_rows(engine, tmp_path):
    lines = [{"text": "w1", "n": 1, "x": None}, {"text": "w2", "n": 2.5, "x": True, "y": [1]}, {"text": "w3", "y": "z"}]
    source = write_lines(tmp_path / "in.jsonl", lines)
    assert scan(source).columns == {"text": "text", "n": "float", "x": "bool", "y": "json"}
    run(engine, source, tmp_path / "out.parquet", table_task("{text}"))
    table = pyarrow.parquet.read_table(tmp_path / "out.parquet")
    assert table.column("n").to_pylist() == [1.0, 2.5, None] and table.column("x").to_pylist() == [None, True, None]
    assert table.column("y").to_pylist() == [None, "[1]", '"z"']


def test_large_numbers_are_written_to_parquet(engine, tmp_path):
    """They are found to fit before anything is computed: text where no number of Parquet is exact."""
    values = {"long": [2**60, 1], "huge": [2**70, 1], "mixed": [2**53 + 1, 1.5]}
    lines = [{"text": "w1", **{name: each[place] for name, each in values.items()}} for place in range(2)]
    source = write_lines(tmp_path / "in.jsonl", lines)
    run(engine, source, tmp_path / "out.parquet", table_task("{text}"))
    table = pyarrow.parquet.read_table(tmp_path / "out.parquet")
    assert table.column("long").to_pylist() == values["long"]
    assert table.column("huge").to_pylist() == [str(2**70), "1"]
    assert table.column("mixed").to_pylist() == [str(2**53 + 1), "1.5"]


def test_lines(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\n\n  \n{"a": 2}\r\n{"a": \xff}\n' + b"[" * 5000 + b'\n{"a": 3}')
    rows = list(format_of(path, "input").rows(path))
    assert [(row.number, row.line) for row in rows] == [(0, 1), (1, 4), (2, 5), (3, 6), (4, 7)]
    assert [row.values and row.values["a"] for row in rows] == [1, 2, None, None, 3]
    assert "line 5 is no JSON" in rows[2].problem and "line 6 is no JSON" in rows[3].problem
    index = scan(path)
    assert index.num_broken == 2 and index.broken == [rows[2].problem, rows[3].problem]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"a,a\n1,2\n", "two columns named 'a'"),
        (b'a,b\n"1,2\n', "line 2 cannot be read as CSV"),
        (b"a\n\xff\n", "is not UTF-8"),
        (b"a,b\n", "has no rows"),
    ],
)
def test_csv_that_is_none(tmp_path, data, message):
    path = tmp_path / "in.csv"
    path.write_bytes(data)
    with pytest.raises(RequestError, match=message):
        scan(path)


def test_csv_with_other_numbers_of_cells_and_long_ones(tmp_path):
    path = tmp_path / "in.csv"
    limit = csv.field_size_limit()
    path.write_text(f"a,b\n1\n\n{'x' * 2 * limit},2\n1,2,3\n")
    rows = list(format_of(path, "input").rows(path))
    assert [row.values is None for row in rows] == [True, False, True] and csv.field_size_limit() == limit
    assert rows[0].problem == "line 2 has 1 cells, and there are 2 columns"


def test_what_is_no_table(tmp_path):
    (tmp_path / "in.parquet").write_bytes(b"no parquet")
    with pytest.raises(RequestError, match="cannot be read as Parquet"):
        scan(tmp_path / "in.parquet")
    with pytest.raises(ConfigError, match=r"ends with \.jsonl, \.parquet, \.csv"):
        scan(tmp_path / "in.txt")
    (tmp_path / "in.jsonl").write_text("\n")
    with pytest.raises(RequestError, match="has no rows"):
        scan(tmp_path / "in.jsonl")


def test_without_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "in.parquet").write_bytes(b"")
    with pytest.raises(TokenmillError, match=r"pip install 'tokenmill\[batch\]'"):
        scan(tmp_path / "in.parquet")


def test_ids_that_are_there_twice(tmp_path):
    lines = [{"custom_id": each} for each in "abcdba"]
    with pytest.raises(RequestError, match="lines 2 and 5 have the same custom_id"):
        scan(write_lines(tmp_path / "in.jsonl", ["", *lines][1:]), "custom_id")
