"""Masks of grammars that users have written: llguidance's own, and no search without end."""

import itertools
import json
import random

import numpy as np
import pytest

from tests.constrain.walks import compiled
from tokenmill.constrain import constraint as constraint_module
from tokenmill.constrain import watch
from tokenmill.constrain.compile import Limits, compile
from tokenmill.constrain.constraint import Constraint
from tokenmill.constrain.grammar import spec_of
from tokenmill.errors import ConfigError, RequestError
from tokenmill.settings.sampling_params import SamplingParams
from tokenmill.text.tools.lark import OwnGrammar

ENDLESS = {
    "a word that goes on with what has to come": 'start: /[0-9]/ /x+/ "x" "a"',
    "of two letters": 'start: /[0-9]/ /(xy)+/ "x"',
    "of a letter of two bytes": 'start: /[0-9]/ /é+/ "é"',
    "not as greedy as it looks": 'start: /[0-9]/ /x+?/ /x+?/ "a"',
}
GRAMMARS = {
    **ENDLESS,
    "ends": 'start: /[0-9]/ ("true" | "trap" /[ab]/) "éa{" tail\ntail: "}" | ":" tail',
    "a control token": 'start: (/[a-c]*/ <[257]> "x")*',
    "in GBNF": 'root ::= [0-9] "true" root?',
    "in parts": json.dumps(
        {
            "grammars": [
                {"lark_grammar": 'start: "a{" @b'},
                {"name": "b", "json_schema": {"enum": [True, "é"]}},
            ]
        }
    ),
}


PAIR = {"type": "array", "prefixItems": [{"type": "number", "minimum": 0, "maximum": 1}] * 2, "items": False}
PAIR |= {"minItems": 2, "x-guidance": {"whitespace_flexible": False, "item_separator": "0,"}}
PARTS = json.dumps({"grammars": [{"json_schema": PAIR}]})


def mask(matcher):
    words_W = np.zeros(matcher.constraint.vocabulary.words, dtype=np.int32)
    matcher.mask(words_W)
    return np.unpackbits(words_W.view(np.uint8), bitorder="little").nonzero()[0].tolist()


@pytest.mark.parametrize("name", GRAMMARS)
def test_a_mask_is_llguidances_own_or_a_refusal(name, vocabulary, monkeypatch):
    monkeypatch.setattr(watch, "MAX_FOLLOWED", 200)
    chance, constraint = random.Random(name), compiled(vocabulary, grammar=GRAMMARS[name])
    refused = 0
    for _ in range(20):
        matcher = constraint.matcher()
        plain = constraint.first.deep_copy()
        for _ in range(12):
            try:
                found = mask(matcher)
            except RequestError as error:
                assert "bytes at one place, or more; 200 are possible" in str(error)
                assert matcher.forced(9) == ([], 0) and not matcher.has_ended
                refused += 1
                break
            assert (
                found
                == np.unpackbits(np.frombuffer(plain.compute_bitmask(), np.uint8), bitorder="little")
                .nonzero()[0]
                .tolist()
            )
            if not found or (token := chance.choice(found)) in vocabulary.ends:
                break
            assert matcher.accept([token]) == 1 and plain.consume_token(token)
            if chance.random() < 0.2:
                matcher.rollback(1)
                assert plain.rollback(1)
            matcher = matcher.fork() if chance.random() < 0.2 else matcher
    assert bool(refused) == (name in ENDLESS)


@pytest.mark.parametrize("grammar", ['start: /x+/ "x"', 'start: "ab" /x+?/ "x" "a"', 'root ::= "a"\nb ::= "c"'])
def test_what_is_endless_from_the_beginning_is_refused(grammar, vocabulary, monkeypatch):
    monkeypatch.setattr(watch, "MAX_S", 60.0)  # so that the limit of bytes is the first, however slow the machine is
    if "root" in grammar:
        assert compiled(vocabulary, grammar=grammar).matcher().forced(9).tokens
        return
    with pytest.raises(ConfigError, match="demands 2,049 bytes at one place, or more; 2,048 are possible"):
        compiled(vocabulary, grammar=grammar)


def test_what_is_endless_in_a_schema_among_grammars_is_found_before_the_search(bytes_only):
    before, matcher = b"[1.0", compiled(bytes_only, grammar=PARTS).matcher()
    with pytest.raises(RequestError, match="bytes at one place, or more; 2,048 are possible"):
        for count in range(len(before) + 1):
            assert matcher.follow(before[:count]) == count
            mask(matcher)


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


