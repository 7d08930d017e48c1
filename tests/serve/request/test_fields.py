"""Fields that vLLM shares: masks of tokens, log-probabilities of prompts, the best of several, open last messages."""

import time

import httpx2
import openai
import pytest

from tests.serve.conftest import MODEL, served
from tests.serve.openai.test_chat import ASK, MESSAGES
from tests.tiny_models import save
from tokenmill.serve.request.ask import Ask
from tokenmill.serve.request.prepare import prepare

PROMPT = "w1 w2 w3"
OPEN = [*MESSAGES, {"role": "assistant", "content": "w7 w8"}]


def post(http, path="/v1/completions", **body):
    response = http.post(path, json={"temperature": 0, "max_tokens": 8, **body})
    assert response.status_code == 200, response.text
    return response.json()


def refusal(http, path="/v1/completions", **body):
    response = http.post(path, json=body)
    assert response.status_code == 400, response.text
    return response.json()["error"]


@pytest.mark.parametrize(
    "more",
    [
        {"allowed_token_ids": [5, 9, 30]},
        {"allowed_token_ids": list(range(0, 200, 7)), "temperature": 0.9, "seed": 2},
        {"bad_words": ["w9", "w7 w30"]},
        {"skip_special_tokens": False},
    ],
    ids=lambda more: next(iter(more)),
)
def test_the_text_is_that_of_the_engine(http, quiet, more):
    wanted = quiet.generate(PROMPT, max_new_tokens=8, **more).text
    done = post(http, prompt=PROMPT, **more)
    assert done["choices"][0]["text"] == wanted and "warnings" not in done
    chat = post(http, "/v1/chat/completions", messages=MESSAGES, **more)
    assert chat["choices"][0]["message"]["content"] == quiet.chat(MESSAGES, max_new_tokens=8, **more).text


@pytest.mark.parametrize("num_top", [0, 1, 3])
def test_log_probabilities_of_the_prompt(http, quiet, num_top):
    ids = quiet.encode(PROMPT)
    logprobs_TV = quiet.logits(ids).log_softmax(-1)
    done = post(http, prompt=[PROMPT, "w4"], prompt_logprobs=num_top)
    first, *entries = done["choices"][0]["prompt_logprobs"]
    assert first is None and len(entries) == 2 and done["choices"][1]["prompt_logprobs"] == [None]
    for place, (token, entry) in enumerate(zip(ids[1:], entries, strict=True)):
        likeliest = logprobs_TV[place].argsort(descending=True).tolist()
        assert next(map(int, entry)) == token
        assert {int(number) for number in entry} == {token, *likeliest[:num_top]}
        for number, each in entry.items():
            assert set(each) == {"logprob", "rank", "decoded_token"}
            assert each["logprob"] == pytest.approx(float(logprobs_TV[place][int(number)]), abs=1e-4)
            assert (each["rank"], each["decoded_token"]) == (likeliest.index(int(number)) + 1, f"w{number}")
    assert done["choices"][0]["text"] == quiet.generate(PROMPT, max_new_tokens=8).text


def test_log_probabilities_of_a_conversation(http, quiet):
    done = post(http, "/v1/chat/completions", messages=MESSAGES, prompt_logprobs=1, n=2)
    ids = quiet.chat_prompt(MESSAGES)
    assert [next(iter(entry or {}), None) for entry in done["prompt_logprobs"]] == [None, *map(str, ids[1:])]
    assert all("prompt_logprobs" not in choice for choice in done["choices"])


def test_echo_beside_log_probabilities_of_the_prompt(http):
    plain = post(http, prompt=PROMPT, echo=True, logprobs=1)["choices"][0]
    both = post(http, prompt=PROMPT, echo=True, logprobs=1, prompt_logprobs=4)["choices"][0]
    more = both.pop("prompt_logprobs")
    assert both == plain and [len(entry) >= 4 for entry in more[1:]] == [True, True]


