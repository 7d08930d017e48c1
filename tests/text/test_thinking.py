"""The marks of thinking, by the words of chat templates."""

import pytest

from tokenmill.text.thinking import Thinking, thinking_of


@pytest.mark.parametrize(
    ("template", "tokens", "begin"),
    [
        ("{{ '<think>' + m.reasoning + '</think>' }}", {}, "<think>"),
        ("{{ m.content.split('</think>')[-1] }}", {}, "<think>"),
        ("[THINK]{{ m.thinking }}[/THINK]", {}, "[THINK]"),
        (
            "<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>",
            {},
            "<|channel|>analysis<|message|>",
        ),
        ("<|user|>{{ m.content }}<|end|>", {}, None),
        ("{{ m.content }}", {"<think>": 1, "</think>": 2}, "<think>"),
        ("{{ m.content }}", {"<think>": 1}, None),
        (None, {}, None),
    ],
)
def test_marks_are_found(template, tokens, begin):
    found = thinking_of(template, tokens)
    assert (found.begin if found else None) == begin


def test_an_answer_may_begin_inside_thinking():
    thinking = Thinking("<think>", "</think>")
    assert thinking.is_open("assistant\n<think>") and thinking.is_open("assistant\n<think>\n")
    assert not thinking.is_open("assistant\n<think>\n\n</think>\n\n") and not thinking.is_open("assistant\n")
    assert thinking.marks() == ("<think>", "</think>")
