"""The key of a conversation: the same for each of its turns, others for other conversations and other clients."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.scale.heads import MAX_CHARACTERS, head_key, session_key

TEXT = st.text(max_size=12)
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "assistant"]), "content": TEXT}), max_size=3
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


def chat(*messages, **more):
    return {"messages": list(messages), **more}


@settings(max_examples=30)
@given(before=MESSAGES, first=TEXT, after=MESSAGES, setting=st.integers())
def test_what_follows_the_first_question_does_not_count(before, first, after, setting):
    head = [*before, {"role": "user", "content": first}]
    assert head_key(b"", chat(*head)) == head_key(b"", chat(*head, *after, seed=setting, stream=True))
    assert head_key(b"", chat(*head)) != head_key(b"", chat(*head[:-1], {"role": "user", "content": first + "x"}))


def test_what_counts():
    body = chat({"role": "user", "content": "Why?"})
    keys = [head_key(b"", body), head_key(b"other", body), session_key(b"", "Why?")]
    keys += [head_key(b"", body | {name: "x"}) for name in ("model", "cache_salt", "tools")]
    assert len(set(keys)) == len(keys)
    long = "x" * MAX_CHARACTERS
    assert head_key(b"", {"prompt": long + "a"}) == head_key(b"", {"prompt": long + "b"})
    assert head_key(b"", {"prompt": long[:-1] + "a"}) != head_key(b"", {"prompt": long})
    assert head_key(b"", {"prompt": [1, 2]}) != head_key(b"", {"prompt": [1, 3]})


@settings(max_examples=50)
@given(st.dictionaries(st.sampled_from(["messages", "prompt", "model", "tools"]), JSON))
def test_every_body_has_one(body):
    assert len(head_key(b"", body)) == 32
