"""Refusals as vLLM's tests of its OpenAI server check them, on the routes that this server has.

They were read in vLLM's repository. Which of them a test here stands for, by file below tests/entrypoints, and the
commit at which that was read:

REFUSED
 - openai/completion/test_completion.py (10efe9463b): too_many_completion_logprobs, prompt_logprobs_completion,
   completion_stream_options, batch_completions with beams, invalid_json_schema, invalid_regex, invalid_grammar
 - openai/completion/test_completion_error.py (03d1e1ee1f), test_empty_prompt_list.py (22456d6eab) and
   test_prompt_validation.py (6052d63e3d: empty_prompt, out_of_vocab_token_ids)
 - openai/chat_completion/test_chat.py (03f5298e5c): too_many_chat_logprobs, long_seed, structured_outputs_*,
   response_format_json_*, chat_completion_stream_options
 - openai/chat_completion/test_chat_error.py (0a1478aacc): parts that are no text, a schema that is missing
 - openai/chat_completion/test_chat_echo.py (41c5903d04): echo, top_logprobs and prompt_logprobs of -1
 - openai/chat_completion/test_token_in_token_out.py (49d9f165f6), test_non_object_body_validation.py (5cc615108e: salt)
 - serve/tokenize/test_serving_tokenization.py (0c7c443e07): client errors of /tokenize and /detokenize
test_what_is_refused_is_explained: openai/chat_completion/test_chat_logit_bias_validation.py (0c292380d4) and
 test_chat_stop_token_ids_validation.py (37fa82dee5)
test_a_body_that_is_no_object: openai/chat_completion/test_non_object_body_validation.py (5cc615108e)
test_refusals_are_short_and_show_nothing_of_the_server: serve/exception_handling/test_validation_exception_handler.py
 (344e800a9f) and test_error_sanitization.py (36184277c1)
"""

import re

import pytest

from tests.serve.openai.test_chat import MESSAGES
from tests.serve.request.test_fields import post, refusal

pytestmark = pytest.mark.clients

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
ASK = {CHAT: {"messages": MESSAGES}, COMPLETION: {"prompt": "w1 w2 w3"}}
LAST_ID = 210
routes = pytest.mark.parametrize("path", [CHAT, COMPLETION])


SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
IMAGE = {"type": "image_url", "image_url": {"url": "http://x/a.jpg"}}
REFUSED = [
    *((COMPLETION, {"prompt": prompt}, "prompt") for prompt in (None, [], "", [999_999], [-1], [[-1]])),
    *((COMPLETION, {"logprobs": 21, "stream": stream}, "logprobs") for stream in (False, True)),
    *((CHAT, {"logprobs": True, "top_logprobs": 21, "stream": stream}, "top_logprobs") for stream in (False, True)),
    *((CHAT, {"logprobs": True, "top_logprobs": value}, "top_logprobs") for value in (-1, "2")),
    (CHAT, {"echo": True}, "echo"),
    (CHAT, {"prompt_token_ids": [1, 2]}, "prompt_token_ids"),
    (CHAT, {"messages": []}, "messages"),
    *((CHAT, {"messages": [{"role": role, "content": [IMAGE]}]}, "messages") for role in ("system", "user")),
    (CHAT, {"messages": [{"role": "system", "content": [{"type": "input_audio", "input_audio": {}}]}]}, "messages"),
    ("/tokenize", {}, "prompt"),
    *(("/detokenize", {"tokens": [value]}, "tokens") for value in (-1, LAST_ID + 1, 2**40, 2**70, 1.5, "1")),
]
for each in (CHAT, COMPLETION):
    REFUSED += [
        (each, {"prompt_logprobs": -1}, "prompt_logprobs"),
        (each, {"cache_salt": ""}, "cache_salt"),
        (each, {"structured_outputs": {"regex": "[.*"}}, "structured_outputs"),
        (each, {"structured_outputs": {"regex": {"1": "a"}}}, "structured_outputs"),
        (each, {"structured_outputs": {"choice": ["a", "b"]}}, "structured_outputs"),
        (each, {"response_format": {"type": "json_object"}}, "response_format"),
        (each, {"response_format": {"type": "json_schema"}}, "response_format"),
        (each, {"response_format": SCHEMA}, "response_format"),
        (each, {"logit_bias": {str(LAST_ID + 1): 1.0}}, "logit_bias"),
        (each, {"logit_bias": {"not_an_id": 50}}, "logit_bias"),
        (each, {"logit_bias": {"1": "not_a_number"}}, "logit_bias"),
        (each, {"stop_token_ids": [LAST_ID + 1]}, "stop_token_ids"),
        (each, {"stop_token_ids": [-1]}, "stop_token_ids"),
        *((each, {"seed": seed}, "seed") for seed in (-(2**63) - 1, 2**63)),
        *((each, {"stream_options": options}, "stream_options") for options in ({"include_usage": None}, {"a": True})),
        (each, {"stream_options": {"continuous_usage_stats": True}, "stream": False}, "stream_options"),
    ]


