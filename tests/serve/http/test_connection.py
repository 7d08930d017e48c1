"""A connection: heads that do not come, readers that do not read, clients that have closed their half, or all of it."""

import json
import shutil
import socket
import ssl
import threading
import time

import httpx2
import pytest

from tests.empty import check_empty
from tests.serve.conftest import MODEL, hold, served, wire
from tests.serve.loop.test_driver import Gate
from tests.serve.start.test_run import certificate
from tokenmill.serve.http import connection
from tokenmill.serve.http.connection import HttpProtocol
from tokenmill.serve.loop import driver


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(connection, "HEAD_S", 0.3)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("sent", [b"", b"GET /health HTTP/1.1\r\nHost: ", b"G"], ids=["nothing", "half", "a letter"])
def test_a_head_that_does_not_come_closes_the_connection(server, sent):
    begun_s = time.monotonic()
    assert wire(server.url, sent) == b""
    assert time.monotonic() - begun_s < 10


@pytest.mark.slow
def test_a_second_head_that_does_not_come_closes_the_connection(server, monkeypatch):
    complete = HttpProtocol.on_response_complete

    def impatient_from_now_on(protocol):
        monkeypatch.setattr(connection, "HEAD_S", 0.3)
        complete(protocol)

    monkeypatch.setattr(HttpProtocol, "on_response_complete", impatient_from_now_on)
    said = wire(server.url, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /he")
    assert said.startswith(b"HTTP/1.1 200") and said.count(b"HTTP/1.1") == 1


PAGES = 2000  # too much for the buffers of a socket


def ask_for_much(server):
    taken = socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])))
    head = "GET / HTTP/1.1\r\nHost: localhost\r\n"
    taken.sendall(f"{head}\r\n".encode() * (PAGES - 1) + f"{head}Connection: close\r\n\r\n".encode())
    return taken


@pytest.mark.slow
def test_the_socket_of_a_client_that_reads_nothing_is_closed(chat_model, monkeypatch):
    lost, connection_lost = threading.Event(), HttpProtocol.connection_lost
    monkeypatch.setattr(HttpProtocol, "connection_lost", lambda *given: (connection_lost(*given), lost.set()))
    monkeypatch.setattr(connection, "STALL_S", 0.5)
    with served(chat_model) as server, ask_for_much(server):
        assert lost.wait(60) and not server.server_state.connections


@pytest.mark.slow
def test_a_client_that_reads_slowly_gets_everything(chat_model, monkeypatch):
    monkeypatch.setattr(connection, "STALL_S", 2.0)
    with served(chat_model) as server, ask_for_much(server) as taken:
        received = 0
        while part := taken.recv(300_000):
            received += part.count(b"HTTP/1.1 200")
            time.sleep(0.05)
        assert PAGES - 10 <= received <= PAGES  # a status line may lie in two parts


def test_a_stream_that_waits_for_its_reader_is_cancelled(chat_model, monkeypatch):
    def with_small_buffers(protocol, transport):
        connection_made(protocol, transport)
        transport.set_write_buffer_limits(200)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)

    connection_made = HttpProtocol.connection_made
    monkeypatch.setattr(HttpProtocol, "connection_made", with_small_buffers)
    monkeypatch.setattr(HttpProtocol, "_look_for_reader", lambda *_: None)  # which would notice too
    monkeypatch.setattr(connection, "STALL_S", 0.5)
    body = json.dumps({"prompt": "w1 w2", "max_tokens": 90, "ignore_eos": True, "stream": True})
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    with served(chat_model) as server, socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        taken.connect(("127.0.0.1", int(server.url.rpartition(":")[2])))
        taken.sendall(f"{head}Content-Type: application/json\r\n\r\n{body}".encode())
        assert taken.recv(1)
        ends_s = time.monotonic() + 60
        while server.admission.num_open and time.monotonic() < ends_s:
            time.sleep(0.02)
        assert not server.admission.num_open and not server.server_state.connections


def connected(server):
    return socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=60)


def post(body, version="1.1"):
    text = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/{version}\r\nHost: localhost\r\nContent-Length: {len(text)}\r\n"
    return f"{head}Content-Type: application/json\r\n\r\n".encode() + text


BODY = {"prompt": "w1 w2", "max_tokens": 20, "ignore_eos": True, "temperature": 0}


@pytest.mark.parametrize("more", [{}, {"n": 3, "temperature": 1, "seed": 1}, {"stream": True}], ids=str)
def test_a_client_that_has_closed_its_half_is_served(server, more):
    whole = httpx2.post(f"{server.url}/v1/completions", json=BODY, timeout=60).json()["choices"][0]["text"]
    said = wire(server.url, post(BODY | more), is_half_closed=True)
    *interim, answer = said.removesuffix(b"\r\n\r\n").split(b"HTTP/1.1 ")[1:]
    assert answer.startswith(b"200") and all(each.strip() == b"100" for each in interim)
    if more.get("stream"):
        assert said.rstrip().endswith(b"0") and b"data: [DONE]" in answer
    elif not more:
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["choices"][0]["text"] == whole


def test_requests_that_were_sent_together_before_that_are_all_answered(server):
    get = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    said = wire(server.url, get + get + get, is_half_closed=True)
    assert said.count(b"HTTP/1.1 200") == 3


