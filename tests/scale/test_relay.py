"""Streams whose replicas die, fail or leave: the client gets the stream of a replica that nothing happens to."""

import asyncio

import pytest

from tests.marks import slow_but
from tests.scale.fakes import ask, cut_before_messages, events_of
from tokenmill.scale.gate import Gate

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "system", "content": "w1 w2"}, {"role": "user", "content": "w3 w4 w5"}]
SAMPLED = {"temperature": 0.8, "seed": 7, "stream": True}
BODIES = {
    "chat": (CHAT, {**SAMPLED, "messages": MESSAGES, "max_tokens": 12}),
    "several": (CHAT, {**SAMPLED, "messages": MESSAGES, "max_tokens": 9, "n": 3, "logprobs": True, "top_logprobs": 2}),
    "usage": (
        COMPLETIONS,
        {
            **SAMPLED,
            "prompt": ["w1 w2 w3 w4 w5 w6 w7 w8 w9 w10", "w5"],
            "max_tokens": 10,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            "logprobs": 1,
            "n": 2,
            "unknown": 1,
        },
    ),
    "echo": (COMPLETIONS, {**SAMPLED, "prompt": "w1 w2", "echo": True, "logprobs": 0, "max_tokens": 8}),
    "stop": (
        COMPLETIONS,
        {**SAMPLED, "prompt": "w7", "n": 3, "max_tokens": 30, "stop": ["9 w", "44", "w12"], "return_token_ids": True},
    ),
    "penalties": (
        COMPLETIONS,
        {**SAMPLED, "prompt": [5, 6, 7], "presence_penalty": 1.0, "frequency_penalty": 0.5, "max_tokens": 10},
    ),
}


def read(events):
    """What a stream says, whatever its chunks: all of each choice, and the fields around them."""
    assert events[-1] == "data: [DONE]"
    chunks, choices = events[:-1], {}
    heads = {(each["id"], each["created"], each["model"], each["system_fingerprint"]) for each in chunks}
    assert len(heads) == 1
    usages = [each["usage"] for each in chunks if each.get("usage")]
    for number, chunk in enumerate(chunks):
        assert number == 0 or "warnings" not in chunk
        for choice in chunk["choices"]:
            found = choices.setdefault(choice["index"], {"text": "", "roles": 0, "logprobs": [], "ids": [], "end": []})
            delta = choice.get("delta", choice)
            found["text"] += delta.get("content") or delta.get("text") or ""
            found["roles"] += "role" in delta
            logprobs = choice.get("logprobs") or {}
            found["logprobs"] += logprobs.get("content") or []
            names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
            found["logprobs"] += zip(*(logprobs[name] for name in names), strict=True) if "tokens" in logprobs else []
            found["ids"] += choice.get("token_ids") or []
            found.setdefault("prompt", []).extend(choice.get("prompt_token_ids") or [])
            if choice["finish_reason"] is not None:
                found["end"].append((choice["finish_reason"], choice.get("stop_reason")))
    return choices, usages[-1:], chunks[0].get("warnings")


def stream(fleet, path, body, **more):
    status, headers, data = asyncio.run(ask(Gate(fleet, **more), path, body))
    assert status == 200 and headers["content-type"].startswith("text/event-stream"), data
    return events_of(data)


@pytest.mark.parametrize("name", slow_but(BODIES, "several", "stop"))
def test_a_stream_is_cut_at_every_message(name, fleet):
    """The replica that writes it is lost before each message in turn; the one that goes on is not."""
    path, body = BODIES[name]
    for cut, num_messages, wanted, found in cut_before_messages(fleet, lambda: read(stream(fleet, path, body))):
        assert found[0] == wanted[0] and found[2] == wanted[2]
        is_last = cut == num_messages - 1  # which is empty
        assert len({name for name, _ in fleet.calls}) == (1 if is_last else 2)
        assert cut == 0 or found[1] == wanted[1]
