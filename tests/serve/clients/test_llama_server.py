"""Requests and answers as llama.cpp's tests of its own server check them, on the routes that this server has.

They were read in tools/server/tests/unit of the llama.cpp that llama-cpp-python 0.3.36 carries. Which of them a test
here stands for, by file:

test_completion.py
 - completion, completion_stream, completion_stream_vs_non_stream, completion_with_openai_library and its stream:
   test_a_completion_whole_and_in_a_stream
 - completion_stream_with_openai_library_stops: test_stop_texts_do_not_leak
 - completion_with_tokens_input, json_prompt_no_mtmd, json_prompt_mtm_error_when_not_supported: test_prompts_as_ids and
   REFUSED
 - completion_response_fields, n_probs_post_sampling, n_probs_post_backend_sampling: WITHOUT_EFFECT
 - n_probs, n_probs_stream: test_log_probabilities_of_a_completion
 - logit_bias: test_a_bias_keeps_tokens_out and REFUSED
 - nocache_long_input_prompt: test_a_context_is_not_shifted
test_chat_completion.py
 - chat_completion, chat_completion_with_openai_library: test_an_answer
 - chat_completion_stream, chat_completion_with_timings_per_token: test_an_answer_in_a_stream
 - chat_completion_cached_tokens: test_tokens_out_of_the_cache
 - chat_template, apply_chat_template, chat_template_assistant_prefill, chat_completions_token_count,
   chat_template_continue_final_message_vllm_compat and _mutual_exclusion: test_how_a_conversation_ends and REFUSED
 - completion_with_grammar: test_a_grammar_is_followed
 - completion_with_response_format, completion_with_json_schema, completion_with_invalid_grammar,
   invalid_chat_completion_req: REFUSED
 - logprobs, logprobs_stream: test_log_probabilities_of_an_answer
 - logit_bias: test_a_bias_keeps_tokens_out
 - context_size_exceeded and its stream: test_a_context_is_not_shifted
 - return_progress: tests/serve/loop/test_progress.py; verbose_debug: WITHOUT_EFFECT
 - chat_completions_multiple_choices: test_several_answers
test_tokenize.py (tokenize_detokenize, tokenize_with_pieces): test_tokens_and_back
test_ctx_shift.py: test_a_context_is_not_shifted
test_template.py (add_generation_prompt): test_how_a_conversation_ends

Those that need a server with settings of its own are in test_llama_server_settings.py. Routes of theirs that are not
here are in ABSENT. docs/serving.md lists what differs by design.
"""

from itertools import takewhile

import openai
import pytest

from tests.serve.clients.conftest import stream_of, tokens_of
from tests.serve.openai.test_chat import MESSAGES
from tests.serve.request.test_fields import post, refusal

pytestmark = pytest.mark.clients

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
TEXT = "In the morning the river was high, and the old bridge"
TALK = [{"role": "system", "content": "You are short."}, {"role": "user", "content": "Which river is the longest?"}]


