"""Conversations of agents in the turns that templates take: what was said before never changes its place or text."""

import pytest

from tokenmill.serve.protocols.conversation import in_turns
from tokenmill.text.turns import Turns

ANY, ONE_SYSTEM, STRICT = Turns(True, True), Turns(False, True), Turns(False, False)


def say(text):
    """Messages by their letters: s, u, a, c for an answer with a call, t for its result."""
    roles = {"s": "system", "u": "user", "a": "assistant", "c": "assistant", "t": "tool"}
    return [
        {"role": roles[letter], "content": f"{letter}{number}"} | ({"tool_calls": [{}]} if letter == "c" else {})
        for number, letter in enumerate(text)
    ]


def shown(messages):
    return " ".join(f"{message['role'][0]}:{message['content']}" for message in messages).replace("\n\n", "+")


@pytest.mark.parametrize(
    ("text", "turns", "wanted"),
    [
        ("suau", STRICT, "s:s0 u:u1 a:a2 u:u3"),
        ("ssu", ANY, "s:s0+s1 u:u2"),
        ("usau", ANY, "u:u0 s:s1 a:a2 u:u3"),
        ("usau", ONE_SYSTEM, "u:u0+s1 a:a2 u:u3"),
        ("uau", ANY, "u:u0 a:a1 u:u2"),
        ("uctsa", ANY, "u:u0 a:c1 t:t2 s:s3 a:a4"),
        ("uctsa", ONE_SYSTEM, "u:u0 a:c1 t:t2+s3 a:a4"),
        ("ucsta", ANY, "u:u0 a:c1 t:t3 s:s2 a:a4"),
        ("ucsta", ONE_SYSTEM, "u:u0 a:c1 t:t3+s2 a:a4"),
        ("uasu", ONE_SYSTEM, "u:u0 a:a1 u:s2 u:u3"),
        ("uasu", STRICT, "u:u0 a:a1 u:s2+u3"),
        ("uu", STRICT, "u:u0+u1"),
        ("uu", ONE_SYSTEM, "u:u0 u:u1"),
        ("ucs", ANY, "u:u0 a:c1 s:s2"),
    ],
)
def test_turns(text, turns, wanted):
    assert shown(in_turns(say(text), turns)) == wanted


@pytest.mark.parametrize("turns", [ANY, ONE_SYSTEM, STRICT])
def test_a_conversation_that_grows_keeps_what_it_had(turns):
    """Up to the last message, to which the next one may be added."""
    text = "suusacttsasuactsusa"
    for length in range(2, len(text)):
        before, after = in_turns(say(text[:length]), turns), in_turns(say(text[: length + 1]), turns)
        assert after[: len(before) - 1] == before[:-1] or text[length] == "t"
        assert after[len(before) - 1]["content"].startswith(before[-1]["content"]) or text[length] == "t"
