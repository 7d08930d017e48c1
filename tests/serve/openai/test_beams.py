"""use_beam_search over HTTP: the texts of Engine.beam, and refusals."""

import pytest

from tests.empty import check_empty
from tests.serve.conftest import MODEL

PROMPT = "w3 w14 w15 w9"
MESSAGES = [{"role": "user", "content": PROMPT}]
SEARCH = {"use_beam_search": True, "n": 3, "max_tokens": 6, "ignore_eos": True}


def test_completions(server, client, quiet):
    wanted = [beam.text for beam in quiet.beam(PROMPT, 3, max_new_tokens=6, ignore_eos=True)]
    body = {name: SEARCH[name] for name in ("use_beam_search", "ignore_eos")}
    done = client.completions.create(model=MODEL, prompt=PROMPT, n=3, max_tokens=6, extra_body=body)
    assert [choice.text for choice in done.choices] == wanted and len(set(wanted)) == 3
    assert [choice.index for choice in done.choices] == [0, 1, 2]
    assert done.usage.completion_tokens == 18 and done.choices[0].finish_reason == "length"
    check_empty(server.driver.core)


def test_conversations_and_penalties(http, quiet):
    tokens = quiet.chat_prompt(MESSAGES)
    for penalty in (0.0, 1.0, 2.0):
        wanted = [
            beam.text
            for beam in quiet.beam(tokens, 3, length_penalty=penalty, max_new_tokens=6, stop_token_ids=[7, 30, 80])
        ]
        body = SEARCH | {"messages": MESSAGES, "length_penalty": penalty, "stop_token_ids": [7, 30, 80]}
        found = http.post("/v1/chat/completions", json=body | {"ignore_eos": False}).json()
        assert [choice["message"]["content"] for choice in found["choices"]] == wanted


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"stream": True}, "stream"),
        ({"top_p": 0.5}, "top_p"),
        ({"repetition_penalty": 1.2}, "repetition_penalty"),
        ({"stop": ["w1"]}, "stop"),
        ({"logprobs": 2}, "logprobs"),
        ({"echo": True}, "echo"),
        ({"best_of": 4}, "best_of"),
        ({"receipt": True}, "receipt"),
        ({"prompt": ["w1", "w2"]}, "several prompts"),
        ({"guided_regex": "a+"}, "guided_regex"),
        ({"length_penalty": 1e9}, "length_penalty"),
        ({"n": 500}, "more than"),
        ({"n": 300}, "n = 300"),
    ],
)
def test_what_a_search_does_not_read_is_refused(more, said, server, http):
    found = http.post("/v1/completions", json=SEARCH | {"prompt": PROMPT} | more)
    assert found.status_code == 400 and said in found.json()["error"]["message"], found.text
    check_empty(server.driver.core)


def test_what_says_nothing_is_passed_over(http):
    body = SEARCH | {"prompt": PROMPT, "temperature": 0.7, "top_p": 1.0, "stop": [], "seed": 3, "presence_penalty": 0}
    body |= {"top_k": -1, "best_of": 3}
    assert http.post("/v1/completions", json=body).status_code == 200


def test_a_deadline_ends_a_search(server, http):
    found = http.post("/v1/completions", json=SEARCH | {"prompt": PROMPT, "timeout": 1e-6})
    assert found.status_code == 504 and found.json()["error"]["code"] == "deadline_exceeded", found.text
    check_empty(server.driver.core)