@pytest.mark.parametrize("shown", [1, 2, 5])
def test_the_best_of_several(http, quiet, shown):
    settings = {"temperature": 1.3, "seed": 5}
    made = [quiet.generate(each, max_new_tokens=8, n=5, logprobs=0, **settings) for each in (PROMPT, "w4 w5")]
    wanted = []
    for each in made:
        mean = [sum(entry.logprob for entry in done.logprobs) / len(done.tokens) for done in each.completions]
        best = sorted(range(5), key=mean.__getitem__, reverse=True)
        wanted += [each.texts[number] for number in best[:shown]]
    done = post(http, prompt=[PROMPT, "w4 w5"], n=shown, best_of=5, echo=True, **settings)
    prompts = [PROMPT] * shown + ["w4 w5"] * shown
    texts = [choice["text"] for choice in done["choices"]]
    if shown < 5:
        assert texts == [prompt + text for prompt, text in zip(prompts, wanted, strict=True)]
    assert sorted(texts) == sorted(prompt + text for prompt, text in zip(prompts, wanted, strict=True))
    assert [choice["index"] for choice in done["choices"]] == list(range(2 * shown))
    assert {choice["logprobs"] for choice in done["choices"]} == {None}
    assert done["usage"]["completion_tokens"] == 2 * 5 * 8 and done["usage"]["prompt_tokens"] == 5


def test_an_open_last_message_is_continued(client, quiet):
    body = {"add_generation_prompt": False, "continue_final_message": True}
    ids = quiet.chat_prompt(OPEN, **body)
    assert ids == quiet.encode("system w1 w2 user w3 w4 assistant w7 w8")
    done = client.chat.completions.create(**(ASK | {"messages": OPEN}), extra_body=body)
    assert done.choices[0].message.content == quiet.generate(ids, max_new_tokens=8).text
    assert done.usage.prompt_tokens == len(ids)


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [211]}, "allowed_token_ids"),
        ({"allowed_token_ids": [-1]}, "allowed_token_ids"),
        ({"allowed_token_ids": [2**63]}, "allowed_token_ids"),
        ({"allowed_token_ids": ["w1"]}, "allowed_token_ids"),
        ({"logit_bias": {"211": 1}}, "logit_bias"),
        ({"stop_token_ids": [211]}, "stop_token_ids"),
        ({"bad_words": [""]}, "bad_words"),
        ({"bad_words": [" "]}, "bad_words"),
        ({"bad_words": "w1"}, "bad_words"),
        ({"bad_words": ["w1"] * 1001}, "bad_words"),
        ({"stop": ["w1 w2"] * 2001}, "stop"),
        ({"skip_special_tokens": 0}, "skip_special_tokens"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"prompt_logprobs": 0, "stream": True}, "prompt_logprobs"),
        ({"best_of": 2, "n": 3}, "best_of"),
        ({"best_of": 0}, "best_of"),
        ({"best_of": -(2**62)}, "best_of"),
        ({"best_of": 10**9}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
    ],
    ids=str,
)
def test_bad_values_are_named(http, more, param):
    assert refusal(http, prompt="w1", **more)["param"] == param


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"continue_final_message": True}, "continue_final_message"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ({"continue_final_message": 1, "add_generation_prompt": False}, "continue_final_message"),
        (
            {
                "continue_final_message": True,
                "add_generation_prompt": False,
                "messages": [{"role": "assistant", "tool_calls": [{}]}],
            },
            "messages",
        ),
        ({"chat_template": "{{ messages }}"}, "chat_template"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    ],
    ids=str,
)
def test_bad_values_of_a_conversation_are_named(http, more, param):
    assert refusal(http, "/v1/chat/completions", **{"messages": OPEN, **more})["param"] == param


def test_what_asks_for_nothing_is_accepted(client):
    body = {"best_of": 1, "bad_words": [], "allowed_token_ids": None, "prompt_logprobs": None}
    assert client.completions.create(model=MODEL, prompt="w1", max_tokens=1, stream=True, extra_body=body)
    with pytest.raises(openai.BadRequestError, match="suffix"):
        client.completions.create(model=MODEL, prompt="w1", suffix="w2")


