"""The tokens as llguidance reads them spell what the tokenizer decodes; control tokens are no letters."""

import random

import pytest
from llguidance import LLTokenizer

from tests.constrain.conftest import END, TAG, TURN, byte_level
from tests.constrain.walks import allowed, compiled
from tokenmill.constrain.vocabulary import vocabulary_of


def test_tokens_spell_the_decoded_text(tokenizer, vocabulary):
    chance, letters = random.Random(1), 'ab trué{}:"1\n\tü€🙂tool<|end/>'
    for _ in range(300):
        text = "".join(chance.choice(letters) for _ in range(chance.randrange(1, 30)))
        found = tokenizer.encode(text, add_special_tokens=False, continues=True)
        assert vocabulary.tokens.decode_bytes(found).decode() == tokenizer.decode(found, continues=True)


def test_bytes_are_those_that_llguidance_itself_reads(tokenizer, vocabulary):
    """From tokenizer.json, by its own code. An added token of the form <…> is always special there."""
    theirs = LLTokenizer(tokenizer.backend.to_str())
    for number in range(tokenizer.num_tokens):
        assert vocabulary.tokens.decode_bytes([number]) == theirs.decode_bytes([number])
        if number != tokenizer.backend.token_to_id(TAG):
            assert vocabulary.tokens.is_special_token(number) == theirs.is_special_token(number)


def test_text_becomes_tokens_that_spell_it(tokenizer, vocabulary):
    chance = random.Random(2)
    for _ in range(300):
        text = "".join(chance.choice('ab true{":1é€🙂<tool>') for _ in range(chance.randrange(1, 30)))
        assert vocabulary.tokens.decode_bytes(vocabulary.tokens.tokenize_str(text)).decode() == text


def test_its_own_tokens_are_those_of_the_tokenizer(tokenizer, vocabulary):
    for text in ("true", '{"a', "a true é", f"a{TAG}"):
        assert vocabulary.tokens.tokenize_str(text) == tokenizer.encode(text, False, continues=True)


def test_names_of_control_tokens_are_letters(tokenizer, vocabulary):
    control = set(tokenizer.control_ids.values())
    for spelling in tokenizer.control_ids:
        found = vocabulary.tokens.tokenize_str(f"a{spelling}b")
        assert not control.intersection(found) and vocabulary.tokens.decode_bytes(found).decode() == f"a{spelling}b"


def test_control_tokens_come_by_their_ids_alone(tokenizer, vocabulary):
    control, ends = set(tokenizer.control_ids.values()), set(tokenizer.eos_token_ids)
    free = set(allowed(compiled(vocabulary, regex="(.|\\n)*").first, vocabulary))
    assert free & control == ends and free - control
    for number in control - ends:
        found = compiled(vocabulary, grammar=f'start: <[{number}]> "a"').first
        assert allowed(found, vocabulary) == [number]


def test_an_added_token_that_is_text_is_in_a_text(tokenizer, vocabulary):
    number = tokenizer.backend.token_to_id(TAG)
    assert number in allowed(compiled(vocabulary, regex=".*").first, vocabulary)
    assert number in allowed(compiled(vocabulary, choice=[f"{TAG}a"]).first, vocabulary)


def test_logits_beyond_the_tokenizer_never_come(tokenizer, vocabulary):
    assert vocabulary.size == tokenizer.num_tokens + 7
    found = allowed(compiled(vocabulary, regex="(.|\\n)*").first, vocabulary)
    assert max(found) < tokenizer.num_tokens


@pytest.mark.parametrize("size", [264, 288, 300])
def test_a_model_without_an_end_gets_one_after_its_tokens(size):
    """Also where that token begins a new word of the mask."""
    tokenizer = byte_level()
    vocabulary = vocabulary_of(tokenizer, size)
    assert vocabulary.ends == (size,) and vocabulary.words == (size + 1 + 31) // 32
    matcher = compiled(vocabulary, choice=["a"]).first.deep_copy()
    assert matcher.consume_tokens(vocabulary.tokens.tokenize_str("a"))
    assert allowed(matcher, vocabulary) == [size]


def test_several_ends(tokenizer):
    control = tokenizer.control_ids
    ends = [tokenizer.eos_token_ids[0], control.get(TURN, control.get("<s>"))]
    vocabulary = vocabulary_of(tokenizer, tokenizer.num_tokens, ends)
    matcher = compiled(vocabulary, choice=["a"]).first.deep_copy()
    assert matcher.consume_tokens(vocabulary.tokens.tokenize_str("a"))
    assert allowed(matcher, vocabulary) == sorted(ends)
    assert END not in {TURN, TAG}
