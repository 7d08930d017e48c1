"""OpenAI's Python client: the class of each refusal, and how it leaves, with nothing left behind."""

import asyncio
import time

import openai
import pytest

from tests.empty import check_empty
from tests.serve.conftest import MODEL, hold, served

ASK = {"model": MODEL, "prompt": "w1 w2", "max_tokens": 90, "temperature": 0}
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "w1 w2"}], "max_tokens": 80, "temperature": 0}


def client_of(server, kind=openai.OpenAI, **more):
    settings = {"api_key": "none", "max_retries": 0, "timeout": 30, **more}
    return kind(base_url=f"{server.url}/v1", **settings)


@pytest.fixture
def held(chat_model):
    """A server that makes a few steps of a text and then waits until the client has left."""
    with served(chat_model) as server:
        hold(server.driver)
        yield server
        while server.admission.num_open or server.driver.core.trackers:
            time.sleep(0.01)
        check_empty(server.driver.core)
        assert 'finished_reason="length"' not in server.driver.metrics.text().decode()


def test_models(client):
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "tokenmill"
    assert client.get("/models/", cast_to=object) == client.get("/models", cast_to=object)
    with pytest.raises(openai.NotFoundError, match="is not served here"):
        client.models.retrieve("gpt-4")


def test_401_without_a_key_that_the_server_knows(chat_model):
    with served(chat_model, keys=("one-key",)) as server:
        with client_of(server) as stranger, pytest.raises(openai.AuthenticationError) as caught:
            stranger.chat.completions.create(**CHAT)
        assert caught.value.code == "invalid_api_key"
        with client_of(server, api_key="one-key") as known:
            assert known.chat.completions.create(**CHAT).usage.completion_tokens == 80


def test_404_for_what_there_is_not(client):
    with pytest.raises(openai.NotFoundError):
        client.moderations.create(input="w1")


def test_400_comes_before_a_stream_begins(client):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**(CHAT | {"temperature": -1}), stream=True)
    assert (caught.value.param, caught.value.type) == ("temperature", "invalid_request_error")


@pytest.mark.parametrize("stream", [False, True])
def test_429_says_how_long_to_wait(chat_model, stream):
    with served(chat_model, {"max_sequences": 1}, max_queued=0) as server:
        server.admission._clock = lambda: 0.0  # a slot that is held for a second more makes the wait longer
        with server.admission.slots(1), client_of(server) as client, pytest.raises(openai.RateLimitError) as caught:
            client.completions.create(**ASK, stream=stream)
        assert caught.value.code == "queue_full" and caught.value.response.headers["retry-after"] == "1"


def test_after_429_the_client_tries_again(chat_model):
    with served(chat_model, {"max_sequences": 1}, max_queued=0) as server:
        server.admission.num_open = 1
        server.driver.metrics.count_rejected = lambda _: setattr(server.admission, "num_open", 0)
        with client_of(server, max_retries=1) as client:
            assert client.completions.create(**ASK).usage.completion_tokens == 90


def test_503_when_the_server_is_shutting_down(chat_model):
    with served(chat_model) as server, client_of(server) as client:
        server.served.service.is_draining = True
        with pytest.raises(openai.InternalServerError) as caught:
            client.completions.create(**ASK)
        assert caught.value.status_code == 503 and caught.value.code == "shutting_down"


def test_a_stream_that_is_closed(held):
    with client_of(held) as client:
        with client.completions.create(**ASK, stream=True) as stream:
            next(iter(stream))
        with client.chat.completions.create(**CHAT, stream=True) as stream:
            next(iter(stream))


@pytest.mark.parametrize("stream", [False, True])
def test_a_task_that_is_cancelled(held, stream):
    async def leave():
        async with client_of(held, openai.AsyncOpenAI) as client:
            asking = asyncio.ensure_future(client.completions.create(**ASK, stream=stream))
            while not held.admission.num_open:
                await asyncio.sleep(0.01)
            asking.cancel()
            await asyncio.wait({asking})

    asyncio.run(leave())


def test_a_client_that_waits_no_longer(held):
    with client_of(held, timeout=0.3) as client, pytest.raises(openai.APITimeoutError):
        client.chat.completions.create(**CHAT)
