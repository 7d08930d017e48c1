"""POST /v1/completions, through OpenAI's own client: texts are those of the engine, whole and in streams."""

import json

import openai
import pytest

from tests.serve.conftest import MODEL

PROMPTS = ["w1 w2 w3", "w9", "w4 w4 w5 w6"]
SAMPLING = {
    "greedy": {"temperature": 0},
    "seeded": {"temperature": 0.9, "seed": 3, "top_p": 0.9},
    "penalties": {"temperature": 0.8, "seed": 1, "presence_penalty": 0.5, "frequency_penalty": 0.3},
    "bias": {"temperature": 0, "logit_bias": {"7": 5.0}},
}
OWN = {"top_k": 5, "min_p": 0.01, "repetition_penalty": 1.1, "min_tokens": 3, "ignore_eos": True}


def expected(quiet, prompt, max_tokens=12, **settings):
    return quiet.generate(prompt, max_new_tokens=max_tokens, **settings)


@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("prompt", PROMPTS)
def test_the_text_is_that_of_the_engine(client, quiet, prompt, sampling):
    done = client.completions.create(model=MODEL, prompt=prompt, max_tokens=12, **SAMPLING[sampling])
    wanted = expected(quiet, prompt, **SAMPLING[sampling])
    assert done.object == "text_completion" and done.model == MODEL and done.id.startswith("cmpl-")
    (choice,) = done.choices
    assert (choice.text, choice.finish_reason, choice.index) == (wanted.text, "length", 0)
    num_prompt = wanted.num_prompt_tokens
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (num_prompt, 12)
    assert done.usage.total_tokens == num_prompt + 12


def test_settings_that_the_open_engines_share(client, quiet):
    done = client.completions.create(model=MODEL, prompt="w1", max_tokens=9, temperature=1, seed=5, extra_body=OWN)
    settings = {("min_new_tokens" if name == "min_tokens" else name): value for name, value in OWN.items()}
    assert done.choices[0].text == expected(quiet, "w1", 9, temperature=1, seed=5, **settings).text


def test_a_top_k_of_minus_one_is_none(client, quiet):
    done = client.completions.create(model=MODEL, prompt="w1", max_tokens=9, seed=5, extra_body={"top_k": -1})
    assert done.choices[0].text == expected(quiet, "w1", 9, temperature=1, seed=5).text


