"""Files of receipts: each entry by itself, in whatever form it came."""

import json

import pytest

from tokenmill import ConfigError, ReceiptError
from tokenmill.receipts import file
from tokenmill.receipts.file import ShownText, read_receipts, write_receipts


def places(path):
    return [(entry.where.removeprefix(f"{path.parent}/"), entry.receipt is not None) for entry in read_receipts(path)]


def test_one_line_for_each(receipt, tmp_path):
    path = tmp_path / "x.jsonl"
    write_receipts(path, [receipt, receipt], "--receipt")
    assert path.read_text() == f"{receipt}\n{receipt}\n"
    assert [entry.receipt for entry in read_receipts(path)] == [receipt, receipt]
    assert places(path) == [("x.jsonl:1", True), ("x.jsonl:2", True)]


@pytest.mark.parametrize("start", ["", "\n \n"])
@pytest.mark.parametrize("indent", [None, 2])
def test_other_forms(receipt, tmp_path, indent, start):
    path, document = tmp_path / "x", receipt.document
    answer = {"id": "cmpl-1", "choices": [{"receipt": document, "text": receipt.text}] * 2}
    batch = {"custom_id": "a", "response": {"status_code": 200, "body": answer}}
    forms = ((document, 1), ([document, document], 2), (answer, 2), ([answer, document], 3), (batch, 2))
    for written, count in forms:
        path.write_text(start + json.dumps(written, indent=indent))
        entries = list(read_receipts(path))
        assert [entry.receipt for entry in entries] == [receipt] * count
        assert all(entry.shown == ShownText() for entry in entries)


def test_a_choice_without_a_receipt_is_named(receipt, tmp_path):
    path = tmp_path / "x"
    path.write_text(json.dumps({"choices": [{"text": "y"}, {"text": receipt.text, "receipt": receipt.document}, 5]}))
    assert places(path) == [("x:1, choice 1", False), ("x:1, choice 2", True), ("x:1, choice 3", False)]
    assert "this choice of an answer has no receipt" in next(iter(read_receipts(path))).error
    path.write_text('{"choices": []}')
    assert [entry.error for entry in read_receipts(path)] == [f"{path}:1 is an answer without choices"]


def test_a_line_that_is_damaged_leaves_the_others(receipt, tmp_path):
    path = tmp_path / "x"
    path.write_text(f"{receipt}\n\n{str(receipt)[:50]}\n{receipt}\n[5]\n")
    assert places(path) == [("x:1", True), ("x:3", False), ("x:4", True), ("x:5", False)]
    errors = [entry.error for entry in read_receipts(path) if entry.error]
    assert "cut or damaged" in errors[0] and "must be an object" in errors[1]


def test_a_first_line_that_is_damaged_leaves_the_others(receipt, tmp_path, monkeypatch):
    path = tmp_path / "x"
    path.write_text(f"\n{{broken\n{receipt}\n{str(receipt)[:50]}\n{receipt}\n")
    expected = [("x:2", False), ("x:3", True), ("x:4", False), ("x:5", True)]
    assert places(path) == expected
    monkeypatch.setattr(file, "MAX_SIZE", len(str(receipt).encode()) + 1)  # as for a file of more than that
    assert places(path) == expected


@pytest.mark.parametrize("cut", [1, 40, 400])
def test_an_indented_receipt_that_is_damaged_is_one(receipt, tmp_path, cut):
    path = tmp_path / "x"
    path.write_text("\n" + json.dumps(receipt.document, indent=1)[:-cut])
    assert places(path) == [("x:2", False)]


def test_values_that_are_no_objects_are_told_once(receipt, tmp_path):
    path = tmp_path / "x"
    path.write_text(json.dumps([0] * 5000 + [receipt.document] + [[]]))
    found = list(read_receipts(path))
    assert [entry.where.removeprefix(str(path)) for entry in found] == [":1, number 5001", ":1"]
    assert "5001 values that must be an object; the first is number 1: 0" in found[1].error


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