def test_what_takes_too_long_to_follow_is_an_error(bytes_only, monkeypatch):
    monkeypatch.setattr(watch, "MAX_S", 0.0)
    matcher = compiled(bytes_only, grammar='start: /[0-9]/ "true"').matcher()
    assert matcher.follow(b"1") == 1
    with pytest.raises(RequestError, match=r"demands 0 bytes at one place, or more; .* if they are found in 0 s"):
        mask(matcher)


def test_texts_of_one_constraint_take_a_limited_time_together_to_find_out(bytes_only, monkeypatch):
    """The clock goes on by a tenth of the time that there is, each time it is read."""
    clock = itertools.count()
    monkeypatch.setattr(watch.time, "thread_time", lambda: next(clock) * watch.MAX_S / 10)
    constraint, took = compiled(bytes_only, grammar=f'start: /[0-9]/ "{"xyz" * 30}" /[0-9]/'), []
    for _ in range(4):
        begun, each = next(clock), constraint.watch()
        for _ in range(2):  # the second time it is known
            with pytest.raises(RequestError, match=r"demands \d+ bytes at one place, or more"):
                each.forces(b"1")
        took.append(next(clock) - begun)
    assert took == [pytest.approx(took[0] / 2**number, abs=3) for number in range(4)] and took[0] > 9


@pytest.mark.parametrize("option", ["max_tokens=3", 'stop=""'])
def test_nothing_is_forced_where_a_rule_counts(option, bytes_only):
    constraint = compiled(bytes_only, grammar=f'start: /[0-9]/ a "xyz"\na[{option}]: /x+/')
    matcher = constraint.matcher()
    assert not constraint.is_forcing and matcher.follow(b"1x") == 2 and matcher.forced(9) == ([], 0)
    assert ord("x") in mask(matcher)


@pytest.mark.parametrize(
    ("text", "is_forcing"), [('start: "true" /[0-9]/', True), ('start: a "true"\na[max_tokens=3]: /x+/', False)]
)
def test_a_grammar_of_ours_has_the_masks_of_an_equal_text(text, is_forcing, vocabulary):
    ours, equal = (compiled(vocabulary, grammar=each) for each in (OwnGrammar(text), text))
    assert ours.is_forcing == equal.is_forcing == is_forcing and ours.unforced is None
    assert ours.grammar == equal.grammar and (equal.unforced is not None) == is_forcing


def test_the_option_by_which_it_works_is_refused(bytes_only):
    for text in (
        '%llguidance {"no_forcing": false}\nstart: "a"',
        '%llguidance {\n"no_\\u0066orcing":\nfalse}\nstart: "a"',
    ):
        with pytest.raises(ConfigError, match="without the option no_forcing"):
            compiled(bytes_only, grammar=text)
    assert compiled(bytes_only, grammar='%llguidance {"allow_initial_skip": true}\nstart: "a"').unforced


def test_kinds_in_which_what_is_forced_has_an_end_are_not_watched(vocabulary):
    for settings in ({"json_schema": '{"type": "integer"}'}, {"regex": "x+xa"}, {"choice": ("a", "b")}):
        assert compiled(vocabulary, **settings).unforced is None


def test_what_others_have_used_up_is_made_anew_once_and_never_in_a_step_where_that_takes_long(bytes_only, monkeypatch):
    """Copies share the states of llguidance's lexer, of which so many are too few for all texts together."""
    text, limits = 'start: /(.*a.{7}|[^b]*b.{6}c)+/ "x"', Limits(max_lexer_states=200)
    constraint, chance = compile(spec_of(SamplingParams(grammar=text)), bytes_only, limits), random.Random(1)
    made, make = [], Constraint._made_of

    def noted(self, grammar):
        made.append(grammar)
        return make(self, grammar)

    monkeypatch.setattr(Constraint, "_made_of", noted)

    def go(tokens):
        watch = constraint.watch()
        for count in range(len(tokens) + 1):
            watch.forces(tokens[:count])

    texts = [chance.choices(b"abcd", k=12) for _ in range(6)]
    for each in texts:
        go(each)
    assert 0 < len(made) < 6 and set(made) == {constraint.unforced[0]}
    monkeypatch.setattr(constraint_module, "MAX_RENEWED_SIZE", 10)
    made.clear()
    with pytest.raises(RequestError, match="takes more than is allowed"):
        for each in texts:
            go(each)
    assert constraint.is_spent and not made
    other = constraint.apart()
    assert len(made) == 2 and not other.is_spent and not other.watch().forces(texts[0])
