"""The values that OpenAI's own types allow, field by field, null too; and other engines' names and values."""

import json
import typing

import openai.types.chat.completion_create_params as chat_params
import openai.types.completion_create_params as completion_params
import pytest

from tests.serve.openai.test_chat import MESSAGES
from tests.serve.request.test_fields import PROMPT, post, refusal
from tokenmill.serve.facts.tokens import TokenizeBody
from tokenmill.serve.openai.parse import ChatBody, CompletionBody

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
BODIES = {CHAT: {"messages": MESSAGES}, COMPLETION: {"prompt": PROMPT}, "/tokenize": {"prompt": PROMPT}}
PARAMS = {
    CHAT: typing.get_type_hints(chat_params.CompletionCreateParamsNonStreaming, vars(chat_params)),
    COMPLETION: typing.get_type_hints(completion_params.CompletionCreateParamsNonStreaming, vars(completion_params)),
}


def is_optional(hint):
    return type(None) in typing.get_args(hint)


NULLABLE = [(path, name) for path, hints in PARAMS.items() for name, hint in hints.items() if is_optional(hint)]
OURS = {CHAT: ChatBody, COMPLETION: CompletionBody, "/tokenize": TokenizeBody}
FIELDS = [(path, name) for path, body in OURS.items() for name in body.model_fields if name not in BODIES[path]]


def test_the_types_were_read():
    assert {(CHAT, "logprobs"), (COMPLETION, "echo"), (CHAT, "stream"), (COMPLETION, "prompt")} <= set(NULLABLE)
    assert (CHAT, "messages") not in NULLABLE


@pytest.mark.parametrize(("path", "name"), sorted({*NULLABLE, *FIELDS} - {(COMPLETION, "prompt")}))
def test_null_is_as_if_the_field_were_not_there(http, path, name):
    certain = (
        {}
        if path == "/tokenize"
        else {"max_tokens": 2, "temperature": 0}
        if name == "seed"
        else {"max_tokens": 2, "seed": 1}
    )
    certain.pop(name, None)
    wanted, given = (http.post(path, json=BODIES[path] | certain | more) for more in ({}, {name: None}))
    assert given.status_code == wanted.status_code == 200, given.text
    ours, theirs = ({k: v for k, v in each.json().items() if k not in ("id", "created")} for each in (given, wanted))
    assert ours.pop("usage", {}).get("total_tokens") == theirs.pop("usage", {}).get("total_tokens")
    assert ours == theirs and "warnings" not in ours


def test_null_in_an_object_too(http):
    body = {"prompt": PROMPT, "stream": True, "stream_options": {"include_usage": None}, "max_tokens": 1}
    with http.stream("POST", COMPLETION, json=body) as stream:
        assert stream.status_code == 200 and '"usage"' not in "".join(stream.iter_lines())


@pytest.mark.parametrize(
    "more",
    [
        {"content": None},
        {"content": None, "tool_calls": None, "name": None, "refusal": "w5", "audio": None, "function_call": None},
        {"content": []},
    ],
    ids=str,
)
def test_an_answer_in_the_history_may_have_no_text(http, quiet, more):
    history = [*MESSAGES, {"role": "assistant", "content": ""}, MESSAGES[-1]]
    wanted = quiet.chat(history, max_new_tokens=8).text
    history[2] = {"role": "assistant"} | more
    assert post(http, CHAT, messages=history)["choices"][0]["message"]["content"] == wanted


def test_a_refusal_in_the_history_is_text(http, quiet):
    parts = [{"type": "refusal", "refusal": "w5"}, {"type": "text", "text": "w6", "cache_control": {}}]
    history = [*MESSAGES, {"role": "assistant", "content": parts}, MESSAGES[-1]]
    done = post(http, CHAT, messages=history)
    history[2] = {"role": "assistant", "content": "w5\nw6"}
    assert done["choices"][0]["message"]["content"] == quiet.chat(history, max_new_tokens=8).text
    assert done["warnings"] == ["unknown field 'messages.content.cache_control' is ignored"]


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "n_predict", "num_predict"])
def test_minus_one_is_as_many_tokens_as_fit(http, path, name):
    body = BODIES[path] | {name: -1, "temperature": 0}
    assert http.post(path, json=body).json()["usage"]["total_tokens"] == 96


