"""The process: signals, ports, and the command line."""

import asyncio
import json
import os
import re
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress

import httpx2
import pytest

from tests.serve.conftest import MODEL, served
from tokenmill.cli.serve.verb import EXAMPLES
from tokenmill.errors import ConfigError
from tokenmill.serve.http.address import Address, listen
from tokenmill.serve.start.options import Options

BODY = {"prompt": "w1 w2", "max_tokens": 90, "temperature": 0, "stream": True}


@contextmanager
def running(path, *options, program=("-m", "tokenmill")):
    """`tokenmill serve` in a process, at a free port; the process and its URL. program: what Python runs."""
    command = [sys.executable, *program, "serve", path, "--port", "0", "--dtype", "float32", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        first = next(line for line in process.stderr if "Ctrl-C ends" in line)
        yield process, re.search(r"http://\S+\d", first)[0]
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_answers_are_sent_without_waiting_for_an_acknowledgement():
    """Nagle's algorithm would hold the second piece of an answer back for 40 ms."""
    found = []

    def accept(_, writer):
        found.append(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    async def connect(host):
        taken = listen(Address(host, port=0))
        async with await asyncio.start_server(accept, sock=taken):
            reader, writer = await asyncio.open_connection(*taken.getsockname()[:2])
            await reader.read()
            writer.close()

    for host in ("127.0.0.1", "::1") if socket.has_dualstack_ipv6() else ("127.0.0.1",):
        asyncio.run(connect(host))
    assert found and all(found)


def read(url, got, begun, body=BODY):
    with suppress(httpx2.TransportError), httpx2.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as one:
        for line in one.iter_lines():
            got.append(line)
            begun.set()


@pytest.mark.slow
def test_a_signal_lets_streams_end(chat_model):
    with running(chat_model, "--max-length", "96") as (process, url):
        got, begun = [], threading.Event()
        reading = threading.Thread(target=read, args=(url, got, begun))
        reading.start()
        assert begun.wait(60)
        process.send_signal(signal.SIGTERM)
        reading.join(60)
        assert process.wait(60) == 0
        assert got[-2:] == ["data: [DONE]", ""] or "data: [DONE]" in got
        pieces = [json.loads(line.removeprefix("data: ")) for line in got if line.startswith("data: {")]
        assert sum(len(piece["choices"][0]["text"].split()) for piece in pieces) == 90


def test_a_port_that_is_taken_is_refused_before_the_model_is_loaded():
    with listen(Address(port=0)) as taken, pytest.raises(ConfigError, match=r"Address already in use.*|--port"):
        listen(Address(port=taken.getsockname()[1]))


def test_an_address_that_is_none_of_ours():
    with pytest.raises(ConfigError, match="host"):
        listen(Address(host="no.such.host.invalid"))


@pytest.mark.slow
def test_the_command_names_the_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        command = [sys.executable, "-m", "tokenmill", "serve", "no-such-model", "--port", str(taken.getsockname()[1])]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)
    assert done.returncode == 2 and done.stderr.startswith("error: ") and "--port" in done.stderr


@pytest.mark.parametrize(("options", "seconds"), [({}, 75), ({"keep_alive_s": 3}, 3)])
def test_how_long_idle_connections_stay_open(chat_model, options, seconds):
    with served(chat_model, **options) as server:
        assert server.config.timeout_keep_alive == seconds


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl")
def test_the_call_that_the_help_shows(server):
    (call,) = (example for example in EXAMPLES if "curl" in example)
    words = shlex.split(call[call.index("curl") :].rstrip("`"))
    at = words.index("localhost:8000/v1/completions")
    words[at] = f"{server.url}/v1/completions"
    done = subprocess.run([*words, "--silent", "--noproxy", "*"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["choices"][0]["text"]


def certificate(folder, name):
    """A certificate for localhost that it signs itself, and its key."""
    key, file = folder / f"{name}.key", folder / f"{name}.pem"
    command = f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout {key} -out {file}"
    subprocess.run(command.split(), check=True, capture_output=True)
    return file, key


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate")
def test_https(chat_model, tmp_path):
    file, key = certificate(tmp_path, "mine")
    with served(chat_model, certificate=file, key_file=key) as server:
        url = server.url.replace("http:", "https:").replace("127.0.0.1", "localhost")
        trusted = ssl.create_default_context()
        trusted.load_verify_locations(file)
        trusted.check_hostname = False  # the certificate has no alternative names
        assert httpx2.get(f"{url}/version", verify=trusted, timeout=60).status_code == 200
        with pytest.raises(httpx2.ConnectError):
            httpx2.get(f"{url}/version", timeout=60)
    _, other = certificate(tmp_path, "other")
    for pair in [(file, other), (file, None), (tmp_path / "missing", key), (key, key)]:
        with pytest.raises(ConfigError, match="ssl_certfile"):
            Options(MODEL, certificate=pair[0], key_file=pair[1])
    with pytest.raises(ConfigError, match="ssl_keyfile"):
        Options(MODEL, key_file=key)
