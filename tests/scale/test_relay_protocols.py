"""Streams of other protocols, and those with calls, go on at another replica: the client sees one stream."""

import asyncio
import json

import pytest

from tests.byte_model import save_byte_model
from tests.marks import slow_but
from tests.scale.fakes import FakeFleet, ask, cut_before_messages
from tokenmill.scale import relay
from tokenmill.scale.gate import Gate

CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Paris"]}},
    "required": ["city"],
    "additionalProperties": False,
}
CHAT_TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": CITY}}
ASKED = [{"role": "user", "content": "Rome?"}]
SAMPLED = {"temperature": 0.8, "seed": 7, "stream": True}
OLLAMA = {"model": "words:latest", "options": {"temperature": 0.8, "seed": 7, "num_predict": 12}}
BODIES = {
    "messages": ("/v1/messages", {**SAMPLED, "messages": ASKED, "max_tokens": 12}),
    "messages with a call": (
        "/v1/messages",
        {
            **SAMPLED,
            "messages": ASKED,
            "max_tokens": 150,
            "tools": [{"name": "get_weather", "input_schema": CITY}],
            "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
        },
    ),
    "responses": ("/v1/responses", {**SAMPLED, "input": "Rome?", "max_output_tokens": 12}),
    "responses with a call": (
        "/v1/responses",
        {
            **SAMPLED,
            "input": "Rome?",
            "max_output_tokens": 150,
            "tools": [{"type": "function", "name": "get_weather", "parameters": CITY}],
            "tool_choice": "required",
            "parallel_tool_calls": False,
        },
    ),
    "Ollama's chat": ("/api/chat", OLLAMA | {"messages": ASKED}),
    "Ollama's generate": ("/api/generate", OLLAMA | {"prompt": "Rome?", "logprobs": True}),
    "Ollama's chat with a call": (
        "/api/chat",
        {
            **OLLAMA,
            "messages": ASKED,
            "options": OLLAMA["options"] | {"num_predict": 150},
            "tools": [CHAT_TOOL],
            "tool_choice": "required",
            "parallel_tool_calls": False,
        },
    ),
    "chat with a call": (
        "/v1/chat/completions",
        {
            **SAMPLED,
            "messages": ASKED,
            "max_tokens": 150,
            "tools": [CHAT_TOOL],
            "tool_choice": "required",
            "parallel_tool_calls": False,
        },
    ),
}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    path = save_byte_model(tmp_path_factory.mktemp("bytes"), context=2048)
    made = FakeFleet(str(path), 2, {"max_length": 2048, "block_size": 32})
    yield made
    made.close()


def stream(fleet, path, body):
    status, headers, data = asyncio.run(ask(Gate(fleet), path, body))
    if path.startswith("/api/"):
        assert status == 200 and headers["content-type"] == "application/x-ndjson", data
        return [json.loads(line) for line in data.decode().splitlines()]
    assert status == 200 and headers["content-type"].startswith("text/event-stream"), data
    lines = [line for event in data.decode().split("\n\n") for line in event.split("\n")]
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]


def read(events):
    """What a stream says, whatever its chunks: ids are left out, and pieces that follow each other are joined."""
    found, ids, numbers = [], {}, [event["sequence_number"] for event in events if "sequence_number" in event]
    assert numbers == sorted(set(numbers))
    for event in events:
        kept = json.loads(json.dumps(event), object_hook=lambda each: _without_ids(each, ids))
        pieces = [each.pop(name) for each, name in _texts(kept) if each[name]]
        shape = json.dumps(kept, sort_keys=True)
        if found and pieces and found[-1][0] == shape:
            found[-1][1].extend(pieces)
        else:
            found.append((shape, pieces))
    return [(shape, "".join(texts)) for shape, texts in found]


def _without_ids(each, ids):
    """An object with each id by the number of its first appearance."""
    names = [name for name in ("id", "item_id", "call_id") if name in each]
    numbers = {name: ids.setdefault(each[name], len(ids)) for name in names}
    dropped = ("created", "created_at", "sequence_number", *(name for name in each if name.endswith("_duration")))
    return {name: value for name, value in each.items() if name not in dropped} | numbers


def _texts(event):
    """The pieces of text in an event, as (object, key)."""
    if event.get("type", "").endswith(".delta"):
        return [(event, "delta")]
    if event.get("type") == "content_block_delta":
        return [(event["delta"], name) for name in ("text", "partial_json", "thinking") if name in event["delta"]]
    said = [event.get("message", event)] if "done" in event else []
    if said:
        return [(each, name) for each in said for name in ("content", "response") if name in each]
    deltas = [choice["delta"] for choice in event.get("choices", ())]
    calls = [call["function"] for delta in deltas for call in delta.get("tool_calls", ())]
    return [(delta, "content") for delta in deltas if "content" in delta] + [(call, "arguments") for call in calls]


@pytest.mark.parametrize("name", slow_but(BODIES, "messages", "responses", "chat with a call"))
def test_a_stream_is_cut_at_every_message(name, fleet):
    """The replica that writes it is lost before a message; the one that goes on is not."""
    path, body = BODIES[name]
    for cut, _, wanted, found in cut_before_messages(fleet, lambda: read(stream(fleet, path, body)), most=20):
        assert [each for each in found if "usage" not in each[0]] == [each for each in wanted if "usage" not in each[0]]
        assert cut == 0 or found == wanted


@pytest.mark.slow
def test_lines_of_json_stay_so_while_a_stream_waits(chat_model, monkeypatch):
    """A client that reads a line at a time reads nothing else: what is sent meanwhile is an object without text."""
    monkeypatch.setattr(relay, "TICK_S", 0.01)
    monkeypatch.setattr(relay, "SILENCE_S", 0.02)
    fleet, seen = FakeFleet(chat_model, 1), []
    body = {"model": "words", "prompt": "w1 w2", "options": {"temperature": 0, "num_predict": 20}}
    try:
        wanted = stream(fleet, "/api/generate", body)

        def die(call, replica, message):
            seen.append(message)
            if replica == "r0" and len(seen) == 3:
                fleet.kill("r0")
                asyncio.get_running_loop().call_later(0.3, fleet.add)
                return True
            return False

        fleet.on_part = die
        events = stream(fleet, "/api/generate", body)
        empty = [event for event in events[:-1] if event["response"] == ""]
        assert len(empty) > 1 and not any(event["done"] for event in empty)
        texts = ["".join(event["response"] for event in each) for each in (events, wanted)]
        assert texts[0] == texts[1] and events[-1]["context"] == wanted[-1]["context"]
        fleet.on_part = lambda *_: len(seen) == 5 or bool(seen.append(1))
        seen.clear()
        monkeypatch.setattr(FakeFleet, "replicas", property(lambda _: frozenset()))
        _, _, data = asyncio.run(ask(Gate(fleet, patience_s=0.3), "/api/generate", body))
        *_, last = map(json.loads, data.decode().splitlines())
        assert list(last) == ["error"]
    finally:
        fleet.close()


def test_what_tells_about_the_model_is_passed_on(fleet):
    for path, body in (("/api/tags", None), ("/api/ps", None), ("/api/show", {"model": "words"}), ("/", None)):
        status, _, data = asyncio.run(ask(Gate(fleet), path, body))
        assert status == 200 and data, path
    status, _, data = asyncio.run(ask(Gate(fleet), "/api/chat", {"model": "words", "messages": []}))
    assert status == 200 and json.loads(data)["done_reason"] == "load"
    status, _, data = asyncio.run(ask(Gate(fleet), "/api/chat", {"model": "other", "messages": []}))
    assert status == 404 and list(json.loads(data)) == ["error"]
