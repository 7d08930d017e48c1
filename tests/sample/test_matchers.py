"""Drafts and masks of constrained sequences: what a step is fed, what its rows admit, and where a text is whole."""

import numpy as np
import pytest

from tests.byte_model import THINK, save_thinking_model
from tokenmill.constrain.compile import compile
from tokenmill.constrain.grammar import spec_of
from tokenmill.constrain.thinking import ThinkingBudget
from tokenmill.constrain.vocabulary import vocabulary_of
from tokenmill.errors import RequestError
from tokenmill.sample.matchers import Matchers
from tokenmill.schedule.choosing import Choosing
from tokenmill.schedule.sequence import UNKNOWN, Plan, Rows, Sequence, Work
from tokenmill.settings.sampling_params import SamplingParams
from tokenmill.text.tokenizer import Tokenizer

END, PROMPT = 256, [1, 2, 3]
SIZE = 259


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    tokenizer = Tokenizer.from_directory(save_thinking_model(tmp_path_factory.mktemp("bytes")))
    return vocabulary_of(tokenizer, SIZE, [END])


@pytest.fixture
def sequence(vocabulary):
    """Makes a sequence that decodes, with some output."""

    def make(output=b"", regex=None, ends=True, thinking=None, **settings):
        params = SamplingParams(regex=regex, **settings)
        constraint = None if regex is None else compile(spec_of(params), vocabulary)
        stops = {END: "eos"} if ends else {}
        tokens = [*PROMPT, *output]
        choosing = Choosing(params, 0, stops, constraint=constraint, thinking=thinking)
        return Sequence(1, tokens, len(PROMPT), 50, choosing, Rows(num_computed=len(tokens) - 1))

    return make


def plan_of(sequence, drafts=()):
    count = 1 + len(drafts)
    return Plan([Work(sequence, len(sequence.tokens) - 1, count, count, tuple(drafts))])


def admitted(mask):
    return np.unpackbits(mask.view(np.uint8), bitorder="little")[:SIZE].nonzero()[0].tolist()


def masks(sequence, drafts=()):
    return [each if each is None else admitted(each) for each in Matchers().masks(plan_of(sequence, drafts))[1]]


@pytest.mark.parametrize(
    ("regex", "output", "guessed", "drafts"),
    [
        ("[a-c]{9}", b"a", b"bcxa", b"bc"),
        ("[a-c]{9}", b"a", b"x", b""),
        ("[a-c]hello[0-9]", b"a", b"", b"hello"),
        ("[a-c]hello[0-9]", b"a", b"hallo", b"hello"),
        ("[a-c]hello[0-9]+", b"a", b"hello7x", b"hello7"),  # the guess goes on behind what is forced
        ("[a-c]hello", b"a", b"", [*b"hello", END]),
        ("[a-c]hello", b"ahel", b"lox", [*b"lo", END]),
        (None, b"a", b"bcxa", b"bcxa"),
    ],
)
def test_drafts_are_what_is_forced_or_was_guessed_and_fits(sequence, regex, output, guessed, drafts):
    assert Matchers().drafts(sequence(output, regex), list(guessed), 9) == list(drafts)


def test_drafts_end_at_the_limit_and_unknown_ones_are_none(sequence):
    assert Matchers().drafts(sequence(b"a", "ahello"), [], 3) == list(b"hel")
    assert Matchers().drafts(sequence(b"a", "ahello"), [], 0) == []
    assert Matchers().drafts(sequence(b"", "[a-z]+"), [UNKNOWN] * 4, 4) == []
    scored = sequence(b"", "abc")
    scored.score_from = 0
    prefilled = sequence(b"", "abc")
    prefilled.rows.num_computed = 0
    assert Matchers().drafts(scored, [7], 4) == Matchers().drafts(prefilled, [7], 4) == []


def test_each_row_has_the_mask_of_its_position(sequence):
    letters, digits = list(b"abc"), list(b"0123456789")
    assert masks(sequence(b"", "[a-c]{2}[0-9]+"), b"ab1") == [letters, letters, digits, [*digits, END]]
    assert masks(sequence(b"ab1", "[a-c]{2}[0-9]+", ends=False)) == [digits]
    free = sequence(b"")
    assert Matchers().masks(plan_of(free, b"ab")) == {}


