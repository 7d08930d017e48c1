"""Law: the body of a batch's answer is what the route answers, byte for byte but for what depends on the moment."""

import json
import re

import pytest
from openai.types.responses import Response

from tests.batches.conftest import lines_task, requests, run, write_lines
from tests.serve.conftest import MODEL

MOMENT = re.compile(rb'"(id|created|created_at)":("[a-z]+[-_][0-9a-f]{24}"|\d+),|"cached_tokens":\d+')
PROMPT = {"prompt": "w1 w2", "max_tokens": 2}


def line(url, body, **more):
    return {"custom_id": "one", "method": "POST", "url": url, "body": body, **more}


def answered(engine, tmp_path, lines, **more):
    source = write_lines(tmp_path / "in.jsonl", lines)
    run(engine, source, target := tmp_path / "out.jsonl", lines_task(**more))
    return target.read_bytes().splitlines()


def test_bodies_have_the_bytes_of_the_routes(quiet, http, tmp_path):
    lines = list(requests(14))
    for number, each in enumerate(lines):
        each["body"] |= {"seed": number, "return_token_ids": number % 7 == 0, "unknown": 1}
    lines[1]["body"] |= {"echo": True, "logprobs": 1, "prompt": ["w1 w2", "w3"]}
    lines[3]["body"] |= {"prompt": [[1, 2, 3], [4]], "n": 2}
    answers = answered(quiet, tmp_path, lines)
    for each, answer in zip(lines, answers, strict=True):
        response = http.post(each["url"], json=each["body"])
        body = answer.partition(b'"body":')[2].removesuffix(b'},"error":null}')
        assert MOMENT.sub(b"", body) == MOMENT.sub(b"", response.content), each
        assert json.loads(answer)["response"]["status_code"] == response.status_code == 200


def test_a_refusal_names_a_field_as_the_line_does(quiet, http, tmp_path):
    lines = [
        line("/v1/completions", {"prompt": "w1", "n_predict": -5}),
        line("/v1/responses", {"max_tokens": -5}, custom_id="two"),
    ]
    for each, answer in zip(lines, map(json.loads, answered(quiet, tmp_path, lines)), strict=True):
        body = answer["response"]["body"]
        assert body == http.post(each["url"], json=each["body"]).json()
        assert body["error"]["param"] in ("n_predict", "max_tokens")


