"""Tokenizers made of sentencepiece's pieces: merges by their scores, spaces before a text, tokens of their own."""

import pytest

from tokenmill.text.sentencepiece import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    _merges_from_scores,
    add_tokens,
    bpe_backend,
    unigram_backend,
)

TOKENS = ["<unk>", "<s>", "▁", "a", "b", "c", "ab", "bc", "abc"]
TYPES = [UNKNOWN, CONTROL] + [NORMAL] * 7


def test_every_way_to_make_a_piece_is_a_merge_best_piece_first():
    scores = [0, 0, -9, -9, -9, -9, -3.0, -2.0, -5.0]
    merges = _merges_from_scores(TOKENS, TYPES, scores)
    assert merges == [("b", "c"), ("a", "b"), ("a", "bc"), ("ab", "c")]
    kinds = [UNKNOWN, CONTROL, NORMAL, NORMAL, BYTE, NORMAL, NORMAL, NORMAL, NORMAL]
    assert _merges_from_scores(TOKENS, kinds, scores) == [("a", "bc"), ("ab", "c")]


@pytest.mark.parametrize(("scores", "found"), [([-3.0, -2.0, -5.0], ["a", "bc"]), ([-2.0, -3.0, -5.0], ["ab", "c"])])
def test_the_piece_with_the_best_score_is_made_first(scores, found):
    tokens, types = TOKENS[:8], TYPES[:8]
    backend = bpe_backend(tokens, types, [0, 0, -9, -9, -9, -9, *scores[:2]], "never")
    assert backend.encode("abc").tokens == found


@pytest.mark.parametrize(
    ("prefix", "plain", "spaced", "inner"),
    [
        ("never", ["a"], ["▁", "a"], ["a", "<s>", "b"]),
        ("first", ["▁", "a"], ["▁", "▁", "a"], ["▁", "a", "<s>", "b"]),
        ("always", ["▁", "a"], ["▁", "▁", "a"], ["▁", "a", "<s>", "▁", "b"]),
    ],
)
@pytest.mark.parametrize("make", [bpe_backend, unigram_backend])
def test_where_a_space_is_put(make, prefix, plain, spaced, inner):
    """A text that begins with a space gets one more, and what is decoded loses it again."""
    backend = make(TOKENS[:6], TYPES[:6], [0.0, 0, -1, -1, -1, -1], prefix)
    add_tokens(backend, TOKENS[:6], TYPES[:6])
    assert backend.encode("a").tokens == plain and backend.encode(" a").tokens == spaced
    assert backend.encode("a<s>b").tokens == inner
    for text in ("a b", " a"):
        assert backend.decode(backend.encode(text).ids) == text


def test_letters_without_a_piece_are_bytes_or_unknown():
    tokens, types = ["<unk>", "a", "<0xC3>", "<0xA4>"], [UNKNOWN, NORMAL, BYTE, BYTE]
    scores = [0.0, -1.0, 0.0, 0.0]
    for make in (bpe_backend, unigram_backend):
        assert make(tokens, types, scores, "never").encode("aäa").tokens == ["a", "<0xC3>", "<0xA4>", "a"]
        assert make(tokens[:2], types[:2], scores[:2], "never").encode("aääa").ids == [1, 0, 1]
    assert "<0xC3>" not in unigram_backend(tokens, types, scores, "never").encode("<0xC3>").tokens[:1]


def test_what_unigram_cannot_be_made_of():
    with pytest.raises(ValueError, match=r"^'b' is part of a piece and no piece itself$"):
        unigram_backend(["<unk>", "a", "ab"], [UNKNOWN, NORMAL, NORMAL], [0.0] * 3, "never")
    with pytest.raises(ValueError, match=r"^it has pieces that are not used$"):
        unigram_backend(["<unk>", "a", "b"], [UNKNOWN, NORMAL, UNUSED], [0.0] * 3, "never")


def test_tokens_that_are_known_in_texts():
    tokens = ["<unk>", "<s>", "<x>", "▁y", "n"]
    types = [UNKNOWN, CONTROL, USER_DEFINED, USER_DEFINED, NORMAL]
    backend = bpe_backend(tokens, types, [0.0] * 5, "never")
    add_tokens(backend, tokens, types, stripping=["<x>"])
    added = {token.content: token for token in backend.get_added_tokens_decoder().values()}
    assert {name: (each.special, each.normalized, each.rstrip) for name, each in added.items()} == {
        "<unk>": (True, False, False),
        "<s>": (True, False, False),
        "<x>": (False, False, True),
        "▁y": (False, True, False),
    }