@pytest.mark.parametrize("num_new", [8, 64])
def test_a_completion_whole_and_in_a_stream(real, num_new):
    asked = {"prompt": TEXT, "max_tokens": num_new}
    done, plain = post(real, **asked, return_tokens=True), post(real, **asked)
    (choice,), usage = done["choices"], done["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len(tokens_of(real, prompt=TEXT)), num_new)
    assert choice["finish_reason"] == "length" and len(choice["token_ids"]) == num_new
    assert done["system_fingerprint"].startswith("fp_") and done["id"].startswith("cmpl-")
    assert plain["choices"][0] == {k: v for k, v in choice.items() if not k.endswith("token_ids")}
    *chunks, last = stream_of(real, **asked, return_tokens=True, stream_options={"include_usage": True})
    pieces = [chunk["choices"][0] for chunk in chunks]
    assert "".join(piece["text"] for piece in pieces) == choice["text"]
    assert [token for piece in pieces for token in piece["token_ids"]] == choice["token_ids"]
    assert [piece["finish_reason"] for piece in pieces] == [None] * (len(pieces) - 1) + ["length"]
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == num_new


def test_stop_texts_do_not_leak(real):
    whole = post(real, prompt=TEXT, max_tokens=60)["choices"][0]["text"]
    stops = [whole[60:75], whole[40:52]]
    first = min(stops, key=whole.index)
    wanted = whole[: whole.index(first)]
    asked = {"prompt": TEXT, "max_tokens": 60, "stop": stops}
    (done,) = post(real, **asked)["choices"]
    assert (done["text"], done["finish_reason"], done["stop_reason"]) == (wanted, "stop", first)
    assert "".join(chunk["choices"][0]["text"] for chunk in stream_of(real, **asked)) == wanted


def test_prompts_as_ids(real):
    ids = tokens_of(real, prompt=TEXT)
    wanted = post(real, prompt=TEXT)["choices"][0]["text"]
    for prompt, count in ((ids, 1), ([ids], 1), ([ids, ids], 2), ([TEXT, TEXT], 2)):
        assert [choice["text"] for choice in post(real, prompt=prompt)["choices"]] == [wanted] * count


def test_log_probabilities_of_a_completion(real):
    asked = {"prompt": TEXT, "max_tokens": 5, "logprobs": 10}
    whole = post(real, **asked)["choices"][0]
    assert all(len(entries) == 5 for entries in whole["logprobs"].values())
    assert "".join(whole["logprobs"]["tokens"]) == whole["text"]
    rows = zip(*(whole["logprobs"][name] for name in ("tokens", "token_logprobs", "top_logprobs")), strict=True)
    for token, value, top in rows:
        assert len(top) == 10 and top[token] == value == max(top.values()) <= 0  # greedy, so the likeliest
    chunks = [chunk["choices"][0]["logprobs"] for chunk in stream_of(real, **asked)]
    for name, entries in whole["logprobs"].items():
        assert [entry for chunk in chunks for entry in chunk[name]] == entries


def test_log_probabilities_of_an_answer(real):
    asked = {"messages": TALK, "logprobs": True, "top_logprobs": 10}
    whole = post(real, CHAT, **asked)["choices"][0]
    entries = whole["logprobs"]["content"]
    assert "".join(entry["token"] for entry in entries) == whole["message"]["content"]
    assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == whole["message"]["content"]
    for entry in entries:
        assert len(entry["top_logprobs"]) == 10 and entry["logprob"] == entry["top_logprobs"][0]["logprob"] <= 0
    chunks = [chunk["choices"][0]["logprobs"] or {"content": []} for chunk in stream_of(real, CHAT, **asked)]
    assert [entry for chunk in chunks for entry in chunk["content"]] == entries


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
def test_a_bias_keeps_tokens_out(real, path):
    asked = {"max_tokens": 64, "return_token_ids": True} | ({"messages": TALK} if path == CHAT else {"prompt": TEXT})
    unwanted = {*tokens_of(real, prompt=" the a of is it and The It was to"), *tokens_of(real, prompt="The")}
    assert unwanted & set(post(real, path, **asked)["choices"][0]["token_ids"])
    done = post(real, path, **asked, logit_bias=dict.fromkeys(map(str, unwanted), -100))
    assert len(done["choices"][0]["token_ids"]) and not unwanted & set(done["choices"][0]["token_ids"])


def test_an_answer(real, real_server):
    done = post(real, CHAT, messages=TALK)
    (choice,) = done["choices"]
    assert done["id"].startswith("chatcmpl-") and done["system_fingerprint"].startswith("fp_")
    assert choice["message"]["role"] == "assistant" and choice["message"]["content"]
    assert (choice["finish_reason"], done["usage"]["completion_tokens"]) == ("length", 8)
    parts = [{"type": "text", "text": "Which river"}, {"type": "text", "text": "is the longest?"}]
    joined = [TALK[0], {"role": "user", "content": "Which river\nis the longest?"}]
    assert tokens_of(real, messages=[TALK[0], {"role": "user", "content": parts}]) == tokens_of(real, messages=joined)
    with openai.OpenAI(base_url=f"{real_server.url}/v1", api_key="none") as client:
        asked = {"model": "words", "messages": TALK, "max_tokens": 8, "temperature": 0}
        assert client.chat.completions.create(**asked).choices[0].message.content == choice["message"]["content"]


def test_an_answer_in_a_stream(real):
    wanted = post(real, CHAT, messages=TALK)
    chunks = stream_of(real, CHAT, messages=TALK, stream_options={"include_usage": True}, timings_per_token=True)
    assert len({(chunk["id"], chunk["model"], chunk["system_fingerprint"]) for chunk in chunks}) == 1
    (first, *middle, last), usage = [chunk["choices"][0] for chunk in chunks[:-1]], chunks[-1]["usage"]
    assert first["delta"] == {"role": "assistant", "content": ""}
    assert not any("role" in choice["delta"] for choice in middle) and last["delta"] == {}
    assert "".join(choice["delta"]["content"] for choice in middle) == wanted["choices"][0]["message"]["content"]
    assert [choice["finish_reason"] for choice in middle] == [None] * len(middle) and last["finish_reason"] == "length"
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (wanted["usage"]["prompt_tokens"], 8)
    assert chunks[0]["warnings"] == ["unknown field 'timings_per_token' is ignored"]


def test_tokens_out_of_the_cache(real):
    """There all but one of a prompt that is asked again, here its full blocks of 16 tokens."""
    told, before = [], [tokens_of(real, messages=TALK)]
    for words in ("one two three four five six", "one two three four five six", "one two three nine", "nine nine"):
        messages = [{"role": "system", "content": "Count " * 30}, {"role": "user", "content": words}]
        ids = tokens_of(real, messages=messages)
        alike = max(len([*takewhile(lambda pair: pair[0] == pair[1], zip(ids, other))]) for other in before)
        usage = post(real, CHAT, messages=messages)["usage"]
        assert usage["prompt_tokens"] == len(ids)
        told.append((usage["prompt_tokens_details"]["cached_tokens"], min(alike, len(ids) - 1) // 16 * 16))
        before.append(ids)
    assert all(found == wanted for found, wanted in told) and told[1][0] > 16


def test_several_answers(real):
    for _ in range(2):
        choices = post(real, CHAT, messages=TALK, n=2, id_slot=0)["choices"]
        assert [(each["index"], each["message"]["role"], each["finish_reason"]) for each in choices] == [
            (0, "assistant", "length"),
            (1, "assistant", "length"),
        ]


def test_how_a_conversation_ends(real):
    """The prompt that a template makes, which their /apply-template gives, is what /tokenize and /detokenize say."""

    def prompt(messages, **more):
        return real.post("/detokenize", json={"tokens": tokens_of(real, messages=messages, **more)}).json()["prompt"]

    begun = prompt(TALK)
    assert begun == prompt(TALK, add_generation_prompt=False) + "<|im_start|>assistant\n"
    assert TALK[0]["content"] in begun and TALK[1]["content"] in begun
    held = [*TALK, {"role": "assistant", "content": "The Ni"}]
    body = {"add_generation_prompt": False, "continue_final_message": True}
    assert prompt(held, **body) == begun + "The Ni"
    done = post(real, CHAT, messages=held, **body)
    assert done["usage"]["prompt_tokens"] == len(tokens_of(real, messages=held, **body))
    assert done["choices"] and prompt(held).endswith("The Ni<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize("text", ["Two rivers meet at the old mill .", "媽媽 said 🤗 — naïve\tand\n\nlow"])
def test_tokens_and_back(real, text):
    found = real.post("/tokenize", json={"prompt": text}).json()
    assert found["count"] == len(found["tokens"]) == len(found["token_strs"]) and all(found["token_strs"])
    assert real.post("/detokenize", json={"tokens": found["tokens"]}).json() == {"prompt": text, "content": text}


@pytest.mark.parametrize(("path", "ask"), [(COMPLETION, {"prompt": "w1 w2"}), (CHAT, {"messages": MESSAGES})])
def test_a_context_is_not_shifted(http, path, ask):
    for wanted, num_new in ((64, 64), (None, -1)):
        done = http.post(path, json={**ask, "n_predict": num_new}).json()
        usage = done["usage"]
        assert done["choices"][0]["finish_reason"] == "length"
        assert usage["completion_tokens"] == (wanted or 96 - usage["prompt_tokens"])
    ask = {name: value * 100 for name, value in ask.items()}
    for stream in (False, True):
        error = refusal(http, path, **ask, stream=stream)
        assert error["code"] == "context_length_exceeded" and "length is 96 tokens" in error["message"]


SCHEMA = {"type": "json_schema", "json_schema": {"schema": {"const": "w1"}}}
TWICE = [{"role": "system", "content": "w1"}, {}]
REFUSED = [
    (COMPLETION, {"prompt": {"prompt_string": "w1"}}, "prompt"),
    (COMPLETION, {"prompt": {"prompt_string": "w1", "multimodal_data": "AAAA"}}, "prompt"),
    (COMPLETION, {"prompt": [[1, 2], "w1"]}, "prompt"),
    (COMPLETION, {"prompt": [1, 2, "w1", 3]}, "prompt"),
    (COMPLETION, {"prompt": "w1", "logit_bias": [[1, -100]]}, "logit_bias"),
    (COMPLETION, {"prompt": "w1", "logit_bias": {"w5": -100}}, "logit_bias"),
    (COMPLETION, {"prompt": "w1", "lora": [{"id": 0, "scale": 1.0}]}, "lora"),
    *((CHAT, {"messages": messages}, "messages") for messages in (None, "w1", [5], [{}], [{"role": 5}], TWICE)),
    (CHAT, {"messages": [{"role": "system", "content": 5}]}, "messages"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages"),
    *(
        (CHAT, {"messages": MESSAGES, "response_format": form}, "response_format")
        for form in ({"type": "json_object"}, {"type": "json_object", "schema": 5}, SCHEMA, {"type": "sound"})
    ),
    (CHAT, {"messages": MESSAGES, "json_schema": {"const": "w1"}}, "json_schema"),
    (CHAT, {"messages": MESSAGES, "grammar": "root ::= ("}, "grammar"),
    (
        CHAT,
        {"messages": MESSAGES, "add_generation_prompt": True, "continue_final_message": True},
        "continue_final_message",
    ),
]


@pytest.mark.parametrize(("path", "body", "param"), REFUSED, ids=str)
def test_what_is_refused_is_named(http, path, body, param):
    assert refusal(http, path, **body)["param"] == param


@pytest.mark.parametrize(("grammar", "texts"), [('"a"{5,5}', ["aaaaa"]), ('"low" | "high"', ["low", "high"])])
def test_a_grammar_is_followed(real, grammar, texts):
    asked = {"messages": TALK, "grammar": f"root ::= {grammar}"}
    (choice,) = post(real, CHAT, **asked)["choices"]
    assert choice["finish_reason"] == "stop" and choice["message"]["content"] in texts
    said = [chunk["choices"][0]["delta"].get("content") or "" for chunk in stream_of(real, CHAT, **asked)]
    assert "".join(said) == choice["message"]["content"]


WITHOUT_EFFECT = {
    "n_probs": 10,
    "post_sampling_probs": True,
    "backend_sampling": True,
    "response_fields": ["content"],
    "verbose": True,
    "cache_prompt": False,
    "id_slot": 0,
}


def test_what_is_not_here_is_said(http, quiet):
    done = post(http, prompt="w1", **WITHOUT_EFFECT)
    assert done["choices"][0]["text"] == quiet.generate("w1", max_new_tokens=8).text
    assert done["warnings"] == [f"unknown field {name!r} is ignored" for name in WITHOUT_EFFECT]


ABSENT = """/completions /chat/completions /slots /lora-adapters /v1/stream /v1/chat/completions/input_tokens""".split()


@pytest.mark.parametrize("path", ABSENT)
def test_a_route_that_is_not_here(http, path):
    for method in ("GET", "POST"):
        response = http.request(method, path, json={"prompt": "w1"} if method == "POST" else None)
        assert response.status_code == 404 and response.json()["error"]["type"] == "not_found_error"
