"""Answers of a server: a text that is shown is compared with the receipt, or it is said that it was not."""

import pytest

from tokenmill.receipts.file import choices_of, compare


def message(content, **more):
    return {"message": {"role": "assistant", "content": content, "refusal": None, **more}}


def test_the_very_text_is_right(receipt):
    for choice in ({"text": receipt.text}, message(receipt.text), message(receipt.text, reasoning=None, tool_calls=[])):
        assert compare(choice, receipt) == (None, None)


@pytest.mark.parametrize("shown", ["forged", "w3 é, and more", "w3 e"])
@pytest.mark.parametrize("make", [lambda text: {"text": text}, message])
def test_another_text_is_found(receipt, make, shown):
    finding, note = compare(make(shown), receipt)
    assert note is None and (finding.what, finding.claimed, finding.found) == ("shown", shown, receipt.text)
    assert repr(shown) in finding.message and repr(receipt.text) in finding.message


def test_a_text_that_was_left_out_is_found(receipt):
    assert compare({"text": ""}, receipt).finding is not None


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ({"text": "a prompt, w3 é"}, "as the prompt does with echo"),
        (message(""), "it is a part of the receipt's text"),
        (message("é"), "it is a part of the receipt's text"),
        (message("forged", reasoning="w3"), "its parts stand in reasoning, too"),
        (message(None, tool_calls=[{}], reasoning_content="w"), "in reasoning_content and tool_calls, too"),
        (message(None), "there is none"),
        ({"delta": {}}, "there is none"),
    ],
)
def test_what_cannot_be_compared_is_said(receipt, choice, said):
    finding, note = compare(choice, receipt)
    assert finding is None and said in note and "the shown text was not compared" in note


@pytest.mark.parametrize(
    "document", [5, [], {}, {"receipt": 1, "choices": []}, {"choices": 5}, {"response": 5}, {"response": {"body": []}}]
)
def test_what_is_no_answer(document):
    assert choices_of(document) is None
