"""Answers of both routes, whole and streamed, as servers write them."""

import json

import pytest

from tokenmill.prove.answer import Events, Text, TextsReader, Unreadable, message_in


def read(*documents):
    reader = TextsReader()
    for document in documents:
        reader.add(document)
    return reader.texts


def test_a_completion():
    logprobs = {"tokens": ["a", "b"], "token_logprobs": [-1.0, -2.0]}
    choice = {"index": 0, "text": "ab", "finish_reason": "stop", "token_ids": [1, 2], "logprobs": logprobs}
    assert read({"choices": [choice]}) == [Text("ab", "stop", (1, 2), ("a", "b"), (-1.0, -2.0))]
    assert read({"choices": [{"text": "ab", "finish_reason": "stop"}]}) == [Text("ab", "stop")]


def test_a_conversation_with_thoughts():
    content = [{"token": "a", "logprob": -1.0}]
    message = {"role": "assistant", "reasoning_content": "hm ", "content": "a"}
    choice = {"index": 0, "message": message, "finish_reason": "length", "logprobs": {"content": content}}
    assert read({"choices": [choice]}) == [Text("hm a", "length", None, ("a",), (-1.0,))]


def test_choices_are_in_the_order_of_their_index():
    texts = read({"choices": [{"index": 1, "text": "b"}, {"index": 0, "text": "a"}]})
    assert [each.text for each in texts] == ["a", "b"]


def stream(*events, end=b"data: [DONE]\n\n"):
    return b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in events) + end


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_a_stream_in_pieces(size):
    data = b": keep-alive\n\n" + stream(
        {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]},
        {"choices": [{"index": 1, "delta": {"content": "x"}, "token_ids": [9]}]},
        {"choices": [{"index": 0, "delta": {"content": "a\u2028"}, "token_ids": [1]}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {"choices": [{"index": 1, "delta": {}, "finish_reason": "length"}]},
        {"choices": [], "usage": {}},
    ).replace(b"\n\n", b"\r\n\r\n")
    events = Events()
    for start in range(0, len(data), size):
        events.feed(data[start : start + size])
    assert events.texts() == [Text("a\u2028", "stop", (1,)), Text("x", "length", (9,))]


def test_streams_that_are_not_whole():
    cut = Events()
    cut.feed(stream({"choices": [{"index": 0, "text": "a"}]}, end=b""))
    with pytest.raises(Unreadable, match="without finish_reason"):
        cut.texts()
    with pytest.raises(Unreadable, match="tells of an error: no more"):
        Events().feed(stream({"error": {"message": "no more"}}))
    with pytest.raises(Unreadable, match="no JSON"):
        Events().feed(b"data: {\n\n")


@pytest.mark.parametrize("document", [[], "text", {"hello": 1}, {"choices": "no"}, {"choices": [1]}])
def test_what_is_no_answer(document):
    with pytest.raises(Unreadable):
        read(document)


def test_messages_are_one_printable_line():
    assert message_in({"error": {"message": "a\n b\x1b[31m"}}) == "a b�[31m"
    assert message_in({"error": "plain"}) == "plain" and message_in({"detail": 1}) == "{'detail': 1}"


@pytest.mark.parametrize(
    "logprobs",
    [
        {"content": [None]},
        {"content": [{"token": "a", "logprob": "x"}]},
        {"tokens": 5, "token_logprobs": [-1.0]},
        {"tokens": ["a"], "token_logprobs": [True]},
    ],
)
def test_log_probabilities_that_are_none(logprobs):
    with pytest.raises(Unreadable, match="log-probabilities"):
        read({"choices": [{"text": "a", "finish_reason": "stop", "logprobs": logprobs}]})
