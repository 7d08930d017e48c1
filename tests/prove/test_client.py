"""Servers that cannot be checked: each error is one line that says what to do."""

import shutil
import socket
import subprocess
import threading
from contextlib import contextmanager, suppress

import pytest
from starlette.applications import Starlette
from starlette.responses import HTMLResponse, JSONResponse
from starlette.routing import Route

from tests.prove.fake import Fake, running
from tokenmill.errors import ConfigError, TokenmillError
from tokenmill.prove.run import prove
from tokenmill.prove.settings import Settings


def app(answer):
    async def run(_):
        return answer

    return Starlette(routes=[Route("/{path:path}", run, methods=["GET", "POST"])])


def refused(url, **settings):
    with pytest.raises(TokenmillError) as caught:
        prove(Settings(url, **{"request_limit_s": 10.0, "time_s": 20.0, **settings}))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_nobody_there():
    with socket.socket() as taken:  # bound, so that nobody else gets the port, and not listening
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        said = refused(f"http://127.0.0.1:{port}")
    assert said.startswith(f"no server answers at http://127.0.0.1:{port} (") and "check the address" in said


@pytest.mark.parametrize("url", ["ftp://x", "127.0.0.1:8000", "http://", "http://user:pass@host", "http://host:port"])
def test_what_is_no_address(url):
    with pytest.raises(ConfigError, match="URL = "):
        Settings(url)


@contextmanager
def speaking(data):
    """A server that says these bytes to everybody who connects."""
    with socket.create_server(("127.0.0.1", 0)) as taken:

        def answer():
            while True:
                try:
                    connection, _ = taken.accept()
                except OSError:
                    return
                with connection, suppress(OSError):
                    connection.recv(1000)
                    connection.sendall(data)
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(1000):  # closed with something unread, the connection would be reset
                        pass

        threading.Thread(target=answer, daemon=True).start()
        yield taken.getsockname()[1]
        taken.shutdown(socket.SHUT_RDWR)


def test_what_is_no_http():
    with speaking(b"220 mail ready\r\n") as port:
        assert "does not answer in HTTP" in refused(f"http://127.0.0.1:{port}")
        assert "does not speak TLS" in refused(f"https://127.0.0.1:{port}")


def test_what_is_no_openai_server():
    with running(app(HTMLResponse("<html>"))) as url:
        assert "answers no JSON (HTTP 200): give the address before /v1 of an OpenAI-compatible" in refused(url)
        said = refused(url, model="x")
        assert "nothing can be asked of" in said and "an answer that is no JSON (text/html)" in said
    with running(app(JSONResponse({"hello": 1}))) as url:
        assert "answers no list of models (HTTP 200)" in refused(url)
        assert "JSON without choices (hello)" in refused(url, model="x")
    with running(app(JSONResponse({"error": {"message": "not here"}}, 404))) as url:
        assert "answers no list of models (HTTP 404)" in refused(url)
        assert "/v1/completions: HTTP 404: not here; /v1/chat/completions: HTTP 404: not here" in refused(
            url, model="x"
        )


@pytest.mark.parametrize("status", [429, 503])
def test_what_is_full_from_the_beginning(status):
    with running(app(JSONResponse({"error": {"message": "too many"}}, status))) as url:
        said = refused(url, patience_s=0.1)
        assert f"answered {status} all the time, for 0 s (too many): wait until it is less busy" in said


def test_keys():
    with running(Fake(key="right").app) as url:
        assert "wants a key (HTTP 401): give it with --key" in refused(url)
        assert "wants another key" in refused(url, key="wrong")
        settings = Settings(url, key="right", cases=("again",), comparisons=4, max_tokens=2)
        assert prove(settings).num_comparisons == 4
    with pytest.raises(ConfigError) as caught:
        Settings(url, key="schlüssel")
    assert "schl" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate")
def test_certificates(tmp_path):
    key, file = tmp_path / "mine.key", tmp_path / "mine.pem"
    command = f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout {key} -out {file}"
    command += " -addext subjectAltName=IP:127.0.0.1"
    subprocess.run(command.split(), check=True, capture_output=True)
    with running(Fake().app, ssl_certfile=str(file), ssl_keyfile=str(key)) as url:
        said = refused(url)
        assert "has a certificate that is not trusted here (" in said and "give its authority by --ca-file" in said
        assert "a server with TLS has an address with https://" in refused(url.replace("https:", "http:"))
        assert prove(Settings(url, ca_file=file, cases=("again",), comparisons=4, max_tokens=2)).num_comparisons == 4


def test_a_file_of_certificates_that_is_none(tmp_path):
    bad = tmp_path / "bad.pem"
    bad.write_text("no certificate")
    for path in (bad, tmp_path / "none.pem"):
        assert "--ca-file = " in refused("https://127.0.0.1:1", ca_file=path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("requests", 0),
        ("comparisons", 0),
        ("concurrency", 1),
        ("max_tokens", 0),
        ("time_s", float("inf")),
        ("tolerance", 0.1),
        ("cases", ("nothing",)),
        ("cases", ("restart",)),
        ("seed", -1),
    ],
)
def test_settings_that_are_refused(name, value):
    with pytest.raises(ConfigError):
        Settings("http://127.0.0.1", **{name: value})
