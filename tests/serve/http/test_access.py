"""A line for each request."""

import json
import socket
import time

import httpx2
import pytest

from tests.serve.conftest import served

BODY = {"prompt": "w1 secret", "max_tokens": 2}


@pytest.fixture(params=["text", "json"])
def log(request, chat_model):
    """A server, and the lines that it has written."""
    lines = []
    with served(chat_model, tell=lines.append, log_format=request.param, keys=("the-key",)) as server:
        yield server.url, lines


def fields(line):
    if line.startswith("{"):
        record = json.loads(line)
        return [str(record[name]) for name in ("client", "method", "path", "status", "request_id")]
    time, client, method, path, status, _, unit, number = line.split(" ")
    assert unit == "s" and time[4] == "-"
    return [client, method, path, status, number]


def written(lines, count):
    """The lines, which are written just after a response."""
    while len(lines) < count:
        time.sleep(0.01)
    return lines


def test_who_asked_for_what(log):
    url, lines = log
    headers = {"Authorization": "Bearer the-key", "X-Request-Id": "mine-1"}
    response = httpx2.post(f"{url}/v1/completions?x=1", json=BODY, headers=headers, timeout=60)
    assert response.headers["x-request-id"] == "mine-1"
    written(lines, 1)
    assert httpx2.get(f"{url}/v1/models", timeout=60).headers["x-request-id"].startswith("req-")
    written(lines, 2)
    assert fields(lines[0]) == ["127.0.0.1", "POST", "/v1/completions", "200", "mine-1"]
    assert fields(lines[1])[:4] == ["127.0.0.1", "GET", "/v1/models", "401"]
    assert not [line for line in lines if "secret" in line or "the-key" in line]


@pytest.mark.parametrize("number", ["a b", "x" * 65, 'a"b', "a\tb", ""])
def test_ids_that_are_not_plain_are_replaced(log, number):
    url, lines = log
    given = httpx2.get(f"{url}/health", headers={"X-Request-Id": number}, timeout=60).headers["x-request-id"]
    assert given.startswith("req-") and fields(written(lines, 1)[0])[-1] == given


@pytest.mark.parametrize("path", [b"/a%0ab%0d\x1b[31m", b"/" + b"x" * 5000, b"/%00", b"/\xff\xfe"])
def test_no_path_breaks_a_line(log, path):
    url, lines = log
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=120) as connection:
        connection.sendall(b"GET " + path + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        while connection.recv(65536):
            pass
    for line in lines:  # or the protocol has refused it
        assert line.isprintable() and len(line) < 500


def test_what_the_page_asks_all_the_time_has_no_line_unless_it_fails(chat_model):
    lines = []
    with (
        served(chat_model, tell=lines.append, keys=("one",)) as server,
        httpx2.Client(base_url=server.url, timeout=60) as http,
    ):
        assert http.get("/v1/cache", headers={"Authorization": "Bearer one"}).status_code == 200
        assert http.get("/page/main.mjs").status_code == 200
        assert lines == []
        assert http.get("/v1/cache").status_code == 401
        assert " GET /v1/cache 401 " in written(lines, 1)[0]
