"""The advice of a refusal is something that a client of the server can do, and leads to success."""

import httpx2
import pytest

from tests.serve.conftest import served
from tests.tiny_models import save
from tests.word_model import save_word_model

MESSAGES = {"messages": [{"role": "user", "content": "w1"}]}


def asked(server, path, **body):
    """Status and message of a refusal; of an answer the status alone."""
    response = httpx2.post(f"{server.url}{path}", json=body, timeout=60)
    return response.status_code, response.json().get("error", {}).get("message")


@pytest.fixture(scope="module")
def wordless(models):
    with served(save("llama", models / "wordless")) as server:
        yield server


@pytest.fixture(scope="module")
def plain(models):
    """A server without a chat template, whose cache is smaller than the longest text."""
    with served(save_word_model(models), {"cache_tokens": 32}) as server:
        yield server


def test_a_model_without_a_tokenizer(wordless):
    for path in ("/v1/chat/completions", "/tokenize"):
        status, message = asked(wordless, path, **MESSAGES)
        assert (status, message) == (
            400,
            "this model has no tokenizer, so it has no conversations: /v1/completions takes a prompt of token ids",
        )
    assert asked(wordless, "/tokenize", prompt="w1") == (400, "this model has no tokenizer")
    advice = "this model has no tokenizer: give the prompt as token ids"
    assert asked(wordless, "/v1/completions", prompt="w1") == (400, advice)
    assert asked(wordless, "/v1/completions", prompt=[1, 2], max_tokens=2)[0] == 200
    advice = "stop texts need a tokenizer: use stop_token_ids with this model"
    assert asked(wordless, "/v1/completions", prompt=[1, 2], stop="x") == (400, advice)
    assert asked(wordless, "/v1/completions", prompt=[1, 2], stop_token_ids=[3], max_tokens=2)[0] == 200


def test_a_model_without_a_chat_template(plain):
    for path in ("/v1/chat/completions", "/tokenize"):
        status, message = asked(plain, path, **MESSAGES)
        assert (status, message) == (
            400,
            "this model has no chat template: /v1/completions takes a prompt as text",
        )
    assert asked(plain, "/v1/completions", prompt="w1", max_tokens=2)[0] == 200


def test_min_tokens_that_the_context_does_not_leave(plain):
    """The message said "at most max_tokens, which is 31", whatever max_tokens was."""
    for max_tokens in (60, -1):
        status, message = asked(plain, "/v1/completions", prompt="w1", min_tokens=60, max_tokens=max_tokens)
        assert (status, message) == (
            400,
            "min_tokens = 60 is not allowed: at most 31, which the prompt leaves of the context",
        )
    assert asked(plain, "/v1/completions", prompt="w1", min_tokens=31, max_tokens=-1)[0] == 200
    status, message = asked(plain, "/v1/completions", prompt="w1", min_tokens=9, max_tokens=3)
    assert (status, message) == (400, "min_tokens = 9 is not allowed: at most max_tokens, which is 3")
