"""The checks before every route: keys, hosts, sizes, slow clients."""

import gzip
import socket
import time

import httpx2
import pytest

from tests.serve.conftest import served, wire
from tokenmill.errors import ConfigError
from tokenmill.serve.http import guard
from tokenmill.serve.start.options import read_keys

BODY = {"prompt": "w1", "max_tokens": 2}
ROUTES = [
    ("GET", "/v1/models"),
    ("GET", "/v1/models/words"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("GET", "/version"),
    ("GET", "/openapi.json"),
    ("GET", "//v1/models"),
    ("GET", "/v1/%6dodels"),
    ("GET", "/health/../v1/models"),
    ("GET", "/health//"),
    ("OPTIONS", "/v1/models"),
    ("DELETE", "/v1/models"),
    ("GET", "/no/such/path"),
]


@pytest.fixture(scope="module")
def locked(chat_model):
    with served(chat_model, keys=("one-key", "other-key"), max_body=10_000) as server:
        yield server.url


@pytest.mark.parametrize("key", [None, "", "one", "one-key-and-more", "ONE-KEY", "wrong"])
@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_every_route_wants_a_key(locked, method, path, key):
    auth = "" if key is None else f"Authorization: Bearer {key}\r\n"
    said = wire(locked, f"{method} {path} HTTP/1.1\r\nHost: x\r\n{auth}Connection: close\r\n\r\n".encode())
    assert said.startswith(b"HTTP/1.1 401 ") and b'"code":"invalid_api_key"' in said


@pytest.mark.parametrize("path", ["/health", "/ping", "/ready", "/health/", "/ping/", "/ready/"])
def test_health_needs_none(locked, path):
    assert httpx2.get(locked + path, timeout=60, follow_redirects=True).json() == {"status": "ok"}


@pytest.mark.parametrize(
    "path", ["/health", "/version", "/v1/models", "/", "/metrics", "/openapi.json", "/no/such/path"]
)
def test_head_is_get_without_its_body(locked, path):
    headers = {"Authorization": "Bearer one-key"}
    head = httpx2.head(locked + path, headers=headers, timeout=60)
    got = httpx2.get(locked + path, headers=headers, timeout=60)
    assert head.status_code == got.status_code and not head.content
    assert head.headers["content-type"] == got.headers["content-type"] and int(head.headers["content-length"]) > 0
    assert httpx2.head(f"{locked}/v1/completions", headers=headers, timeout=60).status_code == 405


@pytest.mark.parametrize("header", ["Bearer one-key", "bearer other-key"])
def test_a_key_lets_in(locked, header):
    response = httpx2.post(f"{locked}/v1/completions", json=BODY, headers={"Authorization": header}, timeout=60)
    assert response.status_code == 200 and response.json()["usage"]["completion_tokens"] == 2


def test_a_foreign_host_is_refused_where_no_key_is_needed(server):
    for host, status in [("evil.example", 403), ("localhost:1234", 200), ("127.0.0.1", 200), ("[::1]:80", 200)]:
        assert httpx2.get(f"{server.url}/version", headers={"Host": host}, timeout=60).status_code == status


def test_bodies_that_are_too_large(locked):
    key = {"Authorization": "Bearer one-key"}
    said = httpx2.post(f"{locked}/v1/completions", json={"prompt": "w1 " * 10_000}, headers=key, timeout=60)
    assert said.status_code == 413 and said.headers["connection"] == "close"

    def endless():
        while True:
            yield b" " * 4000

    try:
        as_json = key | {"Content-Type": "application/json"}
        said = httpx2.post(f"{locked}/v1/completions", content=endless(), headers=as_json, timeout=60)
        assert said.status_code == 413
    except (httpx2.WriteError, httpx2.ReadError):
        pass  # the connection was closed while more was sent


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_bodies_that_do_not_say_that_they_are_json(server, kind):
    """A web page may send these to a server of this machine, and no browser asks the server before."""
    headers = {} if kind is None else {"Content-Type": kind}
    said = httpx2.post(f"{server.url}/v1/completions", content=b'{"prompt": "w1"}', headers=headers, timeout=60)
    assert said.status_code == 415 and "application/json" in said.json()["error"]["message"]


@pytest.mark.parametrize("headers", [b"", b"Authorization: Bearer one-key\r\nContent-Encoding: gzip\r\n"])
def test_a_client_that_sends_its_body_after_the_refusal_reads_the_refusal(locked, monkeypatch, headers):
    """Closed with something unread, the connection would be reset."""
    monkeypatch.setattr(guard, "LINGER_S", 20.0)
    host, port = locked.removeprefix("http://").split(":")
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 8000\r\n"
    with socket.create_connection((host, int(port)), timeout=120) as connection:
        connection.sendall(head + headers + b"\r\n")
        time.sleep(0.2)  # for a server that closes at once
        for _ in range(8):
            connection.sendall(b" " * 1000)
            time.sleep(0.01)
        received = b""
        while more := connection.recv(65536):
            received += more
    assert received.startswith((b"HTTP/1.1 401", b"HTTP/1.1 415")) and received.endswith(b"}}")


def test_compressed_bodies_are_not_unpacked(locked):
    headers = {"Authorization": "Bearer one-key", "Content-Encoding": "gzip"}
    said = httpx2.post(
        f"{locked}/v1/completions", content=gzip.compress(b" " * 10**7)[:9000], headers=headers, timeout=60
    )
    assert said.status_code == 415


@pytest.mark.parametrize(
    "head", [b"X: " + b"a" * 10**6, b"".join(b"X%d: a\r\n" % i for i in range(10_000))], ids=["long", "many"]
)
def test_headers_that_are_too_large(locked, head):
    try:
        said = wire(locked, b"GET /health HTTP/1.1\r\nHost: x\r\n" + head + b"\r\n\r\n")
    except ConnectionError:
        return  # closed while more was sent
    assert said.startswith(b"HTTP/1.1 4")


def test_a_body_that_does_not_come_is_refused(server, monkeypatch):
    monkeypatch.setattr(guard, "BODY_S", 0.3)
    head = (
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 90\r\n"
    )
    said = wire(server.url, head + b'\r\n{"pro')
    assert said.startswith(b"HTTP/1.1 408") and b"connection: close" in said.lower()


def test_keys_of_a_file(tmp_path):
    file = tmp_path / "keys"
    file.write_text("# people\nalice-key\n\n  bob-key  \n")
    assert read_keys("mine", file) == ("mine", "alice-key", "bob-key")
    assert read_keys(None, None) == ()


@pytest.mark.parametrize("text", ["", "# nothing\n", "two words\n", "schlüssel\n"])
def test_a_file_without_keys_is_refused(tmp_path, text):
    (tmp_path / "keys").write_text(text)
    with pytest.raises(ConfigError, match="api_key"):
        read_keys(None, tmp_path / "keys")


def test_a_file_that_is_missing_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"No such file.*|--api-key-file"):
        read_keys(None, tmp_path / "missing")


@pytest.mark.parametrize("key", ["", "ü", "a b", "a\nb"])
def test_a_key_that_no_header_can_carry(key):
    with pytest.raises(ConfigError, match="--api-key"):
        read_keys(key, None)