def test_rows_behind_an_end_do_not_count(sequence):
    everything = list(range(SIZE))
    assert masks(sequence(b"a", "[a-c][0-9]"), [*b"1", END]) == [list(b"0123456789"), [END], everything]
    assert masks(sequence(b"a", "[a-c][0-9]", ends=False), b"1") == [list(b"0123456789"), everything]
    assert masks(sequence(b"a1", "[a-c][0-9]", ends=False)) == [[]]  # it was to end before


def test_tokens_that_do_not_fit_are_an_error_of_every_row(sequence):
    found = Matchers().masks(plan_of(sequence(b"ax", "[a-c]{2}[0-9]+"), b"1"))[1]
    assert [str(each) for each in found] == [
        "token 2 of the text so far does not fit the constraint of this request"
    ] * 2
    assert all(isinstance(each, RequestError) for each in found)


@pytest.mark.parametrize(
    ("ends", "chosen", "kept", "is_whole"),
    [
        (False, b"1x", b"1", True),  # what was chosen behind the end is left out
        (False, [*b"1", END], b"1", True),
        (True, [*b"1", END], [*b"1", END], False),  # the token itself ends it
        (True, [*b"1", END, 7], [*b"1", END], False),
        (False, b"1", b"1", True),
        (True, b"1", b"1", False),
    ],
)
def test_what_was_accepted_ends_with_the_grammar(sequence, ends, chosen, kept, is_whole):
    one, matchers = sequence(b"a", "[a-c][0-9]", ends=ends), Matchers()
    plan = plan_of(one, chosen[:-1])
    assert matchers.settle(plan, [list(chosen)]) == [list(kept)]
    one.tokens += list(kept)
    assert matchers.whole(plan, [list(kept)]) == [one] * is_whole


def test_a_text_is_not_whole_before_its_shortest_length(sequence):
    one, matchers = sequence(b"a", "[a-c][0-9]", ends=False, min_new_tokens=3), Matchers()
    plan = plan_of(one)
    assert matchers.settle(plan, [[49]]) == [[49]]
    one.tokens.append(49)
    assert matchers.whole(plan, [[49]]) == []


def test_a_matcher_goes_along_with_whatever_becomes_of_the_tokens(sequence):
    matchers, one = Matchers(), sequence(b"ab", "[a-c]{2}[0-9]+x")

    def now():
        return admitted(matchers.masks(plan_of(one))[1][0])

    assert now() == list(b"0123456789")
    one.tokens += b"12"
    assert now() == list(b"0123456789x")
    del one.tokens[-3:]
    assert now() == list(b"abc")
    one.tokens += b"c3x"
    assert now() == [END]
    one.choosing = sequence(regex="[x-z]+").choosing
    one.tokens[3:] = b"xyz"
    assert now() == [*b"xyz", END]


def test_at_the_limit_of_thinking_the_mark_alone_is_admitted_and_drafted(sequence):
    thinking = ThinkingBudget(2, THINK[:1], THINK[1:], is_open=True)
    assert masks(sequence(b"a", thinking=thinking), [*b"b", THINK[1]]) == [None, [THINK[1]], None]
    assert masks(sequence(b"abcdefghijklmnopqrstuvwxyz", thinking=thinking)) == [None]
    assert Matchers().drafts(sequence(b"a", thinking=thinking), list(b"bcd"), 4) == [*b"b", THINK[1]]
    assert Matchers().drafts(sequence(b"ab", thinking=thinking), [], 4) == [THINK[1]]
    assert Matchers().drafts(sequence(b"ab", thinking=thinking), [THINK[1], 5], 4) == [THINK[1], 5]
    assert Matchers().drafts(sequence([*b"ab", THINK[1]], thinking=thinking), [5, 6], 4) == [5, 6]
    over = sequence([*b"ab", THINK[1], *b"x" * 30], thinking=thinking)
    assert Matchers().drafts(over, [UNKNOWN] * 4, 4) == [UNKNOWN] * 4  # several steps in one call, from here on
