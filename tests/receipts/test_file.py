"""Files of receipts: each entry by itself, in whatever form it came."""

import json

import pytest

from tokenmill import ConfigError, ReceiptError
from tokenmill.receipts import file
from tokenmill.receipts.file import read_receipts, write_receipts


def places(path):
    return [(entry.where.removeprefix(f"{path.parent}/"), entry.receipt is not None) for entry in read_receipts(path)]


def test_one_line_for_each(receipt, tmp_path):
    path = tmp_path / "x.jsonl"
    write_receipts(path, [receipt, receipt], "--receipt")
    assert path.read_text() == f"{receipt}\n{receipt}\n"
    assert [entry.receipt for entry in read_receipts(path)] == [receipt, receipt]
    assert places(path) == [("x.jsonl:1", True), ("x.jsonl:2", True)]


@pytest.mark.parametrize("indent", [None, 2])
def test_other_forms(receipt, tmp_path, indent):
    path, document = tmp_path / "x", receipt.document
    answer = {"id": "cmpl-1", "choices": [{"receipt": document, "text": "x"}, {"text": "y"}, {"receipt": document}]}
    for written, count in ((document, 1), ([document, document], 2), (answer, 2)):
        path.write_text(json.dumps(written, indent=indent))
        assert [entry.receipt for entry in read_receipts(path)] == [receipt] * count


def test_a_line_that_is_damaged_leaves_the_others(receipt, tmp_path):
    path = tmp_path / "x"
    path.write_text(f"{receipt}\n\n{str(receipt)[:50]}\n{receipt}\n[5]\n")
    assert places(path) == [("x:1", True), ("x:2", False), ("x:3", True), ("x:4", False)]
    errors = [entry.error for entry in read_receipts(path) if entry.error]
    assert "cut or damaged" in errors[0] and "must be an object" in errors[1]


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_a_file_without_any(tmp_path, content):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(ReceiptError, match="is empty"):
        list(read_receipts(tmp_path / "x"))


def test_what_cannot_be_read_or_written(tmp_path, receipt):
    with pytest.raises(ReceiptError, match="No such file"):
        list(read_receipts(tmp_path / "absent"))
    with pytest.raises(ReceiptError, match="is no file"):
        list(read_receipts(tmp_path))
    with pytest.raises(ConfigError, match="a file that can be written"):
        write_receipts(tmp_path / "absent" / "x", [receipt], "--receipt")


def test_a_line_that_is_too_long(receipt, tmp_path, monkeypatch):
    monkeypatch.setattr(file, "MAX_SIZE", 5000)
    (tmp_path / "x").write_text(f"{receipt}\n" + "[" + "1," * 5000)
    with pytest.raises(ReceiptError, match="a line of more than 5,000 characters"):
        list(read_receipts(tmp_path / "x"))