@pytest.mark.parametrize(("path", "more", "param"), REFUSED, ids=str)
def test_what_is_refused_is_named(http, path, more, param):
    assert refusal(http, path, **ASK.get(path, {}) | more)["param"] == param
    assert post(http, prompt="w1")["choices"]  # the server goes on


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"logit_bias": {str(LAST_ID + 1): 1.0}}, ("logit_bias", str(LAST_ID + 1), f"0 to {LAST_ID}")),
        ({"stop_token_ids": [LAST_ID + 1]}, ("stop_token_ids", str(LAST_ID + 1), f"0 to {LAST_ID}")),
        ({"logit_bias": {"not_an_id": 50}}, ("logit_bias", "not_an_id", "whole number")),
        ({"logit_bias": {"1": "not_a_number"}}, ("logit_bias[1]", "not_a_number", "a number from")),
        ({"min_tokens": 9, "max_tokens": 8}, ("min_tokens = 9", "at most max_tokens, which is 8")),
        ({"seed": 2**63}, ("seed", str(2**63))),
    ],
    ids=str,
)
@routes
def test_what_is_refused_is_explained(http, path, more, words):
    message = refusal(http, path, **ASK[path] | more)["message"]
    assert [word for word in words if word not in message] == []


NO_OBJECTS = [b'"no object"', b'["no", "object"]', b"42", b"null", b"{{", b""]


@pytest.mark.parametrize("path", [CHAT, COMPLETION, "/tokenize", "/detokenize"])
def test_a_body_that_is_no_object(http, path):
    for data in NO_OBJECTS:
        response = http.post(path, content=data, headers={"Content-Type": "application/json"})
        assert response.status_code == 400 and response.json()["error"]["type"] == "invalid_request_error"


LONG = "A" * 100_000


@pytest.mark.parametrize(
    ("path", "more", "param"),
    [
        (CHAT, {"messages": None}, "messages"),
        (CHAT, {"messages": "w1"}, "messages"),
        (CHAT, {"messages": [{"role": LONG, "content": 5}]}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": LONG}]}] * 30}, "messages"),
        (COMPLETION, {"prompt": [{"a": 1}] * 5000}, "prompt"),
        (COMPLETION, {"max_tokens": LONG}, "max_tokens"),
        (COMPLETION, {"stop": [1] * 5000}, "stop"),
        (COMPLETION, {"logit_bias": {LONG: 1}}, "logit_bias"),
        (COMPLETION, {"temperature": LONG}, "temperature"),
        ("/detokenize", {"tokens": ["a"] * 5000}, "tokens"),
    ],
    ids=[*map(str, range(10))],
)
def test_refusals_are_short_and_show_nothing_of_the_server(http, path, more, param):
    error = refusal(http, path, **ASK.get(path, {}) | more)
    assert error["param"] == param and len(error["message"]) < 1100
    assert not re.search(r"0x[0-9a-f]|\.py\b|/usr|/home|site-packages|Traceback|list\[|function-", error["message"])
