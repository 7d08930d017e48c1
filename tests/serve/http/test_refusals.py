"""Errors in the form of each protocol, before the first byte and after it."""

import json
import threading
import time

import anthropic
import httpx2
import openai
import pytest
from openai.types.responses import ResponseFailedEvent

from tests.serve.conftest import MODEL, served
from tests.serve.loop.test_driver import Gate
from tokenmill.serve.http.errors import ApiError, EngineDied, TooLong
from tokenmill.serve.protocols import refusals_at

ASKED = [{"role": "user", "content": "w1 w2"}]
BODIES = {
    "/v1/chat/completions": {"messages": ASKED, "max_tokens": 90},
    "/v1/messages": {"messages": ASKED, "max_tokens": 90},
    "/v1/responses": {"input": "w1 w2", "max_output_tokens": 90},
}


def test_a_prompt_that_is_too_long():
    error = TooLong(120, 100, "messages")
    assert refusals_at("").body(error)["error"]["code"] == refusals_at("/v1/responses").body(error)["error"]["code"]
    assert refusals_at("/v1/messages").body(error) == {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "prompt is too long: 120 tokens > 99 maximum"},
    }


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/chat/completions", {"response_format": {"type": "json_object", "schema": 3}}, "response_format"),
        ("/v1/responses", {"text": {"format": {"type": "json_schema", "name": "a", "schema": 3}}}, "text.format"),
        ("/v1/responses", {"max_output_tokens": 90, "temperature": -1}, "temperature"),
        ("/v1/responses", {"input": "w1 " * 200}, "input"),
        ("/v1/messages", {"output_config": {"format": {"type": "json_schema", "schema": 3}}}, "output_config.format"),
        ("/v1/messages", {"stop_sequences": [""]}, "stop_sequences"),
    ],
)
def test_a_field_has_the_name_that_the_protocol_gives_it(http, path, body, field):
    error = http.post(path, json=BODIES[path] | body).json()["error"]
    assert error.get("param", field) == field and (field == "input" or error["message"].startswith(field))


def test_codex_reads_how_long_it_should_wait():
    told = refusals_at("/v1/responses").body(ApiError(429, "the server is full.", retry_after_s=7))["error"]
    assert told["code"] == "rate_limit_exceeded" and told["message"].endswith("Please try again in 7s.")


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (413, "request_too_large"),
        (415, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (503, "overloaded_error"),
        (504, "timeout_error"),
    ],
)
def test_kinds_of_anthropic(status, kind):
    assert refusals_at("/v1/messages").body(ApiError(status, "x"))["error"] == {"type": kind, "message": "x"}


def test_events():
    error = EngineDied("it has failed")
    assert refusals_at("").event_of(error, {}).startswith(b'data: {"error":')
    assert refusals_at("/v1/messages").event_of(error, {}).startswith(b'event: error\ndata: {"type":"error"')
    name, data = refusals_at("/v1/responses").event_of(error, {"id": "resp_1"}).decode().strip().split("\n")
    told = json.loads(data.removeprefix("data: "))
    assert name == "event: response.failed" and told["type"] == "response.failed"
    assert (told["response"]["id"], told["response"]["status"]) == ("resp_1", "failed")
    assert told["response"]["error"]["code"] == "server_error"
    ResponseFailedEvent.model_validate(told)


@pytest.mark.parametrize("path", BODIES)
def test_a_stream_whose_engine_fails_ends_with_an_error(path, chat_model):
    with served(chat_model) as server:
        loop = server.driver.core.loop
        step, made = loop.step, iter(range(1000))

        def breaks():
            if next(made) == 5:
                raise ValueError("broken")
            step()

        loop.step = breaks
        with httpx2.stream("POST", f"{server.url}{path}", json=BODIES[path] | {"stream": True}, timeout=60) as stream:
            lines = list(stream.iter_lines())
    last = json.loads([line for line in lines if line.startswith("data: ")][-1].removeprefix("data: "))
    told = last["response"]["error"] if path == "/v1/responses" else last["error"]
    assert "the engine has failed" in told["message"]
    assert last.get("type") == {"/v1/messages": "error", "/v1/responses": "response.failed"}.get(path)
    if path == "/v1/responses":
        ResponseFailedEvent.model_validate(last)
        before = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
        assert [event["sequence_number"] for event in before] == list(range(len(before)))


@pytest.mark.parametrize("path", BODIES)
def test_a_full_server_says_429_before_the_first_byte(path, chat_model):
    with served(chat_model, {"max_sequences": 1}, max_queued=0) as server:
        gate = Gate(server.driver.core)
        first = threading.Thread(target=lambda: httpx2.post(f"{server.url}{path}", json=BODIES[path], timeout=60))
        first.start()
        while not server.admission.num_open:
            time.sleep(0.001)
        refused = httpx2.post(f"{server.url}{path}", json=BODIES[path] | {"stream": True}, timeout=60)
        gate.opened.set()
        first.join()
    assert refused.status_code == 429 and refused.headers["retry-after"]
    assert refused.headers["content-type"] == "application/json"


def test_keys_of_both_kinds(chat_model):
    with served(chat_model, keys=("one-key",)) as server:
        plain = {"max_retries": 0, "timeout": 60}
        with anthropic.Anthropic(base_url=server.url, api_key="one-key", **plain) as client:
            assert client.messages.create(model=MODEL, messages=ASKED, max_tokens=1).content
        with anthropic.Anthropic(base_url=server.url, auth_token="one-key", **plain) as client:
            assert client.messages.create(model=MODEL, messages=ASKED, max_tokens=1).content
        with anthropic.Anthropic(base_url=server.url, api_key="other", **plain) as client:
            with pytest.raises(anthropic.AuthenticationError) as caught:
                client.messages.create(model=MODEL, messages=ASKED, max_tokens=1)
            assert caught.value.body["error"]["type"] == "authentication_error"
        other = openai.OpenAI(base_url=f"{server.url}/v1", api_key="other", max_retries=0)
        with other as client, pytest.raises(openai.AuthenticationError):
            client.responses.create(model=MODEL, input="w1")
