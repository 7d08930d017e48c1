"""A matcher is a function of its tokens, however it came to them; its masks are llguidance's own."""

import json
import random

import numpy as np
import pytest
from llguidance import LLMatcher, LLParserLimits

from tests.byte_model import save_byte_model
from tokenmill.constrain.constraint import CompiledGrammar
from tokenmill.constrain.vocabulary import vocabulary_of
from tokenmill.errors import RequestError
from tokenmill.schedule.matcher import MaskRows
from tokenmill.text.tokenizer import Tokenizer

END, SIZE = 256, 257
SCHEMA = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 3}, "b": {"enum": ["cd", "ce", 1]}}}
SCHEMA |= {"required": ["a"], "additionalProperties": False, "x-guidance": {"whitespace_flexible": False}}


def lark(grammar):
    return json.dumps({"grammars": [{"lark_grammar": grammar}]})


GRAMMARS = {
    "more may follow": LLMatcher.grammar_from_regex("ab[0-9]+"),
    "it ends by itself": LLMatcher.grammar_from_regex("ab[0-9]"),
    "or nothing": LLMatcher.grammar_from_regex("(ab)?"),
    "several ways": LLMatcher.grammar_from_regex("(a|ab|abc)*d?"),
    "schema": LLMatcher.grammar_from_json_schema(SCHEMA),
    "counted": lark('start: a "!" b\na[max_tokens=3]: /[a-d]*/\nb[max_tokens=2]: /[0-9]+/'),
    "up to a mark": lark('start: (a b)*\na[lazy]: /[a-d]*/ "x"\nb[suffix="y"]: /[a-e]*/'),
    "nested": lark('start: "a" start "b" | "c"'),
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return Tokenizer.from_directory(save_byte_model(tmp_path_factory.mktemp("bytes")))


@pytest.fixture(scope="module", params=["an end", "no end"])
def vocabulary(tokenizer, request):
    return vocabulary_of(tokenizer, SIZE, [END] if request.param == "an end" else [])


def made(grammar, vocabulary, limits=None):
    first = LLMatcher(vocabulary.tokens, grammar, log_level=0, limits=limits)
    return CompiledGrammar(grammar, first, vocabulary, limits)


def ids(words_W):
    return np.unpackbits(words_W.view(np.uint8), bitorder="little").nonzero()[0].tolist()


def mask(matcher):
    words_W = np.zeros(matcher.constraint.vocabulary.words, dtype=np.int32)
    matcher.mask(words_W)
    return ids(words_W)


def after(constraint, tokens, stop_ids=None):
    """A matcher that shares nothing with others."""
    matcher = made(constraint.grammar, constraint.vocabulary).matcher(stop_ids)
    assert matcher.follow(tokens) == len(tokens)
    return matcher


@pytest.mark.parametrize("stop_ids", [None, ()])
@pytest.mark.parametrize("name", GRAMMARS)
def test_a_matcher_is_a_function_of_its_tokens(name, stop_ids, vocabulary):
    chance, constraint = random.Random(name), made(GRAMMARS[name], vocabulary)
    for _ in range(3):
        matcher = constraint.matcher(stop_ids)
        for _ in range(5):
            same, drafts = after(constraint, matcher.tokens, stop_ids), []
            state = matcher.may_end, matcher.has_ended, matcher.is_over, matcher.forced(9), mask(matcher)
            assert state == (same.may_end, same.has_ended, same.is_over, same.forced(9), mask(same))
            compare_certain(matcher, stop_ids)
            while len(drafts) < chance.randint(0, 6) and (allowed := mask(same)):
                drafts.append(chance.choice(allowed))
                same.accept(drafts[-1:])
            drafts += [chance.randrange(SIZE)] * (chance.random() < 0.3)
            count = matcher.num_fitting(drafts)
            assert after(constraint, matcher.tokens, stop_ids).accept(drafts) == count
            compare_masks(matcher, drafts[:count], stop_ids)
            how = chance.random()
            if how < 0.6:
                matcher.accept(drafts[: chance.randint(0, count)])
            elif how < 0.8:
                matcher.rollback(chance.randint(0, len(matcher.tokens)))
            elif how < 0.9:
                matcher = matcher.fork()
            else:
                matcher.follow([*matcher.tokens[: chance.randint(0, len(matcher.tokens))], *drafts])


def compare_certain(matcher, stop_ids):
    """The mask of a new matcher before each token that is certain, and those behind them."""
    tokens, num_certain = matcher.forced(9)
    assert num_certain <= len(tokens) <= num_certain + 1
    assert matcher.forced(1).tokens == tokens[:1] and matcher.forced(0).tokens == []
    for number in range(num_certain):
        assert (
            mask(after(matcher.constraint, [*matcher.tokens, *tokens[:number]], stop_ids))
            == tokens[number : number + 1]
        )
    for first in range(num_certain + 1):
        compare_masks(matcher, tokens, stop_ids, first)


def compare_masks(matcher, drafts, stop_ids, first=0):
    """The masks of all positions behind the first drafts in one call with those of a new matcher at each."""
    words_RW = np.full((len(drafts) - first + 3, matcher.constraint.vocabulary.words), -1, dtype=np.int32)
    middle_RW = words_RW[1:-1]
    assert not any(matcher.masks(MaskRows(list(middle_RW), middle_RW.ctypes.data), drafts, first))
    for number in range(first, len(drafts) + 1):
        alone = after(matcher.constraint, [*matcher.tokens, *drafts[:number]], stop_ids)
        found = ids(words_RW[number - first + 1])
        is_over = alone.is_over or (not alone.ends and alone.has_ended)
        if number > first and is_over:  # what is chosen there does not count
            assert len(found) == words_RW.shape[1] * 32
        else:
            assert found == mask(alone) == ([] if is_over else _plain(alone))
    assert (words_RW[0] == -1).all() and (words_RW[-1] == -1).all()


def _plain(matcher):
    """What llguidance itself admits, without ends that do not end the text."""
    found = ids(np.frombuffer(matcher.compiled.compute_bitmask(), dtype=np.int32).copy())
    return [each for each in found if each in matcher.ends or each not in matcher.constraint.vocabulary.ends]


def test_forced_tokens_end_with_the_end(tokenizer):
    constraint = made(LLMatcher.grammar_from_regex("abc"), vocabulary_of(tokenizer, SIZE, [END]))
    assert constraint.matcher().forced(4) == ([*b"abc", END], 3)
    assert constraint.matcher().forced(3) == constraint.matcher(()).forced(4) == ([*b"abc"], 3)
    assert constraint.matcher().num_fitting([*b"abc", END, 97]) == 4
    assert constraint.matcher(()).num_fitting([*b"abc", END]) == 3
    assert constraint.matcher().num_fitting([END]) == 0


def test_equal_grammars_are_equal_constraints(vocabulary):
    one, same = (made(GRAMMARS["schema"], vocabulary) for _ in range(2))
    assert one == same and hash(one) == hash(same) and one != made(GRAMMARS["nested"], vocabulary)


def test_a_matcher_does_not_fail_for_what_others_have_used_up(vocabulary):
    """Copies share the states of the lexer, and llguidance's limit of their number."""
    limits, chance = LLParserLimits(max_lexer_states=200, verbose_errors=False), random.Random(1)
    constraint = made(LLMatcher.grammar_from_regex("(.*a.{7}|[^b]*b.{6}c)+"), vocabulary, limits)
    texts = [chance.choices(b"abcd", k=12) for _ in range(6)]
    copies = [constraint.first.deep_copy() for _ in texts]
    alone = [masks_along(made(constraint.grammar, vocabulary), text) for text in texts]
    assert [masks_along(constraint, text) for text in texts] == alone
    assert not all(map(_goes_through, copies, texts)), "llguidance does without this"


def masks_along(constraint, text):
    matcher, masks = constraint.matcher(), []
    for token in text:
        masks.append(mask(matcher))
        assert matcher.accept([token]) == 1
    return masks


def _goes_through(compiled, text):
    return all(compiled.compute_bitmask() and compiled.try_consume_tokens([token]) == 1 for token in text)


def test_a_limit_is_an_error_of_the_text(vocabulary):
    limits = LLParserLimits(step_lexer_fuel=30, verbose_errors=False)
    matcher = made(LLMatcher.grammar_from_regex("(.*a.{7}|[^b]*b.{6}c)+"), vocabulary, limits).matcher()
    with pytest.raises(RequestError, match=r"the constraint of this request takes more than is allowed, at token \d+"):
        for token in b"abcdabcdabcdabcdabcd":
            mask(matcher)
            matcher.accept([token])


@pytest.mark.parametrize("attribute", ["", "[max_tokens=90]"])
def test_a_token_that_does_not_fit_for_what_a_draft_has_used_up_fits(attribute, vocabulary):
    """llguidance says nothing of its limit there, until it fills a mask. It cannot go back in the second grammar."""
    grammar = json.dumps(
        {"grammars": [{"lark_grammar": f"start: a\na{attribute}: /((a{{1,100}}){{1,100}}){{1,100}}c/"}]}
    )
    matcher, text = made(grammar, vocabulary).matcher(), [97] * 10
    assert matcher.follow(text) == 10
    drafted = matcher.fork()
    while drafted.accept([97]):
        pass
    assert 20 < len(drafted.tokens) < 60
    assert matcher.fork().accept([97]) == 0, "llguidance does without this"
    assert matcher.follow([*text, 97]) == 11 and matcher.error is None and set(b"ac") <= set(mask(matcher))
    assert matcher.follow(text[:5]) == 5 and set(b"ac") <= set(mask(matcher))
    assert matcher.follow([*text[:5], 98]) == 5 and matcher.error is None