@pytest.mark.parametrize("sampling", SAMPLING)
def test_streams_joined_are_the_text(client, sampling):
    settings = {"model": MODEL, "prompt": "w1 w2", "max_tokens": 20, **SAMPLING[sampling]}
    whole = client.completions.create(**settings).choices[0]
    chunks = list(client.completions.create(**settings, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.text
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["length"]


def test_several_prompts_and_continuations(client, quiet):
    settings = {"max_tokens": 6, "temperature": 0.9, "seed": 4, "n": 2}
    done = client.completions.create(model=MODEL, prompt=PROMPTS, **settings)
    wanted = [each for done in expected(quiet, PROMPTS, **settings) for each in done.completions]
    assert [choice.text for choice in done.choices] == [each.text for each in wanted]
    assert [choice.index for choice in done.choices] == list(range(6))
    texts = [""] * 6
    for chunk in client.completions.create(model=MODEL, prompt=PROMPTS, stream=True, **settings):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [each.text for each in wanted]


@pytest.mark.parametrize("prompt", [[1, 2, 3], [[1, 2, 3], [4, 5]]], ids=["ids", "lists of ids"])
def test_prompts_as_ids(client, quiet, prompt):
    done = client.completions.create(model=MODEL, prompt=prompt, max_tokens=5, temperature=0)
    wanted = expected(quiet, prompt, 5)
    assert [choice.text for choice in done.choices] == [
        each.text for each in (wanted if len(prompt) == 2 else [wanted])
    ]


def test_a_stop_text_ends_the_text_before_it(client, quiet):
    text = expected(quiet, "w1 w2", 12).text
    word = text.split()[4]
    settings = {"model": MODEL, "prompt": "w1 w2", "max_tokens": 12, "temperature": 0, "stop": [word]}
    done = client.completions.create(**settings).choices[0]
    assert done.finish_reason == "stop" and done.text == text[: text.index(word)]
    assert "".join(chunk.choices[0].text for chunk in client.completions.create(**settings, stream=True)) == done.text
    kept = client.completions.create(**settings, extra_body={"include_stop_str_in_output": True}).choices[0]
    assert kept.text == text[: text.index(word) + len(word)]


def test_echo_gives_the_prompt_back(client, quiet):
    settings = {"model": MODEL, "prompt": "w1 w2", "max_tokens": 4, "temperature": 0, "echo": True}
    wanted = "w1 w2" + expected(quiet, "w1 w2", 4).text
    assert client.completions.create(**settings).choices[0].text == wanted
    assert "".join(chunk.choices[0].text for chunk in client.completions.create(**settings, stream=True)) == wanted


def test_logprobs(client, quiet):
    done = client.completions.create(model=MODEL, prompt="w1", max_tokens=4, temperature=0, logprobs=2).choices[0]
    wanted = expected(quiet, "w1", 4, logprobs=2)
    assert done.logprobs.token_logprobs == pytest.approx([entry.logprob for entry in wanted.logprobs])
    assert [len(top) for top in done.logprobs.top_logprobs] == [2] * 4
    none = client.completions.create(model=MODEL, prompt="w1", max_tokens=4, temperature=0, logprobs=0).choices[0]
    chosen = zip(done.logprobs.tokens, done.logprobs.token_logprobs, strict=True)
    assert none.logprobs.top_logprobs == [{token: value} for token, value in chosen]
    assert done.logprobs.tokens == [f"w{token}" for token in wanted.tokens]
    stream = client.completions.create(model=MODEL, prompt="w1", max_tokens=4, temperature=0, logprobs=2, stream=True)
    entries = [chunk.choices[0].logprobs for chunk in stream]
    assert [token for entry in entries for token in entry.tokens] == done.logprobs.tokens
    assert [offset for entry in entries for offset in entry.text_offset] == done.logprobs.text_offset


@pytest.mark.parametrize("max_tokens", [0, 1, 3])
@pytest.mark.parametrize("prompt", ["w1 w2 w3", [1, 2, 3]], ids=["text", "ids"])
def test_logprobs_of_the_prompt(client, quiet, prompt, max_tokens):
    """Evaluation tools ask for them with echo, and one token or none."""
    done = client.completions.create(
        model=MODEL, prompt=prompt, max_tokens=max_tokens, temperature=0, echo=True, logprobs=2
    )
    new = expected(quiet, prompt, 3).tokens[:max_tokens]
    tokens, logprobs, text = [1, 2, 3, *new], done.choices[0].logprobs, done.choices[0].text
    wanted_TV = quiet.logits(tokens).log_softmax(-1)
    values = [float(wanted_TV[place, token]) for place, token in enumerate(tokens[1:])]
    assert logprobs.tokens == [f"w{token}" for token in tokens]
    assert logprobs.token_logprobs[0] is None and logprobs.top_logprobs[0] is None
    assert logprobs.token_logprobs[1:] == pytest.approx(values, abs=1e-4)
    for place, top in enumerate(logprobs.top_logprobs[1:]):
        best = wanted_TV[place].topk(2)
        wanted = {f"w{token}": value for token, value in zip(best.indices.tolist(), best.values.tolist(), strict=True)}
        wanted[f"w{tokens[place + 1]}"] = values[place]  # the token that is there, also where it is not likely
        assert top == pytest.approx(wanted, abs=1e-4)
    ends = [*logprobs.text_offset[1:], len(text)]
    assert [text[start:end].strip() for start, end in zip(logprobs.text_offset, ends)] == logprobs.tokens
    assert done.usage.completion_tokens == max_tokens


def test_logprobs_of_several_prompts_in_a_stream(client):
    settings = {"model": MODEL, "prompt": PROMPTS, "max_tokens": 2, "temperature": 0, "echo": True, "logprobs": 1}
    whole = client.completions.create(**settings).choices
    streamed = {index: [] for index in range(3)}
    for chunk in client.completions.create(**settings, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].logprobs.token_logprobs
    assert [streamed[index] for index in range(3)] == [choice.logprobs.token_logprobs for choice in whole]


def test_usage_says_what_was_in_the_cache(client):
    prompt = " ".join(f"w{number}" for number in range(30, 60))
    first, second = (client.completions.create(model=MODEL, prompt=prompt, max_tokens=2, temperature=0) for _ in "ab")
    assert first.usage.prompt_tokens_details.cached_tokens == 0
    assert second.usage.prompt_tokens_details.cached_tokens == 24  # the full blocks of 8, without the last token
    assert first.choices[0].text == second.choices[0].text


def test_usage_of_a_stream(client):
    stream = client.completions.create(
        model=MODEL, prompt="w1 w2", max_tokens=5, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = stream
    assert last.choices == [] and last.usage.completion_tokens == 5 and last.usage.prompt_tokens == 2
    assert all(chunk.usage is None for chunk in chunks)


@pytest.mark.parametrize("include", [True, False])
def test_usage_of_every_chunk_of_a_stream(client, include):
    options = {"include_usage": include, "continuous_usage_stats": True}
    *chunks, last = client.completions.create(
        model=MODEL, prompt="w1 w2", max_tokens=5, stream=True, stream_options=options
    )
    if not include:
        assert {chunk.usage for chunk in chunks} == {None} == {last.usage}
        return
    numbers = [chunk.usage.completion_tokens for chunk in chunks]
    assert numbers == sorted(set(numbers)) and numbers[-1] == last.usage.completion_tokens == 5
    assert {chunk.usage.total_tokens - chunk.usage.completion_tokens for chunk in chunks} == {2}


def test_more_tokens_than_fit_are_as_many_as_fit(client):
    done = client.completions.create(model=MODEL, prompt="w1 w2", max_tokens=10**6, temperature=0)
    assert done.usage.completion_tokens == 94 and done.choices[0].finish_reason == "length"


def test_the_last_tokens_of_a_long_prompt_if_the_client_says_so(client, quiet):
    prompt = " ".join(f"w{number % 50}" for number in range(200))
    done = client.completions.create(
        model=MODEL, prompt=prompt, max_tokens=4, temperature=0, extra_body={"truncate_prompt_tokens": 20}
    )
    assert done.usage.prompt_tokens == 20
    assert done.choices[0].text == expected(quiet, [number % 50 for number in range(180, 200)], 4).text
    body = {"truncate_prompt_tokens": 20, "truncation_side": "right", "return_tokens": True}
    first = client.completions.create(model=MODEL, prompt=prompt, max_tokens=1, extra_body=body)
    assert first.choices[0].prompt_token_ids == list(range(20))


def test_an_unknown_field_is_named(http):
    body = {"prompt": "w1", "max_tokens": 1, "mirostat": 0, "stream": True, "stream_options": {"chunk_size": 2}}
    with http.stream("POST", "/v1/completions", json=body) as stream:
        first = json.loads(next(stream.iter_lines()).removeprefix("data: "))
    assert first["warnings"] == [
        "unknown field 'mirostat' is ignored",
        "unknown field 'stream_options.chunk_size' is ignored",
    ]


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({}, "prompt", "required"),
        ({"prompt": 5}, "prompt", "valid"),
        ({"prompt": [1, "w1"]}, "prompt", "a list of token ids, or a list of such lists"),
        (
            {"prompt": "w1", "min_tokens": 5, "max_tokens": 2},
            "min_tokens",
            "min_tokens = 5 is not allowed: at most max_t",
        ),
        ({"prompt": "w1", "stream_options": {}}, "stream_options", "only allowed with stream"),
        ({"prompt": "w1", "cache_salt": ""}, "cache_salt", "at least 1"),
        ({"prompt": "w1", "truncation_side": "up"}, "truncation_side", "'left' or 'right'"),
        ({"prompt": "w1", "lora": [{"id": 0, "scale": 1.0}]}, "lora", "not supported"),
        ({"prompt": "w1", "prompt_embeds": "AAAA"}, "prompt_embeds", "not supported"),
        ({"prompt": "w1", "prompt_token_ids": [1]}, "prompt_token_ids", "not supported"),
        ({"prompt": []}, "prompt", "nothing"),
        ({"prompt": ""}, "prompt", "empty"),
        ({"prompt": [500]}, "prompt", "out of range"),
        ({"prompt": [-1]}, "prompt", "out of range"),
        ({"prompt": "w1", "max_tokens": 0}, "max_tokens", "at least 1"),
        ({"prompt": "w1", "max_tokens": -2}, "max_tokens", "at least 1"),
        ({"prompt": "w1", "max_tokens": 2**63}, "max_tokens", "less than"),
        ({"prompt": "w1", "max_tokens": "5"}, "max_tokens", "valid integer"),
        ({"prompt": "w1", "n": 10**9}, "n", "more than the 68"),
        ({"prompt": ["w1"] * 1025}, "prompt", "1025 texts are more than the 1024"),
        ({"prompt": ["w1"] * 20, "n": 60}, "prompt", "1200 texts are more than the 1024"),
        ({"prompt": "w1", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "at least 1"),
        ({"prompt": None}, "prompt", "no token that begins"),
        ({"prompt": "w1", "n": 0}, "n", ""),
        ({"prompt": "w1", "temperature": -1}, "temperature", "0 to 100"),
        ({"prompt": "w1", "top_p": 7}, "top_p", ""),
        ({"prompt": "w1", "logprobs": 21}, "logprobs", ""),
        ({"prompt": "w1", "stop": 7}, "stop", ""),
        ({"prompt": "w1", "seed": -5}, "seed", ""),
        ({"prompt": "w1", "logit_bias": {"x": 1}}, "logit_bias", ""),
        ({"prompt": "w1", "suffix": "abc"}, "suffix", "fills in nothing"),
        ({"prompt": "w1", "structured_outputs": {}}, "structured_outputs", "one of json, regex"),
    ],
)
def test_bad_fields_are_named(http, body, param, says):
    response = http.post("/v1/completions", json=body)
    error = response.json()["error"]
    assert response.status_code == 400 and set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error" and says in error["message"]
    assert error["param"] == param


def test_a_prompt_that_does_not_fit(client):
    with pytest.raises(openai.BadRequestError, match=r"100 tokens.*95.*5 too many") as caught:
        client.completions.create(model=MODEL, prompt=[1] * 100, max_tokens=1)
    assert caught.value.code == "context_length_exceeded"


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[" * 100_000, b'"\\ud800"', b'{"prompt": "\\ud800"}', b"\xff", b"[]", b"null", b"5"],
    ids=["nothing", "half", "brackets", "surrogate", "surrogate in a field", "no UTF-8", "list", "null", "number"],
)
def test_bodies_that_are_no_requests(http, data):
    response = http.post("/v1/completions", content=data, headers={"content-type": "application/json"})
    assert response.status_code == 400 and response.json()["error"]["message"]


@pytest.mark.parametrize(
    "more", [{"model": "A" * 100_000}, {"logit_bias": {"A" * 100_000: 1}}, {"prompt": [{"a": 1}] * 5000}], ids=[*"abc"]
)
def test_a_refusal_does_not_send_back_what_is_long(http, more):
    response = http.post("/v1/completions", json={"prompt": "w1", **more})
    assert response.status_code in (400, 404) and len(response.content) < 1500


def test_nan_is_refused_by_name(http):
    data = b'{"prompt": "w1", "temperature": NaN}'
    response = http.post("/v1/completions", content=data, headers={"content-type": "application/json"})
    assert response.status_code == 400 and response.json()["error"]["param"] == "temperature"


def test_another_model_is_not_found(client):
    with pytest.raises(openai.NotFoundError, match="is not served here; there is 'words'"):
        client.completions.create(model="gpt-4", prompt="w1")


def test_a_deadline_ends_a_request_and_a_stream(http):
    body = {"prompt": "w1", "max_tokens": 90, "timeout": 1e-6}
    said = http.post("/v1/completions", json=body)
    assert said.status_code == 504 and said.json()["error"]["code"] == "deadline_exceeded"
    with http.stream("POST", "/v1/completions", json=body | {"stream": True}) as stream:
        events = [line for line in stream.iter_lines() if line]
    assert "the deadline has passed after 0 tokens" in events[-1] and "[DONE]" not in events[-1]


@pytest.mark.parametrize("value", [0, -1, "1", "soon"])
def test_a_timeout_is_a_number_of_seconds(http, value):
    said = http.post("/v1/completions", json={"prompt": "w1", "timeout": value})
    assert said.status_code == 400 and said.json()["error"]["param"] == "timeout"