def test_what_the_tokenizer_config_says(http, quiet):
    info = http.get("/tokenizer_info").json()
    assert (info["tokenizer_class"], info["vocab_size"], info["model_max_length"]) == ("WordLevel", 211, 128)
    assert info["chat_template"] == quiet.tokenizer.chat_template
    assert info["added_tokens_decoder"] == {}


def test_the_servers_seed_is_that_of_requests_that_name_none(chat_model, quiet):
    with served(chat_model, seed=5) as server, httpx2.Client(base_url=server.url, timeout=120) as http:
        for more, seed in [({}, 5), ({}, 5), ({"seed": 6}, 6)]:
            text = post(http, prompt=PROMPT, temperature=1, **more)["choices"][0]["text"]
            assert text == quiet.generate(PROMPT, max_new_tokens=8, temperature=1, seed=seed).text


def test_a_model_without_a_tokenizer(tmp_path):
    with served(save("llama", tmp_path)) as server, httpx2.Client(base_url=server.url, timeout=120) as http:
        assert http.get("/tokenizer_info").status_code == http.post("/detokenize", json={"tokens": []}).status_code
        done = post(http, prompt=[1, 2], prompt_logprobs=0, allowed_token_ids=[3, 4])
        assert next(iter(done["choices"][0]["prompt_logprobs"][1].values()))["decoded_token"] == "2"
        assert refusal(http, prompt=[1, 2], bad_words=["w1"])["param"] == "bad_words"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {"messages": [{"role": "user"}]}, "messages"),
        ("/tokenize", {"messages": MESSAGES, "add_special_tokens": True}, "add_special_tokens"),
        ("/v1/sessions/a/save", {"messages": MESSAGES, "add_special": True}, "add_special"),
        ("/detokenize", {"tokens": [211]}, "tokens"),
        ("/v1/sessions/a/save", {"prompt": ""}, "prompt"),
        ("/v1/sessions/a/save", {"prompt": "w1 " * 97}, "prompt"),
        ("/v1/sessions/a/save", {"messages": [{"role": "user"}]}, "messages"),
        ("/v1/chat/completions", {"messages": MESSAGES, "max_completion_tokens": 0}, "max_completion_tokens"),
    ],
    ids=str,
)
def test_refusals_of_other_routes_name_the_field(keeps, path, body, param):
    assert refusal(keeps, path, **body)["param"] == param


@pytest.fixture(scope="module")
def keeps(chat_model, tmp_path_factory):
    """A client of a server that keeps sessions."""
    directory = tmp_path_factory.mktemp("kept")
    with served(chat_model, session_dir=directory) as server, httpx2.Client(base_url=server.url, timeout=120) as http:
        yield http


def test_a_deadline_ends_the_scoring_of_a_prompt(chat_model):
    with served(chat_model, {"max_step_tokens": 4}) as server:
        step, steps = server.driver.core.loop.step, []

        def slow():
            steps.append(step())
            while len(steps) == 5 and server.driver.core.thread._inbox.empty():  # until the deadline ends the request
                time.sleep(0.005)

        server.driver.core.loop.step = slow
        body = {"prompt": [1] * 90, "logprobs": 1, "echo": True, "timeout": 0.2}
        for more in ({}, {"stream": True}):
            steps.clear()
            response = httpx2.post(f"{server.url}/v1/completions", json=body | more, timeout=60)
            assert (response.status_code, response.json()["error"]["param"]) == (504, "timeout")
            assert len(steps) < 23  # which is how many the prompt takes
        assert not server.admission.num_open


def test_the_scoring_of_a_prompt_is_its_clients(quiet):
    ask = Ask(prompts=["w1 w2"], num_prompt_logprobs=1, tenant=b"key")
    prepared = prepare(quiet.core, ask)
    assert [each.client for each, _ in prepared.prompt_logprobs] == [b"key"]
