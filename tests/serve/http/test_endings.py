"""A stream never ends without a finish or an error, and at the end of the server's time every request hears of it."""

import json
import signal
import threading
import time

import httpx2
import openai
import pytest

from tests.serve.conftest import MODEL, served, wire
from tests.serve.loop.test_driver import Gate
from tests.serve.sessions.test_batches import client_of, line, started
from tests.serve.start.test_run import BODY, read, running
from tokenmill.engine.requests import Request

CHAT = {"messages": [{"role": "user", "content": "w1 w2"}], "max_tokens": 90, "temperature": 0}
TOLD = {
    "message": "the server has shut down before this request had ended",
    "type": "server_error",
    "param": None,
    "code": "shutting_down",
}


def last_event(lines):
    return json.loads([line for line in lines if line.startswith("data: ")][-1].removeprefix("data: "))


def asked(server, path, body, got):
    """Send a request in a thread, and note its status and body."""

    def ask():
        response = httpx2.post(f"{server.url}{path}", json=body, timeout=120)
        got.append((response.status_code, response.text))

    thread = threading.Thread(target=ask)
    thread.start()
    return thread


@pytest.mark.parametrize("timeout_s", [0.0, 0.5])
def test_at_the_end_of_the_timeout_every_request_hears_of_it(chat_model, tmp_path, timeout_s):
    """Requests may run or wait, be streams or sessions, be worked on by a thread, or have a body that has not come."""
    with served(chat_model, {"max_sequences": 1}, session_dir=tmp_path, drain_s=timeout_s) as server:
        gate, slow = Gate(server.driver.core), threading.Event()
        server.driver.core.inputs.chat_prompt = lambda *_, **__: slow.wait(120) and [1]
        plain = [("/v1/completions", BODY | {"stream": False})] * 2 + [("/v1/sessions/tale/save", {"prompt": "w1 w2"})]
        streams = [("/v1/completions", BODY)] * 2
        slow_ones = [("/v1/chat/completions", CHAT), ("/tokenize", {"messages": CHAT["messages"]})]
        got = {name: [] for name in ("plain", "streams", "slow")}
        threads = [asked(server, *each, got["streams"]) for each in streams]
        threads += [asked(server, *each, got["plain"]) for each in plain]
        threads += [asked(server, *each, got["slow"]) for each in slow_ones]
        head = (
            b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n"
        )
        late: list[bytes] = []
        threads.append(threading.Thread(target=lambda: late.append(wire(server.url, head + b"{"))))
        threads[-1].start()
        while len(server.server_state.tasks) < len(threads):
            time.sleep(0.01)
        assert gate.waits.wait(60)
        begun_s = time.monotonic()
        server.drain()
        for thread in threads:
            thread.join(60)
        assert time.monotonic() - begun_s >= timeout_s
        gate.opened.set()
        slow.set()
    for status, text in got["plain"] + got["slow"]:
        assert status == 503 and json.loads(text)["error"]["code"] == "shutting_down"
    assert len(got["plain"]) == 3 and len(got["slow"]) == 2
    assert late[0].startswith(b"HTTP/1.1 503") and b"retry-after: " in late[0].lower() and b'"param":null' in late[0]
    for status, text in got["streams"]:
        if status == 200:  # else not even its head was sent
            assert last_event(text.splitlines()) == {"error": TOLD} and "[DONE]" not in text


@pytest.mark.slow
def test_a_second_signal_ends_now(chat_model):
    """Though a request of minutes is running; its stream hears of it."""
    with running(chat_model, "--shutdown-timeout", "600", "--max-queued-requests", "2000") as (process, url):
        got, begun = [], threading.Event()
        reading = threading.Thread(target=read, args=(url, got, begun, BODY | {"n": 1000}), daemon=True)
        reading.start()
        assert begun.wait(60)
        process.send_signal(signal.SIGSTOP)  # so that both signals find it at the same place
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGCONT)
        assert process.wait(60) - 128 in (signal.SIGTERM, signal.SIGINT)  # threads may take them in either order
        reading.join(60)
        assert not reading.is_alive() and last_event(got) == {"error": TOLD}


def test_a_second_signal_waits_for_no_step(chat_model, tmp_path):
    """Also not for one of a batch."""
    with served(chat_model, drain_s=600.0, batch_dir=tmp_path) as server, client_of(server) as client:
        gate, got = Gate(server.driver.core), []
        started(client, [line(1, "/v1/completions", BODY | {"stream": False})], "/v1/completions")
        assert gate.waits.wait(60)
        thread = asked(server, "/v1/completions", BODY, got)
        while not server.num_open:
            time.sleep(0.01)
        server.handle_exit(signal.SIGTERM, None)
        assert not server.ends_now
        server.handle_exit(signal.SIGTERM, None)
    thread.join(60)
    assert got[0][0] == 503 or last_event(got[0][1].splitlines()) == {"error": TOLD}
    assert server.exit_code == 143 and server.served.batches._thread.is_alive()  # which were not waited for
    gate.opened.set()


