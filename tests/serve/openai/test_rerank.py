"""Reranking over HTTP: in the form of Jina, Cohere and vLLM, with a decoder and a cross-encoder, and refusals."""

import pytest

from tests.empty import check_empty
from tests.engine.test_reranking import DOCUMENTS, QUERY, save_classifier
from tests.serve.conftest import served
from tests.word_model import ROLES, TEMPLATE, save_word_model
from tokenmill.engine.load import load

NAME = "ranks"


def length_of(path):
    return 128 if "llama" in path else 64


@pytest.fixture(scope="module", params=["a decoder", "a classifier"])
def path(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranked")
    if request.param == "a decoder":
        return str(save_word_model(folder, TEMPLATE, ("yes", "no", *ROLES)))
    return str(save_classifier("bert", folder)[0])


@pytest.fixture(scope="module")
def server(path):
    with served(path, {"max_length": length_of(path)}, name=NAME) as server:
        yield server


@pytest.fixture(scope="module")
def wanted(path):
    return load(path, max_length=length_of(path)).rerank(QUERY, DOCUMENTS).tolist()


@pytest.mark.parametrize("route", ["/v1/rerank", "/rerank"])
def test_the_best_come_first(route, server, http, wanted):
    body = {"model": NAME, "query": QUERY, "documents": DOCUMENTS}
    found = http.post(route, json=body).json()
    order = sorted(range(4), key=lambda place: -wanted[place])
    assert [each["index"] for each in found["results"]] == order
    assert [each["relevance_score"] for each in found["results"]] == [wanted[place] for place in order]
    assert found["usage"]["total_tokens"] == found["usage"]["prompt_tokens"] > 0 and found["model"] == NAME
    body |= {"documents": [{"text": text} for text in DOCUMENTS], "top_n": 2, "return_documents": True}
    found = http.post(route, json=body).json()["results"]
    assert [each["document"]["text"] for each in found] == [DOCUMENTS[place] for place in order[:2]]
    check_empty(server.driver.core)


def test_pairs_are_scored(http, wanted):
    found = http.post("/v1/score", json={"model": NAME, "text_1": QUERY, "text_2": DOCUMENTS}).json()
    assert found["object"] == "list" and [each["score"] for each in found["data"]] == wanted
    both = http.post("/score", json={"text_1": [QUERY] * 4, "text_2": DOCUMENTS}).json()
    assert both["model"] == NAME  # not where it lies
    assert [each["score"] for each in both["data"]] == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("route", "body", "words"),
    [
        ("/v1/rerank", {"query": "", "documents": ["w1"]}, "query: it is empty"),
        ("/v1/rerank", {"query": "w1", "documents": []}, "0 documents"),
        ("/v1/rerank", {"query": "w1", "documents": ["w1", ""]}, "document 2 of 2: it is empty"),
        ("/v1/rerank", {"query": "w1", "documents": ["w1"], "top_n": -1}, "top_n"),
        ("/v1/rerank", {"query": "w1", "documents": [{"title": "w1"}]}, "only text is read"),
        ("/v1/rerank", {"query": "w1", "document": ["w1"]}, "documents: Field required"),
        ("/v1/rerank", {"query": "w1", "documents": ["w1"], "topn": 1}, "is 'top_n' meant?"),
        ("/v1/rerank", {"query": "w1", "documents": ["w1 " * 500]}, "tokens are over max_length"),
        ("/v1/score", {"text_1": ["w1", "w2"], "text_2": ["w1", "w2", "w3"]}, "text_1 has 2 texts and text_2 3"),
        ("/v1/score", {"text_1": "w1"}, "text_2"),
    ],
)
def test_bad_input_is_refused_by_name(route, body, words, http):
    response = http.post(route, json={"model": NAME, **body})
    assert response.status_code == 400 and words in response.json()["error"]["message"], response.text
