"""What a client sends back is what the model wrote: each turn's prompt begins with the one before it and its answer."""

import httpx2
import pytest

from tests.serve.conftest import WEATHER, served
from tests.serve.scripted import save_scripted_model, scripted
from tests.text.tools.templates import TEMPLATES
from tokenmill.registry import TOOL_FORMATS, lookup

SETTINGS = {"max_length": 4096, "cache_tokens": 16_000, "block_size": 16, "dtype": "float32"}
ASKED, MORE = {"role": "user", "content": "Rome?"}, {"role": "user", "content": "And Paris?"}
TOLD = {"name": "get_weather", "description": "The weather."}
CHAT = [{"type": "function", "function": TOLD | {"parameters": WEATHER}}]
CALLS = [("get_weather", {"city": "Rome", "days": 1}), ("get_weather", {"city": "Paris", "days": 2})]


def of_chat(post, history):
    body = {"messages": history, "tools": CHAT, "max_tokens": 300}
    message = post("/v1/chat/completions", body)["choices"][0]["message"]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "20"} for call in message["tool_calls"]]
    return [*history, message, *results, MORE]


def of_responses(post, history):
    tools = [{"type": "function", **TOLD, "parameters": WEATHER}]
    items = post("/v1/responses", {"input": history, "tools": tools})["output"]
    results = [{"type": "function_call_output", "call_id": item["call_id"], "output": "20"} for item in items]
    return [*history, *items, *results, MORE]


def of_messages(post, history):
    tools = [TOLD | {"input_schema": WEATHER}]
    blocks = post("/v1/messages", {"messages": history, "tools": tools, "max_tokens": 300})["content"]
    results = [{"type": "tool_result", "tool_use_id": block["id"], "content": "20"} for block in blocks]
    return [*history, {"role": "assistant", "content": blocks}, {"role": "user", "content": [*results]}]


def of_ollama(post, history):
    body = {"model": "words", "messages": history, "tools": CHAT, "stream": False}
    message = post("/api/chat", body)["message"]
    results = [
        {"role": "tool", "tool_name": call["function"]["name"], "content": "20"} for call in message["tool_calls"]
    ]
    return [*history, message, *results, MORE]


@pytest.fixture(scope="module")
def kimi(tmp_path_factory):
    return save_scripted_model(tmp_path_factory.mktemp("kimi"), template=TEMPLATES["kimi_k2"])


def test_calls_keep_the_numbers_that_the_model_gave_them(kimi):
    """Kimi's template shows the ids of calls, which the model has written with a number of its own."""
    form = lookup(TOOL_FORMATS, "kimi_k2", "tool_format")
    texts = [form.text(CALLS), form.text(CALLS).replace(":0<", ":2<").replace(":1<", ":13<")]
    with (
        served(kimi, SETTINGS, tool_format="kimi_k2") as server,
        httpx2.Client(base_url=server.url, timeout=120) as http,
    ):
        for turn in (of_chat, of_responses, of_messages, of_ollama):
            history = [ASKED]
            with scripted(
                server.driver.core, lambda prompt: texts[prompt.count("_begin|>functions.") // 2 % 2]
            ) as script:
                for _ in range(3):
                    history = turn(lambda path, body: http.post(path, json=body).json(), history)
                assert not script.departures
            for text, before, after in zip(texts, script.asked, script.asked[1:], strict=False):
                assert after.startswith(before + text), turn.__name__