def test_several_requests_before_the_half_is_closed_leave_nothing_behind(server, monkeypatch, caplog):
    """The end of the half is told once for each of them, and a timer that went on after it would find no socket."""
    monkeypatch.setattr(connection, "PROBE_S", 0.01)
    said = wire(server.url, post(BODY) * 4, is_half_closed=True)
    assert said.count(b"HTTP/1.1 200") == 4
    time.sleep(0.05)
    assert not caplog.records


@pytest.mark.parametrize("data", [b"", b"GET /hea", post(BODY)[:-5]], ids=["nothing", "half a head", "half a body"])
def test_what_is_not_whole_then_closes_the_connection(server, data):
    assert b"HTTP/1.1 200" not in wire(server.url, data, is_half_closed=True)


def test_http_1_0_which_knows_no_status_100_is_refused_by_a_sentence(chat_model):
    with served(chat_model) as server:
        hold(server.driver)  # so that it cannot end before the half is closed
        said = wire(server.url, post(BODY | {"max_tokens": 90}, "1.0"), is_half_closed=True)
        assert said.startswith(b"HTTP/1.1 400 Bad Request\r\n") and b"closed for sending" in said
        assert json.loads(said.partition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"
        while server.admission.num_open or server.driver.core.trackers:
            time.sleep(0.01)


def test_http_1_0_is_served_what_takes_no_time(server):
    said = wire(server.url, b"GET /v1/models HTTP/1.0\r\nHost: localhost\r\n\r\n", is_half_closed=True)
    assert said.startswith(b"HTTP/1.1 200") and json.loads(said.partition(b"\r\n\r\n")[2])["data"]


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_stream_that_has_begun_goes_on_for_a_client_that_then_closes_its_half(chat_model, version):
    with served(chat_model) as server, connected(server) as taken:
        step, may_step = server.driver.core.loop.step, threading.Semaphore(1)
        server.driver.core.loop.step = lambda: may_step.acquire(timeout=60) and step()
        taken.sendall(post(BODY | {"stream": True}, version))
        received = taken.recv(65536)
        taken.shutdown(socket.SHUT_WR)
        may_step.release(100)
        while more := taken.recv(65536):
            received += more
    assert b"data: [DONE]" in received and received.count(b"HTTP/1.") == 1


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate")
def test_a_client_that_closes_its_half_of_tls_is_refused_by_a_sentence(chat_model, tmp_path):
    file, key = certificate(tmp_path, "mine")
    with served(chat_model, certificate=file, key_file=key) as server, connected(server) as taken:
        hold(server.driver)  # so that it cannot end before
        given, taking = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = ssl.create_default_context(cafile=file).wrap_bio(given, taking, server_hostname="localhost")

        def do(what):
            while True:
                try:
                    return what()
                except ssl.SSLWantReadError:
                    taken.sendall(taking.read())
                    given.write(taken.recv(65536))

        do(tls.do_handshake)
        tls.write(post(BODY | {"max_tokens": 90}))
        taken.sendall(taking.read())
        while not server.driver.core.trackers:
            time.sleep(0.01)
        with pytest.raises(ssl.SSLWantReadError):
            tls.unwrap()  # which writes that nothing more comes
        assert do(lambda: tls.read(65536)).startswith(b"HTTP/1.1 400")
        while server.admission.num_open or server.driver.core.trackers:
            time.sleep(0.01)


@pytest.mark.parametrize("path", ["/v1/completions", "/api/generate"])
def test_a_client_that_has_read_everything_and_gone_is_noticed(chat_model, path, monkeypatch):
    """Its connection ends without a reset, before there is an event that could be written for it."""
    monkeypatch.setattr(driver, "SILENCE_S", 1e6)
    with served(chat_model) as server:
        gate = Gate(server.driver.core)
        with connected(server) as taken:
            taken.sendall(post({"model": MODEL} | BODY | {"stream": True}).replace(b"/v1/completions", path.encode()))
            received = b""
            while b"\r\n\r\n" not in received:
                received += taken.recv(65536)
            assert received.startswith(b"HTTP/1.1 200") and received.endswith(b"\r\n\r\n")
        while server.admission.num_open:
            time.sleep(0.01)
        gate.opened.set()
        while server.driver.core.trackers:
            time.sleep(0.01)
        assert not server.server_state.connections


def test_a_client_that_has_gone_while_its_prompt_is_scored_is_noticed(chat_model):
    with served(chat_model, {"max_step_tokens": 4}) as server:
        gate, steps = Gate(server.driver.core), []
        step, gate.step = gate.step, lambda: steps.append(step())
        with connected(server) as taken:
            taken.sendall(post({"prompt": [1] * 90, "logprobs": 1, "echo": True, "stream": True}))
            assert gate.waits.wait(60)
        while server.admission.num_open:
            time.sleep(0.01)
        gate.opened.set()
        server.driver.core.thread.call(lambda: None)
        assert len(steps) < 23  # which is how many the prompt takes
        check_empty(server.driver.core)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_has_gone_is_noticed(chat_model, stream):
    with served(chat_model) as server:
        hold(server.driver)  # so that it cannot end before the client has gone
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as taken:
            taken.sendall(post(BODY | {"max_tokens": 90, "stream": stream}))
            while not server.driver.core.trackers:
                time.sleep(0.01)
        while server.admission.num_open or server.driver.core.trackers:
            time.sleep(0.01)
        assert not server.server_state.connections
