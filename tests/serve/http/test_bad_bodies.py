"""Bodies in which anything may stand anywhere: each is answered or refused in the protocol's form, never a fault.

TOKENMILL_BODIES says how many.
"""

import copy
import json
import os
from random import Random

import pytest

from tests.serve.conftest import CLOCK, MODEL, WEATHER

COUNT = int(os.environ.get("TOKENMILL_BODIES", "12"))
CALL = {"type": "tool_use", "id": "call_1", "name": "get_time", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "call_1", "content": [{"type": "text", "text": "w1"}]}
OPTIONS = {"num_predict": 2, "num_ctx": 64, "temperature": 0.5, "top_k": 3, "seed": 1, "stop": ["w9"], "num_gpu": 1}
OPTIONS |= {"repeat_last_n": -1, "repeat_penalty": 1.1, "mirostat": 0, "typical_p": 1.0}
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": 'start: "a" "b"+'}
BODIES = {
    "/v1/messages": {
        "model": "claude-x",
        "max_tokens": 2,
        "system": [{"type": "text", "text": "x-anthropic-billing-header: a"}, {"type": "text", "text": "w1"}],
        "messages": [
            {"role": "user", "content": "w1"},
            {"role": "system", "content": [{"type": "text", "text": "w2"}]},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "w3", "signature": "x"}, CALL]},
            {"role": "user", "content": [RESULT, {"type": "image", "source": {}}]},
        ],
        "tools": [{"name": "get_time", "description": "w1", "input_schema": CLOCK, "strict": True}],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        "thinking": {"type": "enabled", "budget_tokens": 5},
        "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": WEATHER}},
        "stop_sequences": ["w9"],
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 3,
        "metadata": {"user_id": "u"},
    },
    "/v1/responses": {
        "instructions": "w1",
        "input": [
            {"role": "developer", "content": [{"type": "input_text", "text": "w1"}]},
            {"type": "message", "role": "user", "content": "w2"},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "w3"}], "content": None},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "w4"}]},
            {"type": "function_call", "call_id": "c1", "name": "f", "namespace": "n", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "w5"}]},
            {"type": "custom_tool_call", "call_id": "c2", "name": "p", "input": "ab"},
            {"type": "custom_tool_call_output", "call_id": "c2", "output": "w6"},
        ],
        "tools": [
            {"type": "function", "name": "get_time", "parameters": CLOCK, "strict": True},
            {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f", "parameters": WEATHER}]},
            {"type": "custom", "name": "p", "description": "w1", "format": GRAMMAR},
            {"type": "web_search"},
        ],
        "tool_choice": {"type": "function", "name": "f", "namespace": "n"},
        "parallel_tool_calls": False,
        "reasoning": {"effort": "low", "summary": "auto"},
        "text": {"format": {"type": "json_schema", "name": "x", "schema": WEATHER}},
        "max_output_tokens": 2,
        "temperature": 0.5,
        "store": False,
    },
    "/v1/chat/completions": {
        "messages": [
            {"role": "user", "content": "w1"},
            {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": {}}]},
            {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "w1"}]},
        ],
        "tools": [
            {"type": "function", "function": {"name": "f", "parameters": WEATHER, "strict": False}},
            {"type": "custom", "custom": {"name": "p", "format": {"type": "grammar", "grammar": GRAMMAR}}},
        ],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "parallel_tool_calls": True,
        "reasoning_effort": "low",
        "max_tokens": 2,
    },
    "/api/chat": {
        "model": MODEL,
        "messages": [
            {"role": "system", "content": "w1", "images": []},
            {"role": "user", "content": "w1"},
            {"role": "assistant", "thinking": "w3", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]},
            {"role": "tool", "tool_name": "f", "content": "w1"},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": WEATHER}}],
        "format": WEATHER,
        "options": OPTIONS,
        "think": False,
        "keep_alive": "5m",
        "logprobs": True,
        "top_logprobs": 2,
        "stream": False,
    },
    "/api/generate": {
        "model": MODEL,
        "prompt": "w1",
        "system": "w2",
        "suffix": "",
        "template": "",
        "context": [1, 2],
        "raw": False,
        "images": [],
        "format": "json",
        "options": OPTIONS,
        "keep_alive": 5,
        "stream": False,
    },
    "/api/pull": {"model": MODEL, "name": MODEL, "stream": False},
}
ODD = [
    None,
    True,
    False,
    0,
    -1,
    2**70,
    0.5,
    "",
    "w1",
    "\u0000",
    "auto",
    [],
    [[]],
    [None],
    {},
    {"type": "text"},
    {"": {}},
]


def places(value, path=()):
    """The path of every value in a body."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield from places(each, (*path, key))


def mutated(body, random):
    """A body with a value or two replaced, taken away, or doubled."""
    body = copy.deepcopy(body)
    for _ in range(random.choice((1, 1, 2))):
        *path, last = random.choice([place for place in places(body) if place])
        target = body
        for key in path:
            target = target[key]
        what = random.randrange(4)
        if what == 0:
            del target[last]
        elif what == 1 and isinstance(target, list):
            target.append(copy.deepcopy(target[last]))
        else:
            target[last] = copy.deepcopy(random.choice(ODD))
    return body


@pytest.mark.parametrize("value", [{}, [], [{}], None, 5])
def test_a_type_that_is_no_text_is_refused_or_passed_over(http, value):
    asked = {"messages": [{"role": "user", "content": "w1"}], "max_tokens": 1}
    refused = http.post("/v1/chat/completions", json=asked | {"response_format": {"type": value}})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "response_format"
    items = [{"role": "user", "content": "w1"}, {"type": value}]
    done = http.post("/v1/responses", json={"input": items, "max_output_tokens": 1})
    assert done.status_code == 200 and "passed over" in done.json()["warnings"][0]


@pytest.mark.parametrize("path", BODIES)
def test_none_is_a_fault(path, http):
    for seed in range(COUNT):
        body = mutated(BODIES[path], Random(f"{path}{seed}"))
        response = http.post(path, content=json.dumps(body), headers={"Content-Type": "application/json"})
        is_stream = body.get("stream", path.startswith("/api/")) is not False and response.status_code == 200
        told = {} if is_stream else json.loads(response.text)
        assert response.status_code in (200, 400, 404), (body, response.text)
        is_plain = path.startswith("/api/") and isinstance(told.get("error"), str)
        assert response.status_code == 200 or is_plain or set(told["error"]) >= {"type", "message"}, (
            body,
            response.text,
        )
