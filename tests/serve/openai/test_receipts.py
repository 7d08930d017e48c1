"""Receipts from the server: whole and in a stream, of both routes, and what they are checked by."""

import json

import pytest

from tests.serve.conftest import MODEL, SETTINGS
from tokenmill import load
from tokenmill.receipts.file import compare, read_receipts
from tokenmill.receipts.read import checked_receipt

COMPLETION, CHAT = "/v1/completions", "/v1/chat/completions"
BODIES = {
    COMPLETION: {"prompt": "w1 w2", "max_tokens": 12, "seed": 3, "n": 2, "stop": ["w7"]},
    CHAT: {"messages": [{"role": "user", "content": "w1 w2"}], "max_tokens": 12, "temperature": 0.7, "seed": 5, "n": 2},
}


@pytest.fixture(scope="module")
def quiet_engine(chat_model):
    return load(chat_model, **SETTINGS)


def streamed(http, path, body):
    """The receipts of a stream by the index of their texts, each with the last chunk of its text."""
    with http.stream("POST", path, json=body | {"stream": True}) as stream:
        lines = [line.removeprefix("data: ") for line in stream.iter_lines() if line.startswith("data: {")]
    choices = [choice for line in lines for choice in json.loads(line)["choices"]]
    assert all(bool(choice.get("receipt")) == (choice["finish_reason"] is not None) for choice in choices)
    return {choice["index"]: choice["receipt"] for choice in choices if choice.get("receipt")}


@pytest.mark.parametrize("path", BODIES)
def test_receipts_are_verified_and_the_same_in_a_stream(http, quiet_engine, path):
    body = BODIES[path] | {"receipt": True}
    choices = http.post(path, json=body).json()["choices"]
    assert all(compare(choice, checked_receipt(choice["receipt"])) == (None, None) for choice in choices)
    found = {choice["index"]: choice["receipt"] for choice in choices}
    assert len(found) == 2 and streamed(http, path, body) == found
    for index, document in found.items():
        assert document["model"]["name"] == MODEL and document["sampling"]["seed"] == body["seed"] + index
        assert quiet_engine.verify(document).is_verified
        document["tokens"][2] += 1
        found = quiet_engine.verify(checked_receipt(document))
        assert [each.what for each in found.findings] == ["hash", "tokens"] and found.findings[1].position == 2


@pytest.mark.parametrize("path", BODIES)
def test_a_saved_stream_is_read(http, tmp_path, path):
    with http.stream("POST", path, json=BODIES[path] | {"receipt": True, "stream": True}) as stream:
        text = stream.read().decode()
    (tmp_path / "x").write_text(text)
    entries = list(read_receipts(tmp_path / "x"))
    assert [entry.receipt is not None for entry in entries] == [True, True]
    assert all(entry.shown == (None, None) for entry in entries)


def test_with_echo_the_shown_text_is_not_compared(http):
    (choice,) = http.post(COMPLETION, json={"prompt": "w1", "max_tokens": 3, "echo": True, "receipt": True}).json()[
        "choices"
    ]
    finding, note = compare(choice, checked_receipt(choice["receipt"]))
    assert finding is None and "as the prompt does with echo" in note


@pytest.mark.parametrize("path", BODIES)
def test_without_the_field_there_is_none(http, path):
    assert all("receipt" not in choice for choice in http.post(path, json=BODIES[path]).json()["choices"])


def test_no_path_is_told(http, chat_model):
    answer = http.post(COMPLETION, json={"prompt": "w1", "max_tokens": 2, "receipt": True})
    assert chat_model not in answer.text


def test_a_prompt_alone_has_none(http):
    refused = http.post(COMPLETION, json={"prompt": "w1", "max_tokens": 0, "echo": True, "receipt": True})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "receipt"