def test_a_seed_of_minus_one_is_any(http):
    texts = {post(http, prompt=PROMPT, temperature=1, seed=-1, max_tokens=20)["choices"][0]["text"] for _ in range(3)}
    assert len(texts) == 3
    assert refusal(http, prompt=PROMPT, seed=-2)["param"] == "seed"


def test_truncation_to_what_fits(http):
    done = post(http, prompt=[1] * 200, truncate_prompt_tokens=-1)
    assert (done["usage"]["prompt_tokens"], done["usage"]["completion_tokens"]) == (95, 1)


@pytest.mark.parametrize(
    ("other", "name", "value"),
    [
        ("stop_sequences", "stop", ["w9"]),
        ("stop_strings", "stop", "w9"),
        ("repeat_penalty", "repetition_penalty", 1.5),
        ("max_new_tokens", "max_tokens", 3),
        ("n_predict", "max_tokens", 3),
        ("num_predict", "max_tokens", 3),
        ("max_output_tokens", "max_tokens", 3),
        ("min_new_tokens", "min_tokens", 3),
        ("num_return_sequences", "n", 2),
        ("n_cmpl", "n", 2),
        ("random_seed", "seed", 3),
    ],
)
def test_other_names_of_a_field_are_taken(http, other, name, value):
    body = {"prompt": PROMPT, "temperature": 0.9, "seed": 4}
    body = {key: each for key, each in body.items() if key != name}
    wanted, given = (http.post(COMPLETION, json=body | {each: value}).json() for each in (name, other))
    assert given["choices"] == wanted["choices"] and "warnings" not in given
    both = refusal(http, prompt=PROMPT, **{name: value, other: value})
    assert both["param"] in (name, other) and "give one of the two" in both["message"]
    assert refusal(http, prompt=PROMPT, **{other: {}})["param"] == other


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("tempreature", "temperature"),
        ("maxTokens", "max_tokens"),
        ("stop_sequence", "stop_sequences"),
        ("repetition_penality", "repetition_penalty"),
        ("top-p", "top_p"),
        ("gramar", "grammar"),
    ],
)
def test_a_name_that_is_almost_that_of_a_field_is_refused(http, given, meant):
    error = refusal(http, prompt=PROMPT, **{given: 1})
    assert error["param"] == given and repr(meant) in error["message"]


NOWHERE = "guided_decoding response_schema logits_processors functions function_call".split()


@pytest.mark.parametrize(
    ("path", "name"),
    [
        *((path, name) for path in (CHAT, COMPLETION) for name in NOWHERE),
        *((COMPLETION, name) for name in ("tools", "tool_choice")),
    ],
)
def test_what_is_not_served_is_refused_by_its_name_and_not_passed_over(http, path, name):
    error = refusal(http, path, **BODIES[path], **{name: {"type": "json_object"}})
    assert (error["param"], error["code"]) == (name, "unsupported_parameter")
    assert post(http, path, **BODIES[path], **{name: None})["choices"]


def test_a_refusal_of_tool_choice_blames_tools(http):
    assert refusal(http, CHAT, messages=MESSAGES, tool_choice="required")["param"] == "tool_choice"
    assert "tools, which are not supported" in refusal(http, prompt=PROMPT, tool_choice="auto")["message"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (COMPLETION, {"prompt": [1] * 100}, "prompt"),
        (CHAT, {"messages": [{"role": "user", "content": "w1 " * 98}]}, "messages"),
    ],
)
def test_gateways_know_a_prompt_that_is_too_long_by_its_words(http, path, body, param):
    error = refusal(http, path, **body)
    assert error["message"].startswith("This model's maximum context length is 96 tokens. However, your ")
    assert (error["param"], error["code"]) == (param, "context_length_exceeded")


