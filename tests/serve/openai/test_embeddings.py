"""Embeddings over HTTP: OpenAI's own client in both encodings, Ollama's routes, refusals, and many at once."""

import base64
import json
import shutil
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import openai
import pytest
from openai.types import CreateEmbeddingResponse

from tests.empty import check_empty
from tests.serve.conftest import MODEL, served
from tokenmill.serve.http.errors import ApiError
from tokenmill.serve.openai import embeddings
from tokenmill.serve.openai.computed import MAX_TEXTS
from tokenmill.serve.openai.embeddings import UNTOLD

TEXTS = ["w1 w2", "w3", "w1 w2 w5 w7"]


@pytest.mark.parametrize("encoding", [{}, {"encoding_format": "float"}, {"encoding_format": "base64"}])
def test_vectors_are_those_of_the_engine(encoding, client, quiet):
    """The client asks for base64 where nothing is said, and reads it."""
    wanted = quiet.embed(TEXTS).numpy()
    found = client.embeddings.create(model=MODEL, input=TEXTS, **encoding)
    assert isinstance(found, CreateEmbeddingResponse) and [each.index for each in found.data] == [0, 1, 2]
    vectors = [each.embedding for each in found.data]
    if encoding.get("encoding_format") == "base64":
        vectors = [np.frombuffer(base64.b64decode(each), "<f4") for each in vectors]
    assert np.array_equal(np.array(vectors, np.float32), wanted)
    assert found.usage.prompt_tokens == found.usage.total_tokens == sum(len(quiet.encode(text)) for text in TEXTS)
    assert found.model_extra["warnings"] == [UNTOLD]


def test_one_text_its_ids_and_dimensions(client, quiet):
    ids = quiet.encode(TEXTS[2])
    for given in (TEXTS[2], ids, [ids]):
        (one,) = client.embeddings.create(model=MODEL, input=given, dimensions=5).data
        assert np.array_equal(np.array(one.embedding, np.float32), quiet.embed(TEXTS[2], dimensions=5).numpy())


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"input": ""}, "text 1 of 1: it is empty"),
        ({"input": ["w1", ""]}, "text 2 of 2: it is empty"),
        ({"input": []}, f"input has 0 texts: 1 to {MAX_TEXTS} are allowed"),
        ({"input": ["w1"] * (MAX_TEXTS + 1)}, f"input has {MAX_TEXTS + 1} texts"),
        ({"input": "w1 " * 200}, "96"),
        ({"input": [5, 10**9]}, "token id 1000000000"),
        ({"input": "w1", "dimensions": 10**6}, "dimensions = 1000000: a whole number from 1 to"),
        ({"input": "w1", "dimensions": 0}, "dimensions"),
        ({"input": "w1", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "w1", "prompt_name": "query"}, "prompt_name = 'query': this model's files have none"),
        ({"input": {"text": "w1"}}, "input"),
        ({}, "input"),
        ({"input": "w1", "encodingformat": "float"}, "is 'encoding_format' meant?"),
    ],
)
def test_bad_input_is_refused_by_name(body, words, http):
    response = http.post("/v1/embeddings", json={"model": MODEL, **body})
    assert response.status_code == 400 and words in response.json()["error"]["message"], response.text


def test_another_model_is_refused(client):
    with pytest.raises(openai.NotFoundError, match="is not served here"):
        client.embeddings.create(model="text-embedding-3-small", input="w1")


def test_ollamas_routes(http, quiet):
    found = http.post("/api/embed", json={"model": MODEL, "input": TEXTS}).json()
    assert np.array_equal(np.array(found["embeddings"], np.float32), quiet.embed(TEXTS).numpy())
    assert found["model"] == MODEL and found["total_duration"] > 0
    assert found["prompt_eval_count"] == sum(len(quiet.encode(text)) for text in TEXTS)
    older = http.post("/api/embeddings", json={"model": MODEL, "prompt": TEXTS[0]}).json()["embedding"]
    assert older == found["embeddings"][0]
    long = {"model": MODEL, "input": "w1 " * 200}
    (cut,) = http.post("/api/embed", json=long).json()["embeddings"]
    assert np.array_equal(np.float32(cut), quiet.embed(long["input"], truncate=True).numpy())
    refused = http.post("/api/embed", json=long | {"truncate": False})
    assert refused.status_code == 400 and list(refused.json()) == ["error"]


