"""Drafts and masks of constrained sequences: what a step is fed, what its rows admit, and where a text is whole."""

from random import Random

import numpy as np
import pytest

from tests.byte_model import THINK, save_thinking_model
from tokenmill.constrain.compile import compile
from tokenmill.constrain.grammar import spec_of
from tokenmill.constrain.vocabulary import vocabulary_of
from tokenmill.errors import RequestError
from tokenmill.sample.matchers import Matchers
from tokenmill.schedule.choosing import Choosing, ThinkingBudget
from tokenmill.schedule.keeps import Kept
from tokenmill.schedule.sequence import UNKNOWN, Plan, Sequence, Work
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
        return Sequence(1, tokens, len(PROMPT), 50, choosing, Kept(num_computed=len(tokens) - 1))

    return make


def plan_of(sequence, drafts=()):
    count = 1 + len(drafts)
    return Plan([Work(sequence, len(sequence.tokens) - 1, count, count, tuple(drafts))])


def admitted(mask):
    return np.unpackbits(mask.view(np.uint8), bitorder="little")[:SIZE].nonzero()[0].tolist()


def drafts_of(sequence, guessed, limit):
    matchers = Matchers()
    return matchers.drafts(sequence, guessed, matchers.forced(sequence, limit), limit)


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
    assert drafts_of(sequence(output, regex), list(guessed), 9) == list(drafts)


def test_drafts_end_at_the_limit_and_unknown_ones_are_none(sequence):
    assert drafts_of(sequence(b"a", "ahello"), [], 3) == list(b"hel")
    assert drafts_of(sequence(b"a", "ahello"), [], 0) == []
    assert drafts_of(sequence(b"", "[a-z]+"), [UNKNOWN] * 4, 4) == []
    scored = sequence(b"", "abc")
    scored.score_from = 0
    prefilled = sequence(b"", "abc")
    prefilled.kept.num_computed = 0
    assert drafts_of(scored, [7], 4) == drafts_of(prefilled, [7], 4) == []


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
    matchers.masks(plan)
    assert matchers.settle(plan, [list(chosen)]) == [list(kept)]
    one.tokens += list(kept)
    assert matchers.whole(plan, [list(kept)]) == [one] * is_whole


def test_a_text_is_not_whole_before_its_shortest_length(sequence):
    one, matchers = sequence(b"a", "[a-c][0-9]", ends=False, min_new_tokens=3), Matchers()
    plan = plan_of(one)
    matchers.masks(plan)
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
    one.tokens = one.tokens[:-3]
    assert now() == list(b"abc")
    one.tokens += b"c3x"
    assert now() == [END]
    one.choosing = sequence(regex="[x-z]+").choosing
    one.tokens = [*PROMPT, *b"xyz"]
    assert now() == [*b"xyz", END]


@pytest.mark.parametrize(
    ("settings", "drafts", "num_certain"),
    [
        ({}, b"hello", 4),  # one letter or the other may come last
        ({}, b"he", 2),  # the rest was beyond what a step may have
        ({}, b"hexlo", 0),
        ({"min_new_tokens": 2}, b"hello", 0),  # settings by which the only token that fits may be forbidden
        ({"logit_bias": {5: -100.0}}, b"hello", 0),
        ({"logprobs": 0}, b"hello", 0),
        ({"presence_penalty": 1.0}, b"hello", 4),
    ],
)
def test_no_logits_are_computed_where_one_token_alone_may_come(sequence, settings, drafts, num_certain):
    one, matchers = sequence(b"a", "ahell(o|a)x", **settings), Matchers()
    assert matchers.forced(one, 9) == list(b"hell")
    plan = plan_of(one, drafts)
    matchers.leave_out_certain(plan)
    assert plan.work == [Work(one, 3, 1 + len(drafts), 1 + len(drafts) - num_certain, tuple(drafts), num_certain)]
    found = [admitted(each) for each in matchers.masks(plan)[1]]
    assert found == masks(one, drafts)[num_certain:]
    matchers.leave_out_certain(again := plan_of(one, drafts))
    assert again.work[0].num_certain == 0  # it was not asked in this step


def test_a_matcher_that_goes_on_is_one_that_follows_from_the_beginning(sequence):
    chance, one, matchers = Random(0), sequence(b"", "(a[0-2]{2}|b[0-2]x?){1,6}"), Matchers()
    for _ in range(2000):
        drafts = bytes(chance.choices(b"ab012x", k=chance.randint(0, 3)))
        (found,), (anew,) = (each.masks(plan_of(one, drafts)).values() for each in (matchers, Matchers()))
        assert [*map(_told, found)] == [*map(_told, anew)]
        fitting = [place for place, mask in enumerate(found) if not isinstance(mask, RequestError) and admitted(mask)]
        if not fitting or chance.random() < 0.2:  # as a rewind does it, and an edit to as many other tokens
            new = bytes(chance.choices(b"ab012x", k=chance.randint(0, 3)))
            one.tokens = [*one.tokens[: chance.randint(len(PROMPT), len(one.tokens))], *new]
            continue
        chosen = [*drafts[: fitting[-1]], chance.choice(admitted(found[fitting[-1]]))]
        (kept,) = matchers.settle(plan_of(one, drafts), [chosen])
        one.tokens += kept[: chance.randint(0, len(kept))] if chance.random() < 0.1 else kept  # or it was cancelled


def _told(mask):
    return str(mask) if isinstance(mask, RequestError) else admitted(mask)


def test_at_the_limit_of_thinking_the_mark_alone_is_admitted_and_drafted(sequence):
    thinking = ThinkingBudget(2, THINK[:1], THINK[1:], is_open=True)
    assert masks(sequence(b"a", thinking=thinking), [*b"b", THINK[1]]) == [None, [THINK[1]], None]
    assert masks(sequence(b"abcdefghijklmnopqrstuvwxyz", thinking=thinking)) == [None]
    assert drafts_of(sequence(b"a", thinking=thinking), list(b"bcd"), 4) == [*b"b", THINK[1]]
    assert drafts_of(sequence(b"ab", thinking=thinking), [], 4) == [THINK[1]]
    assert drafts_of(sequence(b"ab", thinking=thinking), [THINK[1], 5], 4) == [THINK[1], 5]
    assert drafts_of(sequence([*b"ab", THINK[1]], thinking=thinking), [5, 6], 4) == [5, 6]
    over = sequence([*b"ab", THINK[1], *b"x" * 30], thinking=thinking)
    assert drafts_of(over, [UNKNOWN] * 4, 4) == [UNKNOWN] * 4  # several steps in one call, from here on