OPEN = [*MESSAGES, {"role": "assistant", "content": "w7"}]


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"add_generation_prompt": False},
        {"add_generation_prompt": False, "continue_final_message": True},
        {"chat_template_kwargs": {"add_generation_prompt": True}},
        {"tools": []},
    ],
    ids=str,
)
def test_tokenize_has_the_prompt_of_a_chat(http, quiet, variables):
    found = post(http, "/tokenize", messages=OPEN, **variables)
    own = {name: value for name, value in variables.items() if name not in ("chat_template_kwargs", "tools")}
    assert found["tokens"] == quiet.chat_prompt(OPEN, **own)
    asked = {name: value for name, value in variables.items() if name != "tools"}
    answer = post(http, CHAT, messages=OPEN, return_token_ids=True, **asked)
    assert answer["prompt_token_ids"] == found["tokens"]


def test_tokenize_has_the_prompt_of_a_chat_with_tools(http):
    body = {"messages": OPEN[:-1], "tools": [{"type": "function", "function": {"name": "f"}}]}
    prompt = post(http, CHAT, **body, return_token_ids=True, max_tokens=1)["prompt_token_ids"]
    assert post(http, "/tokenize", **body)["tokens"] == prompt
    assert refusal(http, "/tokenize", **body | {"tools": [{}]})["param"] == "tools"


def test_what_is_said_of_messages_changes_no_prompt(http):
    names = {"add_generation_prompt": False, "chat_template_kwargs": {"a": 1}, "tools": [{}]}
    said = http.post("/tokenize", json={"prompt": PROMPT, **names}).json()["warnings"]
    assert said == [f"{name} is about messages, so it changes nothing of a prompt" for name in names]


def test_warnings_on_every_route(http):
    kwargs = {"messages": OPEN, "chat_template_kwargs": {"enable_thinking": False}}
    unread = "this model's chat template does not read '{}', so it changes nothing"
    assert post(http, CHAT, **kwargs)["warnings"] == [unread.format("enable_thinking")]
    found = http.post("/tokenize", json=kwargs | {"zzz": 1}).json()
    assert found["warnings"] == ["unknown field 'zzz' is ignored", unread.format("enable_thinking")]
    assert http.post("/detokenize", json={"tokens": [1], "zzz": 1}).json()["warnings"]


def test_why_a_text_stopped_and_of_which_tokens_its_prompt_was(http, quiet):
    text = quiet.generate(PROMPT, max_new_tokens=8).text
    word = text.split()[3]
    number = int(word.removeprefix("w"))
    for more, reason in (({"stop": [word]}, word), ({"stop_token_ids": [number]}, number), ({}, None)):
        done = post(http, prompt=PROMPT, return_token_ids=True, **more)
        choice = done["choices"][0]
        assert choice["stop_reason"] == reason and choice["prompt_token_ids"] == quiet.encode(PROMPT)
        assert (choice["finish_reason"] == "stop") == (reason is not None)
        body = {"prompt": PROMPT, "return_token_ids": True, "stream": True, "temperature": 0, "max_tokens": 8} | more
        with http.stream("POST", COMPLETION, json=body) as stream:
            lines = [line.removeprefix("data: ") for line in stream.iter_lines() if line.startswith("data: {")]
        chunks = [json.loads(line) for line in lines]
        assert chunks[-1]["choices"][0].get("stop_reason") == reason
        assert chunks[0]["choices"][0]["prompt_token_ids"] == choice["prompt_token_ids"]
        assert all("prompt_token_ids" not in chunk["choices"][0] for chunk in chunks[1:])
        assert {chunk["system_fingerprint"] for chunk in chunks} == {done["system_fingerprint"]}
    assert done["system_fingerprint"].startswith("fp_")


def test_more_prompts_than_run_and_wait_together_are_queued(http, quiet):
    prompts = [[number] for number in range(100)]  # 4 run and 64 wait
    done = post(http, prompt=prompts, max_tokens=2)
    wanted = quiet.generate(prompts, max_new_tokens=2)
    assert [choice["text"] for choice in done["choices"]] == [each.text for each in wanted]
