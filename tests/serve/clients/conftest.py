"""The fixtures for other servers' behaviours: a server of the real model, and streams read to their end."""

import json

import httpx2
import pytest

from tests.serve.conftest import served

REAL = {"dtype": "auto", "max_length": 512, "block_size": 16}


@pytest.fixture(scope="package")
def real_server(real_model):
    with served(real_model, REAL) as server:
        yield server


@pytest.fixture
def real(real_server):
    """A client of the real model."""
    with httpx2.Client(base_url=real_server.url, timeout=120, trust_env=False) as http:
        yield http


def stream_of(http, path="/v1/completions", **body):
    """The chunks of a stream, which ends with [DONE]."""
    asked = {"temperature": 0, "max_tokens": 8, "stream": True, **body}
    with http.stream("POST", path, json=asked) as response:
        assert response.status_code == 200, response.read()
        *chunks, last = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]
    assert last == "[DONE]"
    return list(map(json.loads, chunks))


def tokens_of(http, **body):
    """The tokens that /tokenize makes of a prompt or of messages."""
    response = http.post("/tokenize", json=body)
    assert response.status_code == 200, response.text
    return response.json()["tokens"]