def test_many_clients_at_once_and_texts_meanwhile(chat_model, quiet):
    """No vector has the rows of another text, and nothing is left behind."""
    wanted = {text: quiet.embed(text).tolist() for text in TEXTS}
    text = quiet.generate("w1 w2", max_new_tokens=40, temperature=0).text
    with served(chat_model) as server:

        def ask(number: int) -> bool:
            with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
                if number % 3 == 0:
                    done = client.completions.create(model=MODEL, prompt="w1 w2", max_tokens=40, temperature=0)
                    return done.choices[0].text == text
                given = TEXTS[number % 2 :]
                found = client.embeddings.create(model=MODEL, input=given, encoding_format="float")
                return [each.embedding for each in found.data] == [wanted[each] for each in given]

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(ask, range(24)))
        check_empty(server.driver.core)


def test_a_client_that_leaves_gives_the_work_up(chat_model, monkeypatch):
    """No step is made until then, so that the vectors cannot be done before."""
    found, begun, given_up = [], threading.Event(), []
    computed = embeddings._computed

    def noting(engine, texts, do):
        given_up.append(do["is_given_up"])
        with pytest.raises(ApiError) as caught:
            computed(engine, texts, do)
        found.append(str(caught.value))
        raise caught.value

    monkeypatch.setattr(embeddings, "_computed", noting)
    with served(chat_model) as server:
        core = server.driver.core
        step = core.loop.step

        def held():
            begun.set()
            while not given_up[0]():
                time.sleep(0.005)
            step()

        monkeypatch.setattr(core.loop, "step", held)
        body = json.dumps({"input": ["w1 w2"] * 200}).encode()
        head = "POST /v1/embeddings HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(body)}"
        with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2]))) as client:
            client.sendall(head.encode() + b"\r\n\r\n" + body)
            assert begun.wait(60)
        while not found:
            time.sleep(0.005)
        assert found == ["400: this was given up before its end"]
        check_empty(core)


def test_texts_and_tokens_do_not_wait_for_vectors(chat_model, monkeypatch, quiet):
    """More requests wait for vectors than a key has threads for other things; none of them goes on before the end."""
    go_on, waiting, computed = threading.Event(), threading.Semaphore(0), embeddings._computed

    def held(*given):
        waiting.release()
        assert go_on.wait(60)
        return computed(*given)

    monkeypatch.setattr(embeddings, "_computed", held)
    with served(chat_model) as server, ThreadPoolExecutor(8) as pool:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60)
        asked = [pool.submit(client.embeddings.create, model=MODEL, input="w1 w2") for _ in range(8)]
        assert waiting.acquire(timeout=60)
        done = client.completions.create(model=MODEL, prompt="w1 w2", max_tokens=8, temperature=0)
        assert done.choices[0].text == quiet.generate("w1 w2", max_new_tokens=8, temperature=0).text
        assert client.post("/../tokenize", body={"prompt": "w1 w2"}, cast_to=object)["count"] > 0
        go_on.set()
        assert all(each.result().data[0].embedding for each in asked)


def test_a_pooling_that_is_not_supported_is_no_fault_of_the_server(chat_model, tmp_path):
    path = Path(shutil.copytree(chat_model, tmp_path / "model"))
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": kind} for kind in ("Pooling", "LSTM")]
    (path / "modules.json").write_text(json.dumps(modules))
    (path / "Pooling").mkdir()
    (path / "Pooling" / "config.json").write_text('{"pooling_mode": "mean"}')
    with served(path) as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        with pytest.raises(openai.BadRequestError, match="type 'LSTM', which is not supported yet"):
            client.embeddings.create(model=client.models.list().data[0].id, input="w1")
