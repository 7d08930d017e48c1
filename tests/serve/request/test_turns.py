"""Conversations of agents in the turns that templates take: what was said before never changes its place or text."""

import httpx2
import pytest

from tests.serve.conftest import served
from tests.word_model import ROLES, save_word_model
from tokenmill.serve.request.calling import in_turns
from tokenmill.text.turns import TurnRules

ANY, ONE_SYSTEM, STRICT = TurnRules(True, True, True), TurnRules(False, True, True), TurnRules(False, False, False)


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
        ("uaaau", ANY, "u:u0 a:a1 a:a2 a:a3 u:u4"),
        ("uaaau", STRICT, "u:u0 a:a1+a2+a3 u:u4"),
        ("uacta", STRICT, "u:u0 a:a1+c2 t:t3 a:a4"),
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


STRICT_TEMPLATE = """{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('roles must alternate') }}{% endif %}{{ m.role }} {{ m.content }} {% endfor %}"""


def test_turns_that_a_template_refuses_are_put_together(tmp_path):
    """OpenCode asks for a title with two messages of the user."""
    path = save_word_model(tmp_path, STRICT_TEMPLATE, ROLES)
    with served(str(path)) as server, httpx2.Client(base_url=server.url, timeout=60, trust_env=False) as http:
        asked = [{"role": "user", "content": "w1"}, {"role": "user", "content": "w2"}]
        joined = [{"role": "user", "content": "w1\n\nw2"}]
        body = {"max_tokens": 4, "temperature": 0}
        found, wanted = (http.post("/v1/chat/completions", json=body | {"messages": m}).json() for m in (asked, joined))
        assert found["choices"] == wanted["choices"] and "put together" in found["warnings"][0]
        assert "warnings" not in wanted
        refused = http.post("/v1/chat/completions", json=body | {"messages": [{"role": "assistant", "content": "w1"}]})
        assert refused.status_code == 400 and "must alternate" in refused.text
        message = http.post("/v1/messages", json=body | {"messages": [*asked, {"role": "system", "content": "w3"}]})
        assert message.json()["usage"]["input_tokens"] == 4
