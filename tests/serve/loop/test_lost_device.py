"""A device that is lost in the midst of texts: torch raises in a step, or where its tokens are read. Every stream ends
with an error, whatever the program, and nothing waits for a step that never comes.
"""

import asyncio
import json

import httpx2
import pytest
import torch

from tests.serve.conftest import served
from tokenmill import load
from tokenmill.engine.inflight import InFlight
from tokenmill.registry import PROGRAMS
from tokenmill.serve.http.errors import EngineDied
from tokenmill.serve.loop.driver import Driver
from tokenmill.serve.loop.metrics import Metrics
from tokenmill.settings.sampling_params import SamplingParams

LOST = "CUDA error: an illegal memory access was encountered"
COMPUTING = [name for name in PROGRAMS if name != "aot"]  # which has its `run` from program compiled
SETTINGS = {"dtype": "float32", "max_length": 96, "max_sequences": 2, "block_size": 8}


class Lost:
    """Raises from its third call on, as all calls of a device that is lost do."""

    def __init__(self, real):
        self.real, self.count = real, 0

    def __call__(self, *args):
        self.count += 1
        if self.count > 3:
            raise torch.AcceleratorError(LOST)
        return self.real(*args)


@pytest.fixture
def lose(monkeypatch):
    """Have the device of an engine lost from now on: in a step of its program, or where tokens are read."""

    def lose(core, where):
        if where == "run":
            monkeypatch.setattr(core.loaded.program, "run", Lost(core.loaded.program.run))
        else:
            lost = Lost(InFlight.read)

            def read(step):
                return lost(step)

            monkeypatch.setattr(InFlight, "read", read)

    return lose


def engine_of(chat_model, program, scheduling):
    if program == "graphs":
        pytest.importorskip("triton", reason="there is no Triton for this system")
    given = {"program": program, "async_scheduling": scheduling, "compile": "no" if program == "compiled" else "auto"}
    return load(chat_model, **SETTINGS, **given)


@pytest.mark.parametrize("where", ["run", "read"])
@pytest.mark.parametrize("scheduling", ["off", "on"])
@pytest.mark.parametrize("program", COMPUTING)
def test_whoever_waits_is_told(program, scheduling, where, chat_model, lose):
    engine = engine_of(chat_model, program, scheduling)
    lose(engine.core, where)
    stream = engine.stream("w1 w2", max_new_tokens=40, ignore_eos=True)
    assert next(stream).tokens
    for told in (lambda: list(stream), lambda: engine.generate(["w3", "w4"], max_new_tokens=9, ignore_eos=True)):
        with pytest.raises(torch.AcceleratorError, match="illegal memory access"):
            told()
    assert not engine.core.trackers and not engine.core.scheduler.running
    engine.close()


@pytest.mark.parametrize("where", ["run", "read"])
@pytest.mark.parametrize("program", COMPUTING)
def test_every_job_of_a_server_ends(program, where, chat_model, lose):
    core = engine_of(chat_model, program, "on").core
    driver, wanted = Driver(core, Metrics(core, "words")), SamplingParams(max_new_tokens=40, ignore_eos=True)
    driver.start()
    lose(core, where)

    async def tokens():
        return [piece async for pieces in driver.pieces(core.request("w1 w2", wanted)) for piece in pieces]

    async def three():
        return await asyncio.gather(*(tokens() for _ in range(3)), return_exceptions=True)

    errors = asyncio.run(asyncio.wait_for(three(), 60))
    assert [str(error) for error in errors] == ["the engine has failed: AcceleratorError"] * 3
    assert {type(error) for error in errors} == {EngineDied} and driver.has_failed
    assert driver.stop()


def test_streams_over_http_end_with_an_error_and_the_server_ends(chat_model, lose):
    """One client has had text, and hears of it within its stream; who comes later is told 503, or finds nobody."""
    with served(chat_model, SETTINGS) as server:
        lose(server.driver.core, "run")
        asked = {"prompt": "w1 w2", "max_tokens": 80, "temperature": 0, "stream": True, "ignore_eos": True}
        with httpx2.stream("POST", f"{server.url}/v1/completions", json=asked, timeout=120) as answer:
            events = [line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: ")]
        assert json.loads(events[0])["choices"][0]["text"]
        assert "the engine has failed: AcceleratorError" in json.loads(events[-1])["error"]["message"]
        assert "illegal" not in events[-1], "what the device says is for the log"
