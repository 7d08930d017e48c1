"""Bytes that must come: llguidance looks for them where each beginning of a text has an end, and nowhere else."""

import json
import random

import numpy as np
import pytest
from llguidance import LLMatcher

from tests.constrain.walks import compiled
from tokenmill.constrain.grammar import begins_forcing, without_forcing
from tokenmill.errors import ConfigError
from tokenmill.text.tools.lark import FORCING

PAIR = {"type": "array", "prefixItems": [{"type": "number", "minimum": 0, "maximum": 1}] * 2, "items": False}
PAIR |= {"minItems": 2, "x-guidance": {"whitespace_flexible": False, "item_separator": "0,"}}
ENDLESS = {
    "from the beginning": ('start: /x+/ "x"', b"", b"x"),
    "a word that goes on with what has to come": ('start: /[0-9]/ /x+/ "x" "a"', b"1", b"x"),
    "of a letter of two bytes": ('start: /[0-9]/ /é+/ "é"', b"1", "é".encode()),
    "not as greedy as it looks": ('start: /[0-9]/ /x+?/ /x+?/ "a"', b"1", b"x"),
    "a schema with a separator of its own": (json.dumps({"grammars": [{"json_schema": PAIR}]}), b"[1.0", b"0"),
    "in GBNF": ('root ::= [0-9] [x]+ "x" "a"', b"1", b"x"),
    "behind a rule that counts": ('start: /[0-9]/ a "xyz"\na[max_tokens=30]: /x+/', b"1", b"x"),
    "behind a rule that stops": ('start: /[0-9]/ a "xyz"\na[stop=""]: /x+/', b"1", b"x"),
}
GRAMMARS = {
    **{name: grammar for name, (grammar, _, _) in ENDLESS.items()},
    "ends": 'start: /[0-9]/ ("true" | "trap" /[ab]/) "éa{" tail\ntail: "}" | ":" tail',
    "a control token": 'start: (/[a-c]*/ <[257]> "x")*',
    "recursive, in GBNF": 'root ::= [0-9] "true" root?',
    "in parts": json.dumps(
        {
            "grammars": [
                {"lark_grammar": 'start: "a{" @b'},
                {"name": "b", "json_schema": {"enum": [True, "é"]}},
            ]
        }
    ),
}


def mask(matcher):
    words_W = np.zeros(matcher.constraint.vocabulary.words, dtype=np.int32)
    matcher.mask(words_W)
    return bits(words_W)


def bits(words_W):
    return np.unpackbits(words_W.view(np.uint8), bitorder="little").nonzero()[0].tolist()


@pytest.mark.parametrize("name", GRAMMARS)
def test_a_mask_of_a_users_grammar_is_llguidances_own_without_forcing(name, vocabulary):
    chance, constraint = random.Random(name), compiled(vocabulary, grammar=GRAMMARS[name])
    assert not constraint.is_forcing
    alone = LLMatcher(vocabulary.tokens, constraint.grammar, log_level=0)
    for _ in range(20):
        matcher, plain = constraint.matcher(), alone.deep_copy()
        for _ in range(12):
            found = mask(matcher)
            known = bits(np.frombuffer(plain.compute_bitmask(), np.int32))
            is_whole = plain.is_accepting()
            assert found == [each for each in known if is_whole or each not in vocabulary.ends]
            assert matcher.forced(9) == ([], 0)
            if not found or (token := chance.choice(found)) in vocabulary.ends:
                break
            assert matcher.accept([token]) == 1 and plain.consume_token(token)
            matcher = matcher.fork() if chance.random() < 0.2 else matcher


@pytest.mark.parametrize("name", ENDLESS)
def test_what_must_come_without_end_comes_and_stops_nothing(name, bytes_only):
    """llguidance's search for what is forced would have no end here."""
    grammar, before, again = ENDLESS[name]
    matcher = compiled(bytes_only, grammar=grammar).matcher()
    text = before + 20 * again
    assert matcher.follow(text) == len(text)
    assert again[0] in mask(matcher) and not matcher.may_end and not matcher.has_ended