def test_responses_have_the_bytes_of_their_route(quiet, http, tmp_path):
    body = {"input": "w1 w2", "instructions": "w3", "max_output_tokens": 4, "seed": 3, "unknown": 1}
    items = [
        {"role": "user", "content": "w1"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{"},
    ]
    bodies = [body, body | {"temperature": 0, "input": items}, {"input": "w7", "max_output_tokens": 1}]
    lines = [line("/v1/responses", each, custom_id=str(number)) for number, each in enumerate(bodies)]
    (tmp_path / "again").mkdir()
    answers = answered(quiet, tmp_path, lines)
    for each, answer in zip(bodies[:2], answers, strict=False):
        made = answer.partition(b'"body":')[2].removesuffix(b'},"error":null}')
        assert MOMENT.sub(b"", made) == MOMENT.sub(b"", http.post("/v1/responses", json=each).content)
    for answer in map(json.loads, answers):
        found = Response.model_validate(answer["response"]["body"])
        assert found.id == f"resp_{answer['id'].removeprefix('batch_req_')}" and found.created_at == 0
        assert found.usage.input_tokens_details.cached_tokens == 0
    assert answers == answered(quiet, tmp_path / "again", lines)


@pytest.mark.parametrize(
    ("url", "body"),
    [
        ("/v1/responses", {"input": 1}),
        ("/v1/responses", {"input": "w1", "previous_response_id": "x"}),
        ("/v1/responses", {"input": "w1 " * 200}),
        ("/v1/responses", {"input": "w1", "model": "gpt-4o-mini"}),
        ("/v1/completions", {}),
        ("/v1/completions", PROMPT | {"temperature": -1}),
        ("/v1/completions", PROMPT | {"temperature": "hot"}),
        ("/v1/completions", PROMPT | {"model": "gpt-4o-mini"}),
        ("/v1/completions", PROMPT | {"tempreature": 1}),
        ("/v1/completions", PROMPT | {"suffix": "x"}),
        ("/v1/completions", {"prompt": []}),
        ("/v1/completions", {"prompt": "w1 " * 200}),
        ("/v1/completions", {"prompt": [9999]}),
        ("/v1/chat/completions", {"messages": []}),
        ("/v1/chat/completions", {"messages": [{"role": "user"}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "w1"}], "tools": [{}]}),
    ],
)
def test_refusals_are_those_of_the_routes(quiet, http, tmp_path, url, body):
    (answer,) = map(json.loads, answered(quiet, tmp_path, [line(url, body)]))
    response = http.post(url, json=body)
    assert (answer["response"]["status_code"], answer["response"]["body"]) == (response.status_code, response.json())


@pytest.mark.parametrize(
    ("more", "part"),
    [
        ({"stream": True}, "stream is not possible in a batch"),
        ({"timeout": 5}, "timeout is not possible in a batch"),
        ({"n": 1000, "prompt": ["w1", "w2"]}, "2000 texts are more than the 1024"),
    ],
)
def test_what_a_batch_cannot_do(quiet, tmp_path, more, part):
    (answer,) = map(json.loads, answered(quiet, tmp_path, [line("/v1/completions", PROMPT | more)]))
    assert answer["response"]["status_code"] == 400 and part in answer["response"]["body"]["error"]["message"]


@pytest.mark.parametrize(
    ("broken", "code", "part"),
    [
        ("{broken", "invalid_json_line", "line 2 is no JSON"),
        ("[1]", "invalid_json_line", "line 2 is no JSON object"),
        ('{"custom_id": "\\ud800"}', "invalid_json_line", "line 2 is no JSON: it is not UTF-8"),
        ('{"custom_id": NaN}', "invalid_json_line", "line 2 is no JSON: NaN"),
        (line("/v1/embeddings", {}, custom_id="x"), "invalid_url", "'/v1/embeddings', and has to be"),
        (line("/v1/completions", {}, custom_id="x", method="GET"), "invalid_method", "only 'POST'"),
        (line("/v1/completions", [], custom_id="x"), "missing_required_parameter", "line 2 has no body"),
        (line("/v1/completions", PROMPT, custom_id=7), "missing_required_parameter", "line 2 has no custom_id"),
    ],
)
def test_lines_that_are_no_requests(quiet, tmp_path, broken, code, part):
    first, second = map(json.loads, answered(quiet, tmp_path, [line("/v1/completions", PROMPT), broken]))
    assert first["error"] is None and first["response"]["status_code"] == 200
    assert second["response"] is None and second["error"]["code"] == code and part in second["error"]["message"]


def test_seeds(quiet, http, tmp_path):
    """Without a seed each line has its own, which depends on the line alone; -1 is none; that of a run is for all."""
    body = PROMPT | {"max_tokens": 8, "temperature": 1.0}
    lines = [line("/v1/completions", body | more, custom_id=str(n)) for n, more in enumerate(({}, {}, {"seed": -1}))]

    def texts(**more):
        return [
            json.loads(each)["response"]["body"]["choices"][0]["text"]
            for each in answered(quiet, tmp_path, lines, **more)
        ]

    own = texts()
    assert len(set(own)) == 3
    (tmp_path / "out.jsonl").unlink()
    lines = lines[::-1]
    assert texts()[::-1] == own
    (tmp_path / "out.jsonl").unlink()
    same = http.post("/v1/completions", json=body | {"seed": 5}).json()["choices"][0]["text"]
    assert texts(seed=5) == [same] * 3


def test_a_name_for_the_model(quiet, tmp_path):
    (answer,) = map(json.loads, answered(quiet, tmp_path, [line("/v1/completions", PROMPT | {"model": MODEL})]))
    assert answer["response"]["body"]["model"] == MODEL
