"""Tokens in formats: control tokens are no letters, a token has an id or a text, and the model's ends end a text."""

import numpy as np
import pytest

from tests.constrain.conftest import END, TURN
from tests.constrain.walks import compiled
from tokenmill.errors import ConfigError

ANY, BOOLEAN = {"type": "any_text"}, {"type": "json_schema", "json_schema": {"type": "boolean"}}
TAG = {"begin": {"token": TURN}, "content": BOOLEAN, "end": {"type": "token", "token": TURN}}


def reads(vocabulary, given, *parts):
    """Whether a text of these parts, names of control tokens and letters, may end; None if it does not fit."""
    control, tokens = vocabulary.control, []
    for part in parts:
        tokens += [control[part]] if part in control else vocabulary.tokens.tokenize_str(part)
    matcher = compiled(vocabulary, structural_tag={"format": given}).matcher()
    return matcher.may_end if matcher.accept(tokens) == len(tokens) else None


def test_control_tokens_are_tokens(bytes_only):
    tag = {"type": "tag", "begin": f"{TURN}{{", "content": ANY, "end": f"\n{TURN}"}
    assert reads(bytes_only, tag, TURN, "{a\nb\n", TURN) is True
    assert reads(bytes_only, tag, TURN, "{a\nb", TURN) is None
    triggered = {"type": "triggered_tags", "triggers": [TURN], "tags": [{**tag, "begin": f"{TURN}x"}]}
    assert reads(bytes_only, triggered, "free ", TURN, "xa\n", TURN, "free") is True
    assert reads(bytes_only, triggered, "free ", TURN, "y") is None
    spelled = compiled(bytes_only, structural_tag={"format": triggered}).matcher()
    letters = list(f"letters {TURN} are none".encode())
    assert spelled.accept(letters) == len(letters) and spelled.may_end


def test_an_end_of_the_model_ends_the_text(bytes_only):
    tag = {"type": "tag", "begin": "a", "content": ANY, "end": [TURN, END]}
    assert reads(bytes_only, tag, "ab", END) is True and reads(bytes_only, tag, "ab", TURN, END) is True
    assert reads(bytes_only, tag, "ab", TURN, "b") is None
    listed = {
        "type": "tags_with_separator",
        "separator": TURN,
        "tags": [{**tag, "content": BOOLEAN, "end": [".", END]}],
    }
    assert reads(bytes_only, listed, "atrue", END) is True and reads(bytes_only, listed, "atrue", TURN) is None
    assert reads(bytes_only, listed, "atrue.", TURN, "afalse", END) is True
    must_go_on = {"type": "sequence", "elements": [{**tag, "end": [".", END]}, BOOLEAN]}
    assert reads(bytes_only, must_go_on, "ab", END) is None and reads(bytes_only, must_go_on, "ab.true", END) is True
    nowhere = {"type": "sequence", "elements": [{**tag, "end": END}, BOOLEAN]}
    with pytest.raises(ConfigError, match="format lets a text end nowhere"):
        compiled(bytes_only, structural_tag={"format": nowhere})


def test_formats_of_tokens(bytes_only):
    whole = {"type": "tag", **TAG, "content": {"type": "any_tokens"}}
    assert reads(bytes_only, whole, TURN, "abc", TURN) is True and reads(bytes_only, whole, TURN, "abc") is False
    few = {"type": "any_tokens", "exclude_tokens": ["a"], "max_tokens": 2}
    assert reads(bytes_only, few, TURN, "b") is True and reads(bytes_only, few, "bbb") is None
    assert reads(bytes_only, few, "a") is None
    one = {"type": "sequence", "elements": [{"type": "token", "token": ord("x")}, {"type": "exclude_token"}]}
    assert reads(bytes_only, one, "xy") is True and reads(bytes_only, one, "x") is False
    triggered = {"type": "token_triggered_tags", "trigger_tokens": [TURN], "tags": [TAG]}
    assert reads(bytes_only, triggered, "a", TURN, "true", TURN, "b") is True
    assert reads(bytes_only, triggered, "a", TURN, "b") is None
    once = {**triggered, "at_least_one": True, "stop_after_first": True}
    assert reads(bytes_only, once, TURN, "true", TURN) is True and reads(bytes_only, once, "a") is None
    begun = {"type": "token_dispatch", "rules": [[TURN, BOOLEAN]], "loop": False, "exclude_tokens": ["z"]}
    assert reads(bytes_only, begun, "ab", TURN, "true") is True and reads(bytes_only, begun, "z") is None
    assert reads(bytes_only, begun, "ab", TURN, "truea") is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"type": "token"}, r"format.token must be the id of a token, or the text that it spells"),
        ({"type": "token", "token": "no such"}, r"format.token = 'no such' is not one token of this model"),
        ({"type": "token", "token": 9999}, r"format.token = 9999 is no token of this model"),
        ({"type": "any_tokens", "exclude_tokens": [True]}, r"format.exclude_tokens\[0\] must be the id of a token"),
        ({"type": "any_tokens", "max_tokens": 9999}, r"format.max_tokens is at most 2,000"),
        ({"type": "tag", **TAG, "begin": {"tokn": 1}}, r"format.begin has no key 'tokn'"),
        (
            {"type": "token_triggered_tags", "trigger_tokens": ["a"], "tags": [TAG]},
            r"format.tags\[0\].begin must be exactly one",
        ),
        (
            {"type": "token_triggered_tags", "trigger_tokens": [TURN, "a"], "tags": [TAG]},
            r"format.trigger_tokens has the token 97, which begins no tag",
        ),
        ({"type": "token_dispatch", "rules": [["a", ANY], [97, ANY]]}, r"format.rules has a token twice"),
        (
            {"type": "or", "elements": [{"type": "token", "token": "a"}, {"type": "exclude_token"}]},
            r"may be the same token at the same place: llguidance takes it for one of them alone",
        ),
        (
            {"type": "or", "elements": [{"type": "token", "token": "a"}, {"type": "const_string", "value": "ab"}]},
            r"may stand at the same place and begin alike",
        ),
    ],
)
def test_refusals(bytes_only, given, message):
    with pytest.raises(ConfigError, match=message):
        compiled(bytes_only, structural_tag={"format": given})


@pytest.mark.parametrize("content", [ANY, {**ANY, "max_chars": 3}, {**ANY, "max_chars": 3, "excludes": ["b"]}])
def test_what_only_a_token_may_follow_is_no_end_of_llguidances_search(bytes_only, content):
    tag = {"type": "tag", "begin": TURN, "content": content, "end": ["a", "aa"] if "excludes" in content else "a"}
    given = {"type": "sequence", "elements": [tag, {"type": "token", "token": TURN}]}
    constraint, turn = compiled(bytes_only, structural_tag={"format": given}), bytes_only.control[TURN]
    words_W = np.zeros(bytes_only.words, dtype=np.int32)
    for text in ("xxa", "x a", "a"):  # of which some end with a token of two letters
        matcher = constraint.matcher()
        for token in (turn, *bytes_only.tokens.tokenize_str(text), turn):
            matcher.mask(words_W)
            matcher.forced(4)
            assert matcher.accept([token]) == 1, (text, token)
        assert matcher.may_end