@pytest.mark.parametrize(
    "settings",
    [
        {"grammar": 'root ::= [0-9] root | x "x" root\nx ::= "x"+'},
        {"grammar": 'start: /[0-9]/ a\na: "x" a b | "x" b a\nb: "x" | "x" b'},
        {"grammar": 'start[lazy]: a+ // b: "x"\na: "(" a ")" -> b\n  | %json {"a": 1} a ["b"]'},
        {"grammar": "%import common.WORD\nstart: WORD start{1,3} | start ~ 2"},
    ],
    ids=str,
)
def test_a_grammar_in_which_no_rule_ends_says_so(settings, bytes_only):
    with pytest.raises(ConfigError, match="no text with an end fits it"):
        compiled(bytes_only, **settings)


@pytest.mark.parametrize(
    "grammar",
    [
        'start: ("a" start){0,3} "b"',
        'start: "a" ["b" start] -> start',
        'start: ("a" start) ~ 0..3',
        'start: "a" // start: x\n | "b" start',
        'start: "a" start | x\nx: %json {"type": "object", "properties": {"x": {}}} | "a" x',
        "%import common.WORD\nstart: WORD start | WORD",
        'start: "(" start* ")"',
    ],
)
def test_a_grammar_in_which_one_way_ends_is_taken(grammar, bytes_only):
    assert compiled(bytes_only, grammar=grammar).matcher()


def test_the_first_line_of_a_grammar_of_calls_has_llguidance_look_for_forced_bytes(vocabulary):
    text = 'start: "true" /[0-9]/\n'
    ours, theirs = (compiled(vocabulary, grammar=each) for each in (FORCING + text, text))
    assert ours.is_forcing and not theirs.is_forcing
    assert without_forcing(ours.grammar) == theirs.grammar  # else they are the same
    tokens, num_certain = ours.matcher().forced(9)
    assert b"".join(vocabulary.spelled[each] for each in tokens) == b"true" and num_certain == len(tokens)
    assert mask(ours.matcher()) == tokens[:1] and set(tokens[:1]) < set(mask(theirs.matcher()))


def test_the_line_may_stand_before_the_first_of_several_grammars(bytes_only):
    first, second = {"lark_grammar": f"{FORCING}start: @b"}, {"name": "b", "json_schema": {"const": "é"}}
    ours, theirs = (json.dumps({"grammars": each}) for each in ([first, second], [second, {**first, "name": "x"}]))
    assert compiled(bytes_only, grammar=ours).is_forcing and begins_forcing(ours) and not begins_forcing(theirs)
    with pytest.raises(ConfigError, match="without the option no_forcing"):
        compiled(bytes_only, grammar=theirs)


def test_an_end_and_a_letter_that_are_named_by_their_ids_are_not_forced(bytes_only):
    """The bytes that the search reads are not theirs."""
    control, *_ = set(bytes_only.control.values()) - set(bytes_only.ends)
    forcing = [
        compiled(bytes_only, grammar=f'{FORCING}start: /[0-9]/ <[{number}]> "a"').is_forcing
        for number in (control, bytes_only.ends[0], 97)
    ]
    assert forcing == [True, False, False]


@pytest.mark.parametrize(
    "text",
    [
        f' {FORCING}start: "a"',
        f'{FORCING}{FORCING}start: "a"',
        '%llguidance {"no_forcing":false}\nstart: "a"',
        '%llguidance {\n"no_\\u0066orcing":\nfalse}\nstart: "a"',
    ],
)
def test_the_option_in_another_spelling_is_refused(text, bytes_only):
    with pytest.raises(ConfigError, match="without the option no_forcing"):
        compiled(bytes_only, grammar=text)


def test_other_kinds_of_constraints_force(vocabulary):
    for settings in ({"json_schema": '{"type": "integer"}'}, {"regex": "x+xa"}, {"choice": ("a", "b")}):
        assert compiled(vocabulary, **settings).is_forcing