HELD = """
import sys, time
from pathlib import Path
from tokenmill.cli.process.start import run
from tokenmill.engine.loop import Loop

step, folder, made = Loop.step, Path(sys.argv.pop(1)), []

def held(self):
    while len(made) == 3:
        (folder / "held").touch()
        time.sleep(0.01)
    made.extend([0] * (folder / "begin").exists())
    step(self)

Loop.step = held
run()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("number", "more"), [(signal.SIGTERM, ()), (signal.SIGINT, ()), (signal.SIGTERM, ["twin"])])
def test_the_exit_code_of_a_second_signal(chat_model, tmp_path, number, more):
    """In the midst of a step without an end, of one model or of several, after some pieces of a stream."""
    more = [f"{name}={chat_model}" for name in more]
    with running(chat_model, *more, "--shutdown-timeout", "600", program=["-c", HELD, tmp_path]) as (process, url):
        (tmp_path / "begin").touch()
        got, begun = [], threading.Event()
        reading = threading.Thread(target=read, args=(url, got, begun), daemon=True)
        reading.start()
        assert begun.wait(60)
        while not (tmp_path / "held").exists():
            time.sleep(0.01)
        process.send_signal(number)
        while httpx2.get(f"{url}/ready", timeout=60).status_code != 503:
            time.sleep(0.01)
        process.send_signal(number)
        assert process.wait(60) == 128 + number
        reading.join(60)
        assert not reading.is_alive() and last_event(got) == {"error": TOLD}


ENDS = [
    {},
    {"max_tokens": 1},
    {"n": 3},
    {"stop": "w"},
    {"stop_token_ids": list(range(60))},
    {"echo": True, "max_tokens": 0},
    {"echo": True, "logprobs": 1},
    {"prompt": ["w1", "w2 w3"], "n": 2, "stream_options": {"include_usage": True}},
]


@pytest.mark.parametrize("more", ENDS)
def test_all_texts_of_a_stream_have_a_finish(server, more):
    for path, body in [("completions", BODY), ("chat/completions", CHAT | {"stream": True})]:
        if path == "completions" or not {"echo", "prompt"} & set(more):
            lines = httpx2.post(f"{server.url}/v1/{path}", json=body | more, timeout=60).text.splitlines()
            check_all_finish(lines, more.get("n", 1) * len(more.get("prompt", "1")))


def check_all_finish(lines, count):
    *chunks, last = [line for line in lines if line]
    choices = [choice for chunk in chunks for choice in json.loads(chunk.removeprefix("data: "))["choices"]]
    reasons = {each["index"]: each["finish_reason"] for each in choices}  # the last of each
    assert last == "data: [DONE]" and sorted(reasons) == list(range(count)) and all(reasons.values())


def raises(error):
    def fail(*_):
        raise error

    return fail


def cancel_all(core):
    core.cancel(Request([], trackers=list(core.trackers.values())))


@pytest.mark.parametrize(
    ("spoil", "status"),
    [
        (lambda core: setattr(core.loop, "step", raises(ZeroDivisionError)), 503),
        (lambda core: setattr(core.loop, "step", raises(KeyboardInterrupt)), 503),
        (lambda core: setattr(core.loop, "step", raises(MemoryError)), 503),
        (lambda core: core.close(), 503),
        (lambda core: [setattr(each, "deadline_s", 0.0) for each in core.trackers.values()], 504),
        (lambda core: [setattr(each.detokenizer, "push", raises(ValueError)) for each in core.trackers.values()], 500),
        (lambda core: [core.loop.fail(each.sequence, ValueError()) for each in list(core.trackers.values())], 500),
        (lambda core: [setattr(each, "take", raises(KeyError)) for each in core.trackers.values()], 500),
        (cancel_all, 400),
    ],
)
def test_a_stream_that_is_spoilt_ends_with_an_error(chat_model, spoil, status):
    kinds = {400: "invalid_request_error", 500: "server_error", 503: "server_error", 504: "server_error"}
    with served(chat_model) as server:
        core = server.driver.core
        gate = Gate(core)
        gate.step, step, steps = lambda: steps.append(spoil(core) if len(steps) == 2 else None) or step(), gate.step, []

        url = f"{server.url}/v1/completions"
        with httpx2.stream("POST", url, json=BODY | {"n": 2}, timeout=60) as response:
            lines = response.iter_lines()
            gate.opened.set()
            assert json.loads(next(lines).removeprefix("data: "))["object"] == "text_completion"
            assert last_event([*lines])["error"]["type"] == kinds[status]


def test_a_step_that_hangs_does_not_keep_the_process(chat_model, monkeypatch):
    monkeypatch.setattr("tokenmill.serve.loop.driver.Driver.is_hung", property(lambda _: True))
    monkeypatch.setattr("tokenmill.serve.http.draining.GRACE_S", 0)
    with served(chat_model, drain_s=0.0) as server:
        gate, got, events = Gate(server.driver.core), [], []
        thread = asked(server, "/v1/completions", BODY, got)
        assert gate.waits.wait(60)
        plain = openai.DefaultHttpxClient(verify=False)
        with (
            openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", http_client=plain, timeout=60) as client,
            client.responses.stream(model=MODEL, input="w1") as stream,
        ):
            events.append(next(stream))
            server.drain()
            events += stream  # which raises for an event that is about another response
        thread.join(60)
        assert last_event(got[0][1].splitlines()) == {"error": TOLD}
        assert events[-1].type == "response.failed" and events[-1].response.id == events[0].response.id
        assert events[-1].response.error.message == TOLD["message"]
    gate.opened.set()
