"""The bytes that each token adds to its text: GPT-2's letters, sentencepiece's bytes and spaces, special tokens."""

import pytest
from tokenizers import pre_tokenizers

from tests.text.test_tokenizer import trained
from tokenmill.text import token_bytes as module
from tokenmill.text.sentencepiece import BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED, add_tokens, bpe_backend
from tokenmill.text.token_bytes import Spelling, bytes_of_each, spelled_texts, token_bytes
from tokenmill.text.tokenizer import Tokenizer

PIECES = ["<unk>", "<s>", "<0xE2>", "<0x82>", "<0xAC>", "▁", "a", "b", "▁a", "<mark>", "<0xZZ>"]
TYPES = [UNKNOWN, CONTROL, BYTE, BYTE, BYTE, NORMAL, NORMAL, NORMAL, NORMAL, USER_DEFINED, NORMAL]


@pytest.fixture(scope="module")
def pieces():
    """A sentencepiece vocabulary that puts a space before each text."""
    backend = bpe_backend(PIECES, TYPES, [0.0] * 5 + [-1.0, -2, -3, -0.5, 0, -9], "first")
    add_tokens(backend, PIECES, TYPES)
    return Tokenizer(backend)


@pytest.fixture(scope="module")
def letters():
    return Tokenizer(trained())


def test_letters_stand_for_the_bytes_that_tokenizers_gives_them():
    assert set(module._LETTERS) == set(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(module._LETTERS.values()) == list(range(256))
    splits = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for text in ("".join(map(chr, range(0x250))), "\u20ac\U0001f640\uffff"):
        ((spelled, _),) = splits.pre_tokenize_str(text)
        assert bytes(module._LETTERS[letter] for letter in spelled) == text.encode()


def test_tokens_in_letters(letters):
    first = letters.backend.token_to_id("ð")
    assert token_bytes(letters, first) == b"\xf0"
    text = "hello STOP \U0001f640"
    ids = letters.encode(text, add_special_tokens=False)
    assert b"".join(token_bytes(letters, token) for token in ids) == text.encode()
    assert token_bytes(letters, letters.backend.token_to_id("<|end|>")) == b"<|end|>"
    assert token_bytes(letters, 10**6) == b""


def test_tokens_in_pieces(pieces):
    found = [token_bytes(pieces, token) for token in range(len(PIECES))]
    assert found == [b"<unk>", b"<s>", b"\xe2", b"\x82", b"\xac", b" ", b"a", b"b", b" a", b"<mark>", b"<0xZZ>"]


def test_the_space_before_a_text_is_no_part_of_it(pieces):
    a, b, mark = (PIECES.index(piece) for piece in ("▁a", "b", "<s>"))
    assert spelled_texts(pieces, [a, b, a]) == ["a", "b", " a"]
    assert spelled_texts(pieces, [a], before=[b]) == [" a"]
    assert spelled_texts(pieces, [mark, a, a], before=[mark]) == ["<s>", "a", " a"]
    assert spelled_texts(pieces, []) == []


def test_special_tokens_may_be_part_of_the_text(pieces):
    a, mark = PIECES.index("▁a"), PIECES.index("<s>")
    for skips, text in ((True, "a"), (False, " a")):
        spelling = Spelling(pieces, skip_special=skips)
        assert spelling.text(mark) == "<s>"
        spelling.go_on(mark)
        assert spelling.text(a) == text and spelling.bytes(a) == text.encode()
        spelling.go_on(a)
        assert spelling.text(a) == " a"


def test_part_of_a_character_is_shown_as_such(pieces):
    assert spelled_texts(pieces, [2, 3, 4]) == ["\ufffd"] * 3


def test_without_a_tokenizer_a_token_is_its_id():
    assert spelled_texts(None, [7, 12]) == ["7", "12"]
    assert Spelling(None).bytes(5) == b"5"


def test_the_bytes_of_several_are_those_of_each(letters, pieces):
    for tokenizer in (letters, pieces):
        ids = range(tokenizer.num_tokens + 3)
        assert bytes_of_each(tokenizer, ids) == [token_bytes(tokenizer, token) for token in ids]
    assert bytes_of_each(pieces, ()) == []
