"""`tokenmill embed`: lines of JSON or a table of numpy, the same vectors as the engine's, and bad input."""

import json

import numpy as np
import pyarrow.parquet
import pytest

from tokenmill.engine.load import load

TEXTS = ["w1 w2", "w3", "w4 w5 w6"]


@pytest.fixture(scope="module")
def wanted(model):
    return load(model).embed(TEXTS).numpy()


def test_a_line_for_each_text(model, wanted, tm):
    code, out, err = tm("embed", model, *(word for text in TEXTS for word in ("-p", text)))
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and [line["index"] for line in lines] == [0, 1, 2]
    assert np.array_equal(np.array([line["embedding"] for line in lines], np.float32), wanted)
    assert "say no pooling" in err and "3 texts" in err


def test_each_line_of_a_file_into_a_table(model, wanted, tm, tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join([TEXTS[0], "", *TEXTS[1:]]) + "\n")
    table = tmp_path / "vectors.npy"
    arguments = ("embed", model, "--each-line", "--prompt-file", tmp_path / "texts.txt", "-o", table)
    code, out, _ = tm(*arguments)
    assert code == 0 and "3 x" in out and np.array_equal(np.load(table), wanted)
    assert tm(*arguments, "-q", "--dimensions", 4, "--pooling", "mean")[:2] == (0, "")
    assert np.load(table).shape == (3, 4), "a table may be written again"


def test_bad_input(model, tm, tmp_path):
    (tmp_path / "own.txt").write_text("mine")
    for more, words in (
        (("-p", ""), "is empty"),
        (("-p", "w1", "--pooling", "max"), "pooling = 'max'"),
        (("-p", "w1", "--dimensions", 0), "dimensions = 0"),
        (("-p", "w1", "--prompt-name", "query"), "this model's files have none"),
        (("--tokens", "1,2", "--each-line"), "only without --each-line"),
        (("-p", "w1", "-o", tmp_path / "own.txt"), "is not a table of numpy"),
        (("-p", "w1", "-o", tmp_path), "is not a file"),
        (("-p", "w1", "--program", "compiled"), "only with native or eager"),
    ):
        code, out, err = tm("embed", model, "-q", *more)
        assert code != 0 and not out and words in err, err
    assert (tmp_path / "own.txt").read_text() == "mine"


def test_rows_of_a_file(model, wanted, tm, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"id": number, "text": text}) + "\n" for number, text in enumerate(TEXTS)))
    out = tmp_path / "out.parquet"
    arguments = ("embed", model, "--rows", rows, "--column", "text", "-o", out)
    code, said, err = tm(*arguments)
    assert (code, said) == (0, "") and "3 rows" in err and "6 tokens" in err and "tokens/s" in err
    found = pyarrow.parquet.read_table(out).to_pylist()
    assert [row["id"] for row in found] == [0, 1, 2]
    assert np.array_equal(np.array([row["embedding"] for row in found], np.float32), wanted)
    assert "nothing is left to do" in tm(*arguments)[2]
    for more, words in (
        (("--rows", rows, "-o", out), "together with --column NAME and --output"),
        (("--rows", rows, "--column", "text"), "together with --column NAME and --output"),
        (("--rows", rows, "--column", "text", "-o", out, "-p", "w1"), "without other texts"),
        (("--column", "text", "-p", "w1"), "only together with --rows"),
        (("--rows", rows, "--column", "body", "-o", tmp_path / "new.csv"), "no column 'body'"),
        (("--rows", tmp_path / "absent.csv", "--column", "a", "-o", tmp_path / "new.csv"), "absent.csv"),
    ):
        code, said, err = tm("embed", model, "-q", *more)
        assert code != 0 and not said and words in err, err
