"""Lark grammars that users have written: whatever way it is spelled, what would not hold is refused, or holds."""

import json
from collections import Counter

import numpy as np
import pytest

from tests.constrain.walks import compiled
from tokenmill.constrain.own_lark import OwnLark
from tokenmill.errors import ConfigError, RequestError
from tokenmill.text.tools.lark import FORCING

END, TURN = 263, 264  # of the vocabulary of bytes


def parts(*larks, **first):
    """Several grammars, of which all but the first are named by their places."""
    grammars = [{"lark_grammar": lark, "name": f"g{number}"} for number, lark in enumerate(larks)]
    return json.dumps({"grammars": [grammars[0] | first, *grammars[1:]]})


def mask(matcher):
    words_W = np.zeros(matcher.constraint.vocabulary.words, dtype=np.int32)
    matcher.mask(words_W)
    return np.unpackbits(words_W.view(np.uint8), bitorder="little").nonzero()[0].tolist()


@pytest.mark.parametrize("text", ["temperature=1", "temperature = a", '%llguidance {"no_forcing":true}'])
def test_what_stands_in_a_text_is_no_attribute_and_no_option(text, bytes_only):
    matcher = compiled(bytes_only, grammar=f"start: {json.dumps(text)} // temperature=3\n").matcher()
    assert matcher.follow(text.encode()) == len(text) and mask(matcher) == [END]


@pytest.mark.parametrize("name", ["constrained", "after", "grammar-0", "a b", "12", None])
def test_grammars_may_have_any_names(name, bytes_only):
    """The first one is referred to by the others, if it can be, and by those before it that are ours."""
    can_be = name in ("constrained", "after", "grammar-0")
    other = f'start: "[" @{name} "]"' if can_be else 'start: "y"'
    matcher = compiled(bytes_only, grammar=parts('start: "(" @g1 ")" | "x"', other, name=name)).matcher()
    text = b"([x])" if can_be else b"(y)"
    assert matcher.follow(text) == len(text) and mask(matcher) == [END]


def test_the_second_grammar_may_have_a_name_of_ours(bytes_only):
    for name in ("after", "grammar-0", "grammar-1"):
        grammar = parts(f'start: "b" @{name}', 'start: "a"').replace("g1", name)
        matcher = compiled(bytes_only, grammar=grammar).matcher()
        assert matcher.follow([98, 97]) == 2 and mask(matcher) == [END]


@pytest.mark.parametrize(
    ("grammar", "known"),
    [
        ("start: N\nN: ~/x/", "start: N\nN: /(?s:.)*/ & ~/x/"),
        ('start: N "."\nN: "a" ~("x" | ~"b")+', 'start: N "."\nN: "a" ((/(?s:.)*/ & ~"x") & "b")+'),
        ('start: N\nN: ~"a".."c"', "start: N\nN: /(?s:.)*/ & ~/[a-c]/"),
        ('start: N\nN: ~ %regex {"substring_chars": "ab"} "c" ~ 2', 'start: N\nN: /(?s:.)*/ & ~/|a|b|ab/ "cc"'),
        ("start: a\na[lazy]: ~/x/", "start: a\na[lazy]: /(?s:.)*/ & ~/x/"),
    ],
)
def test_a_complement_has_no_text_that_is_not_utf8(grammar, known, bytes_only):
    """llguidance's own has any bytes, those of control tokens too."""
    ours, theirs = (compiled(bytes_only, grammar=text).matcher() for text in (grammar, known))
    for text in ("", "a", "ab", "x", "ac", "é", "bcc"):
        given = list(text.encode())
        fits = ours.follow(given) == len(given)
        assert fits == (theirs.follow(given) == len(given))
        if fits:
            found = mask(ours)
            assert found == mask(theirs) and TURN not in found and 0x80 not in found


def test_an_ordinary_token_may_be_named_by_its_id(bytes_only):
    matcher = compiled(bytes_only, grammar='start: <[97]> "b" <[99]>').matcher()
    for token in b"abc":
        assert mask(matcher) == [token] and matcher.accept([token]) == 1
    assert mask(matcher) == [END]


def test_an_end_may_be_named_where_it_ends_the_text(bytes_only):
    matcher = compiled(bytes_only, grammar=f'start: "a" (<[{END}]> "b" | "c" <[{END}]>)').matcher()
    for token in b"ac":  # behind the first end the text would go on
        assert mask(matcher) == [token] and matcher.accept([token]) == 1
    assert mask(matcher) == [END] and matcher.accept([END]) == 1 and matcher.is_over


