"""The thread beside the event loop: who leaves is cancelled, and all hear of what ends them."""

import asyncio
import json
import socket
import threading
import time

import httpx2
import pytest

from tests.empty import check_empty
from tests.serve.conftest import served
from tokenmill import load
from tokenmill.serve.http.errors import EngineDied
from tokenmill.serve.loop import driver as driver_module
from tokenmill.serve.loop.driver import Driver
from tokenmill.serve.loop.metrics import Metrics
from tokenmill.settings.sampling_params import SamplingParams

LONG = {"prompt": "w1 w2", "max_tokens": 90, "temperature": 0}


class Gate:
    """Holds the steps of a core back until it is opened, and counts them."""

    def __init__(self, core):
        self.opened, self.waits, self.step = threading.Event(), threading.Event(), core.loop.step
        core.loop.step = self.held

    def held(self):
        self.waits.set()
        assert self.opened.wait(120)
        self.step()


@pytest.fixture
def core(chat_model):
    return load(chat_model, dtype="float32", max_length=96, max_sequences=2, block_size=8).core


@pytest.fixture
def driver(core):
    driver = Driver(core, Metrics(core, "words"))
    driver.start()
    yield driver
    driver.stop()
    check_empty(core)


def request(core, prompt="w1 w2", **settings):
    return core.request(prompt, SamplingParams(**{"max_new_tokens": 20, **settings}))


async def tokens_of(driver, request):
    return [token async for pieces in driver.pieces(request) for piece in pieces for token in piece.tokens]


def test_requests_run_together_and_say_what_they_say_alone(driver, core, chat_model):
    alone = load(chat_model, dtype="float32", max_length=96)
    prompts = ["w1 w2", "w3", "w4 w5 w6", "w7"]

    async def both():
        return await asyncio.gather(*(tokens_of(driver, request(core, prompt)) for prompt in prompts))

    assert asyncio.run(both()) == [list(alone.generate(prompt, max_new_tokens=20).tokens) for prompt in prompts]
    check_empty(core)


def test_who_stops_reading_is_cancelled(driver, core):
    async def leave():
        pieces = driver.pieces(request(core, max_new_tokens=90))
        await anext(pieces)
        await pieces.aclose()
        while driver.core.trackers:
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(leave(), 20))


def test_an_error_of_one_request_is_told_to_it_alone(driver, core):
    async def both():
        late = core.request("w1", SamplingParams(max_new_tokens=20), timeout_s=0)
        return await asyncio.gather(tokens_of(driver, late), tokens_of(driver, request(core)), return_exceptions=True)

    error, tokens = asyncio.run(both())
    assert "deadline" in str(error) and len(tokens) == 20


def test_a_step_that_raises_ends_everybody(core, caplog):
    died = threading.Event()
    driver = Driver(core, Metrics(core, "words"), died.set)
    driver.start()
    core.loop.step = lambda: 1 / 0

    async def both():
        first = await asyncio.gather(*(tokens_of(driver, request(core)) for _ in range(2)), return_exceptions=True)
        return [*first, *await asyncio.gather(tokens_of(driver, request(core)), return_exceptions=True)]

    errors = asyncio.run(asyncio.wait_for(both(), 20))
    assert [type(error) for error in errors] == [EngineDied] * 3
    assert {str(error) for error in errors} == {"the engine has failed: ZeroDivisionError"}
    assert "division by zero" in caplog.text and "Traceback" in caplog.text
    assert driver.has_failed and died.wait(60)
    driver.stop()


def test_stopped_it_tells_those_who_wait(core):
    driver, gate = Driver(core, Metrics(core, "words")), Gate(core)
    driver.start()

    async def read():
        reading = asyncio.ensure_future(tokens_of(driver, request(core)))
        await asyncio.to_thread(gate.waits.wait)
        stopping = asyncio.ensure_future(asyncio.to_thread(driver.stop))
        while driver.core.thread._inbox.empty():  # until it is asked to stop
            await asyncio.sleep(0.01)
        gate.opened.set()
        with pytest.raises(EngineDied, match="shutting down"):
            await reading
        await stopping
        with pytest.raises(EngineDied, match="shutting down"):
            await tokens_of(driver, request(core))

    asyncio.run(asyncio.wait_for(read(), 20))


# ---- through HTTP


