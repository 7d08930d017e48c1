"""How far a prompt is computed, in the stream of its answer: as llama.cpp tells it, and as comments elsewhere."""

import asyncio
import json
import time

import httpx2
import pytest

from tests.serve.conftest import served
from tokenmill.serve.loop import driver as driving

PROMPT = " ".join(f"w{number}" for number in range(60))
STEP = 16  # tokens
RESPONSE = {"input": PROMPT, "max_tokens": None, "max_output_tokens": 4}


@pytest.fixture(scope="module")
def server(chat_model):
    """A server that makes no step before the event loop has told of the step before it."""
    with served(chat_model, {"max_step_tokens": STEP}, stall_s=1000.0) as server:
        driver = server.driver
        step = driver.core.loop.step

        async def turns():
            for _ in range(10):
                await asyncio.sleep(0)

        def told():
            for job in driver._live[:1]:
                asyncio.run_coroutine_threadsafe(turns(), job.loop).result()
            step()

        driver.core.loop.step = told
        yield server


def lines_of(http, path, **body):
    with http.stream("POST", path, json={"stream": True, "max_tokens": 4, "temperature": 0, **body}) as answer:
        assert answer.status_code == 200
        return list(answer.iter_lines())


def events_of(http, path, **body):
    return [json.loads(line[6:]) for line in lines_of(http, path, **body) if line.startswith("data: {")]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": f"w9 {PROMPT}"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": PROMPT}]}),
        ("/v1/completions", {"prompt": f"w8 {PROMPT}", "n": 2}),
    ],
)
def test_a_prompt_that_is_computed_in_pieces(path, body, http):
    plain = events_of(http, path, **body, cache_salt="one")
    events = events_of(http, path, **body, return_progress=True, cache_salt="two")
    told = [each["prompt_progress"] for each in events if "prompt_progress" in each]
    total = told[0]["total"]
    processed = [each["processed"] for each in told]
    assert processed[0] == 0 and processed[-1] == total and len(told) >= total // STEP
    assert processed == sorted(set(processed)) and all(each["total"] == total for each in told)
    assert all(each["cache"] == 0 for each in told)
    times = [each["time_ms"] for each in told]
    assert times == sorted(times)
    texts = [[each["choices"] for each in every if "prompt_progress" not in each] for every in (plain, events)]
    assert texts[0] == texts[1], "the text is the same"
    places = [number for number, each in enumerate(events) if "prompt_progress" in each]
    first = next(number for number, each in enumerate(events) if "'w" in str(each["choices"]))
    assert max(places) < first
    for each in events:
        if "prompt_progress" in each:
            (choice,) = each["choices"]
            assert choice["finish_reason"] is None and choice.get("delta", {}) == {} and not choice.get("text")


def test_the_events_of_a_response(http):
    """llama.cpp tells it in further events response.in_progress (server-task.cpp, to_json_oaicompat_resp)."""
    plain, events = (
        [
            json.loads(line[6:])
            for line in lines_of(http, "/v1/responses", **RESPONSE, **more)
            if line.startswith("data: {")
        ]
        for more in ({"cache_salt": "three"}, {"cache_salt": "four", "return_progress": True})
    )
    told = [each for each in events if "prompt_progress" in each]
    processed = [each["prompt_progress"]["processed"] for each in told]
    assert processed[0] == 0 and processed[-1] == told[0]["prompt_progress"]["total"] and len(told) > 3
    assert {each["type"] for each in told} == {"response.in_progress"}
    assert [each["type"] for each in events[:3]] == ["response.created", *["response.in_progress"] * 2]
    assert [each["sequence_number"] for each in events] == list(range(len(events)))
    kinds = [[each["type"] for each in every if "prompt_progress" not in each] for every in (plain, events)]
    assert (
        kinds[0] == kinds[1]
        and plain[-1]["response"]["output"][0]["content"] == events[-1]["response"]["output"][0]["content"]
    )


def test_what_is_found_in_the_cache_is_told(http):
    body = {"prompt": f"w7 {PROMPT}", "return_progress": True}
    events_of(http, "/v1/completions", **body)
    told = [each["prompt_progress"] for each in events_of(http, "/v1/completions", **body) if "prompt_progress" in each]
    assert told[-1]["cache"] >= 48 and told[-1]["processed"] == told[-1]["total"]


def test_without_a_stream_it_changes_nothing(http):
    answer = http.post("/v1/completions", json={"prompt": "w1", "max_tokens": 2, "return_progress": True})
    assert answer.status_code == 200 and "warnings" not in answer.json() and "prompt_progress" not in answer.text


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/messages", "/api/generate"])
def test_a_long_silence_tells_it_in_a_comment(path, server, monkeypatch):
    """A stream on which nothing comes for a while; of Ollama's an object without text."""
    monkeypatch.setattr(driving, "SILENCE_S", 0.02)
    loop = server.driver.core.loop
    step, held = loop.step, []

    def slow():
        if len(held) < 3:
            held.append(time.sleep(0.1))
        step()

    monkeypatch.setattr(loop, "step", slow)
    body = {
        "/v1/completions": {"prompt": f"w2 {PROMPT}"},
        "/v1/messages": {"messages": [{"role": "user", "content": f"w3 {PROMPT}"}]},
        "/api/generate": {"model": "words", "prompt": f"w4 {PROMPT}", "raw": True},
    }[path]
    with httpx2.Client(base_url=server.url, timeout=120, trust_env=False, verify=False) as http:
        lines = lines_of(http, path, **body)
    comments = [line for line in lines if line.startswith(": prompt ")]
    if path == "/api/generate":
        assert not comments and any(json.loads(line).get("response") == "" for line in lines)
    else:
        assert comments and comments[0].endswith(" tokens")


def test_several_prompts_are_told_together(http):
    """One of them is long, and the other's text comes before it is computed."""
    body = {"prompt": ["w5", f"w6 {PROMPT}"], "return_progress": True, "max_tokens": 8, "ignore_eos": True}
    told = [each["prompt_progress"] for each in events_of(http, "/v1/completions", **body) if "prompt_progress" in each]
    processed = [each["processed"] for each in told]
    assert processed == sorted(set(processed)) and processed[-1] == told[0]["total"] and len(told) > 2
