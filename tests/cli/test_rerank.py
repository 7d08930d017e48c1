"""`tokenmill rerank`: documents in order as lines of JSON, the same scores as the engine's, and bad input."""

import json

import pytest

from tests.engine.test_reranking import DOCUMENTS, QUERY, save_classifier
from tokenmill.engine.load import load


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return save_classifier("bert", tmp_path_factory.mktemp("ranks"))[0]


def test_the_best_come_first(ranks, tm, tmp_path):
    wanted = load(ranks, max_length=64).rerank(QUERY, DOCUMENTS).tolist()
    order = sorted(range(4), key=lambda place: -wanted[place])
    code, out, err = tm("rerank", ranks, "--query", QUERY, *(word for text in DOCUMENTS for word in ("-p", text)))
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and "4 documents" in err
    assert [(line["index"], line["score"], line["document"]) for line in lines] == [
        (place, wanted[place], DOCUMENTS[place]) for place in order
    ]
    (tmp_path / "documents.txt").write_text("\n\n".join(DOCUMENTS))
    more = ("--each-line", "--prompt-file", tmp_path / "documents.txt", "--top", 1, "-q")
    code, out, err = tm("rerank", ranks, "--query", QUERY, *more)
    assert code == 0 and not err and [json.loads(line)["index"] for line in out.splitlines()] == order[:1]


def test_bad_input(ranks, tm):
    for more, words in (
        (("-p", "w1"), "--query"),
        (("-p", "w1", "--query", ""), "query: it is empty"),
        (("-p", "w1", "--query", QUERY, "--top", 0), "top = 0"),
        (("-p", "w1 " * 90, "--query", QUERY, "--max-length", 64), "tokens are over --max-length"),
        (("-p", "w1", "--query", QUERY, "--instruction", "Find."), "reads no instruction"),
    ):
        code, out, err = tm("rerank", ranks, "-q", *more)
        assert code != 0 and not out and words in err, err