def test_a_full_queue_is_429(chat_model):
    with served(chat_model, {"max_sequences": 1}, max_queued=1) as server:
        server.admission._clock = lambda: 0.0  # slots that are held for a second more make the wait longer
        gate = Gate(server.driver.core)
        statuses = []

        def ask():
            statuses.append(httpx2.post(f"{server.url}/v1/completions", json=LONG, timeout=120).status_code)

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        while server.admission.num_open < 2:
            time.sleep(0.01)
        refused = httpx2.post(f"{server.url}/v1/completions", json=LONG | {"stream": True}, timeout=60)
        assert refused.status_code == 429 and refused.headers["retry-after"] == "1"
        assert refused.json()["error"]["type"] == "rate_limit_error"
        gate.opened.set()
        for thread in threads:
            thread.join(120)
        assert statuses == [200, 200]


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_is_cancelled(chat_model, stream):
    with served(chat_model) as server:
        gate = Gate(server.driver.core)
        with httpx2.Client(timeout=120) as http:
            asking = http.build_request("POST", f"{server.url}/v1/completions", json=LONG | {"stream": stream})
            if stream:
                gate.opened.set()
                response = http.send(asking, stream=True)
                next(response.iter_lines())
                response.close()
            else:
                asking.headers["Host"] = "localhost"
                head = "".join(f"{name}: {value}\r\n" for name, value in asking.headers.items())
                with socket.create_connection((asking.url.host, asking.url.port), timeout=120) as connection:
                    connection.sendall(f"POST /v1/completions HTTP/1.1\r\n{head}\r\n".encode() + asking.read())
                    assert gate.waits.wait(120)  # it is in the engine now
                gate.opened.set()
        while server.admission.num_open or server.driver.core.trackers:
            time.sleep(0.01)
        check_empty(server.driver.core)


def test_a_step_that_raises_ends_streams(chat_model):
    with served(chat_model) as server:
        core, is_read, steps = server.driver.core, threading.Event(), []
        step = core.loop.step

        def once():
            if steps:
                assert is_read.wait(120)
                raise ZeroDivisionError
            steps.append(step())

        core.loop.step = once
        with httpx2.stream(
            "POST", f"{server.url}/v1/completions", json=LONG | {"stream": True}, timeout=60
        ) as response:
            lines = response.iter_lines()
            assert json.loads(next(lines).removeprefix("data: "))["object"] == "text_completion"
            is_read.set()
            last = [line for line in lines if line.startswith("data: ")][-1]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "engine_unavailable"
        assert server.should_exit


def test_a_step_that_hangs_is_seen_by_health(chat_model, monkeypatch):
    monkeypatch.setattr(driver_module, "HUNG_S", 0.2)
    with served(chat_model) as server:
        core, url = server.driver.core, server.url
        assert httpx2.post(f"{url}/v1/completions", json=LONG, timeout=60).status_code == 200
        server.driver._steps.longest_s = 0.0  # whatever it was on this machine
        server.driver._steps.count = driver_module.FIRST_STEPS
        gate = Gate(core)
        asking = threading.Thread(
            target=httpx2.post, args=(f"{url}/v1/completions",), kwargs={"json": LONG, "timeout": 120}
        )
        asking.start()
        while httpx2.get(f"{url}/health", timeout=60).status_code == 200:
            time.sleep(0.01)
        assert httpx2.get(f"{url}/health", timeout=60).json()["error"]["code"] == "engine_unavailable"
        gate.opened.set()
        asking.join(120)
        assert httpx2.get(f"{url}/health", timeout=60).status_code == 200


def test_a_stream_on_which_nothing_comes_says_that_it_is_there(chat_model, monkeypatch):
    monkeypatch.setattr(driver_module, "SILENCE_S", 0.05)
    with served(chat_model) as server:
        gate, lines = Gate(server.driver.core), []
        with httpx2.stream("POST", f"{server.url}/v1/completions", json=LONG | {"stream": True}, timeout=120) as stream:
            for line in filter(None, stream.iter_lines()):
                lines.append(line)
                if lines == [": prompt 0 of 2 tokens"] * 2:
                    gate.opened.set()
        data = [line for line in lines if not line.startswith(": ")]
        assert lines[:2] == [": prompt 0 of 2 tokens"] * 2 and data[-1] == "data: [DONE]"
        assert all(line.startswith("data: ") for line in data)