@pytest.mark.parametrize("tokens", ["*", "^97", "0-400", f"98,{END},{TURN}", f"{TURN},{END}-{END},98"])
def test_a_set_of_tokens_does_not_end_a_text_in_its_midst(tokens, bytes_only):
    found = mask(compiled(bytes_only, grammar=f'start: <[{tokens}]> "a"').matcher())
    assert 98 in found and TURN in found and END not in found and found[-1] < 266


@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        (f'start: A <[{TURN}]>\nA: (/[^x]*/ & ~/[^x]*a[^x]*/) "a"', [*b"ba", TURN]),
        ('start: a "b"\na[lazy]: /x*/', [*b"b"]),
        ('start: a "b"\na[lazy]: /x*/', [*b"xb"]),
    ],
)
def test_where_llguidance_would_fail_if_it_looked_for_forced_bytes_a_grammar_works(grammar, text, bytes_only):
    matcher = compiled(bytes_only, grammar=grammar).matcher()
    for number, token in enumerate(text):
        assert token in mask(matcher) and matcher.follow(text[: number + 1]) == number + 1
    assert mask(matcher) == [END]


def test_a_fault_of_llguidances_is_told_and_spoils_no_other_text(bytes_only):
    """A complement that a control token alone may follow, where llguidance looks for forced bytes."""
    grammar = f'{FORCING}start: A <[{TURN}]>\nA: (/[^x]*/ & ~/[^x]*a[^x]*/) "a"'
    constraint = compiled(bytes_only, grammar=grammar)
    for _ in range(2):
        matcher = constraint.matcher()
        assert matcher.follow(b"ba") == 2
        with pytest.raises(RequestError, match="is one at which llguidance fails, at token 3 of the text: panic"):
            mask(matcher)


def test_an_end_that_ends_a_rule_ends_no_text(bytes_only):
    """llguidance hides it from the model, and goes on."""
    matcher = compiled(bytes_only, grammar='start: a "b" a\na[stop=""]: /[a-c]{0,2}/').matcher()
    for token, may_come in zip(b"acb", ("abc", "abc", "b"), strict=True):
        assert mask(matcher) == list(may_come.encode()) and matcher.accept([token]) == 1
    assert mask(matcher) == [*b"abc", END]


@pytest.mark.parametrize(
    ("grammar", "why"),
    [
        ('start: a "b"\na[temperature=0.5]: /x*/', "without a temperature"),
        (parts('%llguidance {"allow_invalid_\\u0075tf8": true}\nstart: "a"'), "without the option allow_invalid_utf8"),
        ('%llguidance {"no_forcin": true}\nstart: "a"', "without the option no_forcin of"),
        ('{"grammars": [{"lark_grammar": "start: /a+/"}], "max_tokens": 2}', "no key 'max_tokens'; there are grammars"),
        ('{"grammars": [{"lark_grammar": "start: /a+/", "lark": 1}]}', "no key 'lark'; there are name, lark_gr"),
        ("start: <[9999]>", "Token range end too large"),
        ("start: <[1-2-3]>", "invalid token range"),
        ("start: <[a]>", "invalid digit"),
    ],
)
def test_what_would_not_hold_is_refused(grammar, why, bytes_only):
    with pytest.raises(ConfigError, match=why):
        compiled(bytes_only, grammar=grammar)


@pytest.mark.parametrize("part", ['~"a\\\\"', "~/a\\/", "~(", "<[*]> ", "~ a ", "%llguidance ", "<[^7", "~%regex "])
def test_a_long_grammar_is_read_once(part, bytes_only, monkeypatch):
    """Each word is looked at a few times, wherever it stands."""
    lark, looked = OwnLark(f"start: {part * 200}", ""), Counter()

    class Noted(list):
        def __getitem__(self, place):
            assert isinstance(place, int), "a part of it is a copy"
            looked[place] += 1
            return list.__getitem__(self, place)

    lark.words = Noted(lark.words)
    try:
        lark.check()
        lark.spelled(bytes_only)
    except RecursionError:  # which `compile` says
        assert part in ("~(", "~%regex ")
    assert max(looked.values(), default=0) < 12 and len(lark.words) <= len(lark.text)
