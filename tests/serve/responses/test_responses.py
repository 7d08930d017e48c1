"""POST /v1/responses, through OpenAI's own client."""

import openai
import pytest
from openai.types.responses import Response

from tests.serve.conftest import MODEL

ASK = {"model": MODEL, "temperature": 0, "max_output_tokens": 8, "instructions": "w1 w2"}
CHAT = [{"role": "system", "content": "w1 w2"}, {"role": "user", "content": "w3 w4"}]


@pytest.fixture(scope="module")
def wanted(quiet):
    return quiet.chat(CHAT, max_new_tokens=8)


def test_the_answer_is_that_of_the_engine(client, wanted):
    done = client.responses.create(**ASK, input="w3 w4")
    assert done.output_text == wanted.text and done.object == "response"
    assert done.status == "incomplete" and done.incomplete_details.reason == "max_output_tokens"
    (item,) = done.output
    assert (item.type, item.role, item.status) == ("message", "assistant", "incomplete")
    usage = done.usage
    assert (usage.input_tokens, usage.output_tokens) == (wanted.num_prompt_tokens, 8)
    assert usage.total_tokens == usage.input_tokens + 8


def test_a_stream_is_the_same_response(client, wanted):
    word = wanted.text.split()[3]
    asked = {**ASK, "input": "w3 w4", "extra_body": {"stop": [word]}}
    whole = client.responses.create(**asked)
    with client.responses.stream(**asked) as stream:
        events = list(stream)
        done = stream.get_final_response()
    kinds = list(dict.fromkeys(event.type.removeprefix("response.") for event in events))
    text = ["output_text.delta", "output_text.done", "content_part.done", "output_item.done"]
    assert kinds == ["created", "in_progress", "output_item.added", "content_part.added", *text, "completed"]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert done.output_text == whole.output_text == wanted.text[: wanted.text.index(word)]
    assert done.status == "completed" and done.usage.total_tokens == whole.usage.total_tokens
    last = next(event for event in events if event.type == "response.output_item.done")
    assert last.item.content[0].text == done.output_text and last.item.status == "completed"


def test_what_cannot_be_included_is_told(client):
    wanted = ["reasoning.encrypted_content", "message.output_text.logprobs"]
    done = client.responses.create(**ASK, input="w3 w4", include=wanted)
    assert done.warnings == ["include = 'message.output_text.logprobs' adds nothing here"]
    with pytest.raises(openai.BadRequestError, match="metadata"):
        client.responses.create(**ASK, input="w3 w4", metadata={"a": 1})


def test_cached_tokens_are_counted(client):
    question = " ".join(f"w{number}" for number in range(40, 70))
    for _ in range(2):
        usage = client.responses.create(**ASK, input=question).usage
    assert usage.input_tokens_details.cached_tokens == 32 and usage.output_tokens_details.reasoning_tokens == 0


def test_instructions_may_be_items_as_a_response_repeats_them(http, client, quiet):
    """OpenAI's type of a response's instructions is a text, or a list of all that input may have."""
    told = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "w1"}]},
        {"role": "user", "content": "w2"},
        {"type": "message", "role": "assistant", "content": "w7"},
    ]
    chat = [
        {"role": "system", "content": "w1"},
        {"role": "user", "content": "w2"},
        {"role": "assistant", "content": "w7"},
        {"role": "user", "content": "w3"},
    ]
    body = {"model": MODEL, "temperature": 0, "max_output_tokens": 8, "instructions": told, "input": "w3"}
    done = Response.model_validate(http.post("/v1/responses", json=body).json())
    assert done.output_text == quiet.chat(chat, max_new_tokens=8).text and len(done.instructions) == 3
    parts = body | {"instructions": [{"type": "input_text", "text": "w1 w2"}], "input": "w3 w4"}
    (item,) = http.post("/v1/responses", json=parts).json()["output"]
    assert item["content"][0]["text"] == client.responses.create(**ASK, input="w3 w4").output_text
    wrong = http.post("/v1/responses", json=body | {"instructions": [{"role": "robot"}]})
    assert wrong.status_code == 400 and wrong.json()["error"]["param"] == "instructions"


def test_items_make_the_conversation_of_a_chat(client, quiet):
    items = [
        {"role": "developer", "content": [{"type": "input_text", "text": "w5"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "w6"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": None},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "w7", "annotations": []}]},
        {"role": "user", "content": "w8"},
    ]
    done = client.responses.create(**ASK, input=items)
    roles = [("system", "w1 w2\n\nw5"), ("user", "w6"), ("assistant", "w7"), ("user", "w8")]
    messages = [{"role": role, "content": content} for role, content in roles]
    assert done.output_text == quiet.chat(messages, max_new_tokens=8).text


def test_a_probe_asks_nothing(http):
    done = http.post("/v1/responses", json={"model": MODEL, "input": [], "max_output_tokens": 1})
    assert done.status_code == 200 and done.json()["status"] == "incomplete"


def test_what_is_stored_elsewhere_is_refused(client, http):
    for name in ("previous_response_id", "conversation"):
        with pytest.raises(openai.BadRequestError, match="keeps no responses") as caught:
            client.responses.create(**ASK, input="w3", **{name: "resp_1"})
        assert caught.value.param == name
    body = {"input": [{"type": "item_reference", "id": "msg_1"}]}
    assert http.post("/v1/responses", json=body).status_code == 400


def test_what_is_unknown_is_accepted_and_named(http):
    codex = {"client_metadata": {}, "include": [], "prompt_cache_key": "k", "store": False, "stream": False}
    body = {"input": "w3", "max_output_tokens": 1, "zzz": 1, **codex}
    assert http.post("/v1/responses", json=body).json()["warnings"] == ["unknown field 'zzz' is ignored"]
    items = {"input": [{"role": "user", "content": "w3"}, {"type": "local_shell_call"}], "max_output_tokens": 1}
    assert "passed over" in http.post("/v1/responses", json=items).json()["warnings"][0]


def test_a_whole_response_has_all_that_the_type_wants(http):
    Response.model_validate(http.post("/v1/responses", json={"input": "w3", "max_output_tokens": 1}).json())


@pytest.mark.parametrize("number", ["1e999", "NaN", "-Infinity"])
def test_a_number_that_json_cannot_say_is_given_back_as_null(http, number):
    body = f'{{"input": "w3", "max_output_tokens": 1, "reasoning": {{"a": {number}}}}}'
    told = {"Content-Type": "application/json"}
    response = http.post("/v1/responses", content=body, headers=told)
    assert response.status_code == 200 and response.json()["reasoning"] == {"a": None}
    response = http.post("/v1/responses", content=body[:-1] + ', "stream": true}', headers=told)
    assert '"reasoning":{"a":null}' in response.text and number not in response.text


def test_a_prompt_that_is_too_long_has_the_code_that_codex_knows(client):
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(**ASK, input="w1 " * 100, stream=True)
    assert caught.value.code == "context_length_exceeded"


@pytest.mark.parametrize(
    "body",
    [
        {"input": 1},
        {"input": [{"role": "robot", "content": ""}]},
        {"input": [{"role": "user", "content": 5}]},
        {"input": [{"type": "function_call", "name": "f"}]},
        {"input": "w1", "truncation": "x"},
        {"input": "w1", "temperature": "hot"},
        {"input": "w1", "background": True},
    ],
    ids=str,
)
def test_what_is_wrong_is_said(http, body):
    response = http.post("/v1/responses", json=body)
    assert response.status_code == 400 and set(response.json()["error"]) == {"message", "type", "param", "code"}
