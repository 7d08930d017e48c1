"""Streams that were saved: their texts are whole, and what is damaged or strange in them raises nothing else."""

import json

import pytest

from tokenmill import ReceiptError
from tokenmill.receipts.file import answer_of, is_stream, read_receipts


def stream(*chunks):
    return "".join(f"data: {json.dumps(each)}\n\n" for each in chunks).encode() + b"data: [DONE]\n\n"


def test_pieces_of_several_choices_are_put_together():
    pieces = [{"choices": [{"index": index, "text": text}]} for index, text in ((0, "a"), (1, "b"), (0, "c"))]
    chat = {"id": "x", "choices": [{"index": 0, "delta": {"content": "d", "reasoning": "e"}}]}
    found = answer_of(b": a comment\nevent: x\n" + stream(*pieces, chat, chat), "x")
    message = {"content": "dd", "reasoning": "e"}
    shown = [{"text": "ac"}, {"text": "b"}, {"message": message}]
    assert found == {"choices": [{**each, "receipt": None} for each in shown]}


def test_a_changed_text_and_a_stream_that_was_cut(receipt, tmp_path):
    path, cut = tmp_path / "x", {"choices": [{"index": 0, "text": receipt.text}]}
    last = {"choices": [{"index": 0, "text": "", "finish_reason": "length", "receipt": receipt.document}]}
    path.write_bytes(b"\n" + stream(cut, last))
    assert [(entry.receipt, *entry.shown) for entry in read_receipts(path)] == [(receipt, None, None)]
    path.write_bytes(stream(cut, cut, last))
    assert next(read_receipts(path)).shown.note  # as with echo
    path.write_bytes(stream({"choices": [{"index": 0, "text": "forged"}]}, last))
    assert next(read_receipts(path)).shown.finding.claimed == "forged"
    path.write_bytes(stream(cut))
    assert "has no receipt" in next(read_receipts(path)).error
    path.write_bytes(stream(cut, last)[:-40])
    assert "cut or damaged" in next(read_receipts(path)).error


@pytest.mark.parametrize(
    "chunk", [5, [], {}, {"choices": 5}, {"choices": [5, {"index": {}, "delta": 5}, {"text": []}]}, {"error": {}}]
)
def test_strange_chunks(chunk, tmp_path):
    (tmp_path / "x").write_bytes(stream(chunk))
    assert all(entry.receipt is None for entry in read_receipts(tmp_path / "x"))


def test_what_is_a_stream():
    assert all(map(is_stream, (b"data: {}", b"data:{}", b": ping", b"event: x")))
    assert not any(map(is_stream, (b'{"data": 1}', b"[1]", b"", b"database: x")))
    with pytest.raises(ReceiptError, match="x is cut or damaged"):
        answer_of(b"data: {", "x")
