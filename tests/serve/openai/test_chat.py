"""POST /v1/chat/completions, through OpenAI's own client."""

import openai
import pytest

from tests.serve.conftest import MODEL

MESSAGES = [{"role": "system", "content": "w1 w2"}, {"role": "user", "content": "w3 w4"}]
ASK = {"model": MODEL, "messages": MESSAGES, "temperature": 0, "max_tokens": 8}


@pytest.fixture(scope="module")
def wanted(quiet):
    return quiet.chat(MESSAGES, max_new_tokens=8, logprobs=2)


def test_the_answer_is_that_of_the_engine(client, wanted):
    done = client.chat.completions.create(**ASK)
    (choice,) = done.choices
    assert done.object == "chat.completion" and choice.message.role == "assistant"
    assert choice.message.content == wanted.text and choice.finish_reason == "length"
    assert done.usage.prompt_tokens == wanted.num_prompt_tokens


def test_a_stream_begins_with_the_role_and_ends_with_the_reason(client, wanted):
    chunks = list(client.chat.completions.create(**ASK, stream=True))
    first, *middle, last = [chunk.choices[0] for chunk in chunks]
    assert (first.delta.role, first.delta.content, first.finish_reason) == ("assistant", "", None)
    assert "".join(choice.delta.content for choice in middle) == wanted.text
    assert last.delta.content is None and last.finish_reason == "length"
    assert {choice.finish_reason for choice in middle} == {None}


def test_usage_of_a_stream(client):
    *chunks, last = client.chat.completions.create(**ASK, stream=True, stream_options={"include_usage": True})
    assert last.choices == [] and last.usage.completion_tokens == 8
    assert all(chunk.usage is None for chunk in chunks)


def test_several_continuations(client, quiet):
    settings = {**ASK, "temperature": 0.9, "seed": 2, "n": 3}
    texts = [choice.message.content for choice in client.chat.completions.create(**settings).choices]
    assert texts == [*quiet.chat(MESSAGES, max_new_tokens=8, temperature=0.9, seed=2, n=3).texts]
    streamed = ["", "", ""]
    for chunk in client.chat.completions.create(**settings, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert streamed == texts


def test_logprobs(client, wanted):
    choice = client.chat.completions.create(**ASK, logprobs=True, top_logprobs=2).choices[0]
    assert [entry.logprob for entry in choice.logprobs.content] == pytest.approx([e.logprob for e in wanted.logprobs])
    assert all(len(entry.top_logprobs) == 2 for entry in choice.logprobs.content)
    streamed = []
    for chunk in client.chat.completions.create(**ASK, logprobs=True, top_logprobs=2, stream=True):
        streamed += chunk.choices[0].logprobs.content if chunk.choices[0].logprobs else []
    assert streamed == choice.logprobs.content


def test_max_completion_tokens(client):
    done = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_completion_tokens=3)
    assert done.usage.completion_tokens == 3


def test_without_a_limit_it_goes_on_to_the_end_of_the_context(client, wanted):
    done = client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=0)
    assert done.usage.total_tokens == 96 and done.choices[0].message.content.startswith(wanted.text)


def test_messages_of_parts(client, wanted):
    parts = [{"role": "system", "content": "w1 w2"}, {"role": "user", "content": [{"type": "text", "text": "w3 w4"}]}]
    assert client.chat.completions.create(**(ASK | {"messages": parts})).choices[0].message.content == wanted.text


def test_variables_of_the_template(client, quiet):
    done = client.chat.completions.create(**ASK, extra_body={"add_generation_prompt": False})
    tokens = quiet.chat_prompt(MESSAGES, add_generation_prompt=False)
    assert done.usage.prompt_tokens == len(tokens) == len(quiet.chat_prompt(MESSAGES)) - 1
    assert done.choices[0].message.content == quiet.generate(tokens, max_new_tokens=8).text
    assert client.chat.completions.create(
        **ASK, extra_body={"chat_template_kwargs": {"enable_thinking": False}}
    ).choices


@pytest.mark.parametrize("name", ["messages", "mark", "tokenizer", "template", "special_texts", "allow_special"])
def test_variables_that_are_not_the_clients(client, name):
    with pytest.raises(openai.BadRequestError, match="no variable of a chat template"):
        client.chat.completions.create(**ASK, extra_body={"chat_template_kwargs": {name: 1}})


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages"),
        ({"messages": [{"content": "w1"}]}, "messages"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": [{"type": "function"}]}, "tools"),
    ],
    ids=["no messages", "a text", "no content", "no role", "top without logprobs", "json", "tools"],
)
def test_bad_fields_are_named(client, more, param):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**(ASK | more))
    assert caught.value.param == param


def test_what_asks_for_nothing_is_accepted(client, wanted):
    more = {"response_format": {"type": "text"}, "tools": [], "tool_choice": "none", "user": "me"}
    assert client.chat.completions.create(**ASK, **more).choices[0].message.content == wanted.text
