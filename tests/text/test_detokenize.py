"""The detokenizer, by example: what is held back, and until when."""

import random

import pytest

from tests.text.test_tokenizer import trained
from tests.text.test_vocab import sentencepiece_metadata
from tokenmill.text.detokenize import Detokenizer
from tokenmill.text.tokenizer import Tokenizer
from tokenmill.text.vocab import tokenizer_from_gguf


@pytest.fixture
def tokenizer():
    return Tokenizer(trained())


def ids_of(tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


def test_a_split_character_is_shown_when_it_is_whole(tokenizer):
    bytes_of_smile = [tokenizer.backend.token_to_id(token) for token in "ðŁĻĢ"]
    assert None not in bytes_of_smile
    detokenizer = Detokenizer(tokenizer)
    assert [detokenizer.push([token]) for token in bytes_of_smile] == ["", "", "", "🙀"]


def test_a_character_that_is_not_completed_is_shown_at_the_end(tokenizer):
    detokenizer = Detokenizer(tokenizer)
    assert detokenizer.push([tokenizer.backend.token_to_id("ð")]) == ""
    assert detokenizer.finish() == "\ufffd"


def test_text_that_could_become_a_stop_string_waits(tokenizer):
    detokenizer = Detokenizer(tokenizer, stop=["\n\nUser:"])
    assert detokenizer.push(ids_of(tokenizer, "hello")) == "hello"
    assert detokenizer.push(ids_of(tokenizer, "\n")) == ""
    assert detokenizer.push(ids_of(tokenizer, "\nUs")) == ""
    assert detokenizer.push(ids_of(tokenizer, "age")) == "\n\nUsage"
    assert detokenizer.finish() == ""
    assert detokenizer.stopped is None


def test_tokens_behind_the_match_are_ignored(tokenizer):
    ids = ids_of(tokenizer, "hello STOP there")
    detokenizer = Detokenizer(tokenizer, stop=["STOP"])
    assert detokenizer.push(ids) == "hello "
    assert detokenizer.stopped == "STOP"
    assert detokenizer.num_tokens_used == len(ids_of(tokenizer, "hello STOP"))
    assert detokenizer.push(ids) == detokenizer.finish() == ""


def test_the_stop_string_is_kept_when_asked_for(tokenizer):
    detokenizer = Detokenizer(tokenizer, stop=["STOP"], include_stop=True)
    assert detokenizer.push(ids_of(tokenizer, "hello STOP there")) == "hello STOP"


def test_special_tokens_are_no_text_unless_asked_for(tokenizer):
    ids = tokenizer.encode("a<|end|>b", add_special_tokens=False)
    detokenizer = Detokenizer(tokenizer)
    assert detokenizer.push(ids) + detokenizer.finish() == "ab"
    assert tokenizer.decode(ids, skip_special=False) == "a<|end|>b"


def test_the_window_that_is_decoded_stays_short(tokenizer):
    lengths = []
    decode = tokenizer.decode
    tokenizer.decode = lambda ids, **how: lengths.append(len(ids)) or decode(ids, **how)
    detokenizer = Detokenizer(tokenizer)
    for token in ids_of(tokenizer, "hello there world " * 50):
        detokenizer.push([token])
    assert max(lengths) <= 3


def test_bytes_that_never_become_a_character_are_shown_at_once(tokenizer):
    broken = tokenizer.backend.token_to_id("ÿ")  # 0xFF
    ids = [broken, tokenizer.backend.token_to_id("ð"), broken, *ids_of(tokenizer, " x")]
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.push([token]) for token in ids]
    assert pieces[:3] == ["\ufffd", "", "\ufffd\ufffd"]
    assert "".join(pieces) + detokenizer.finish() == tokenizer.decode(ids)


@pytest.mark.parametrize("seed", range(20))
def test_runs_of_byte_tokens_are_shown_as_they_are_decoded_together(seed, tmp_path_factory):
    tokenizer = tokenizer_from_gguf(sentencepiece_metadata(tmp_path_factory.mktemp("spm"))[0])
    numbers = random.Random(seed)
    a_byte = {byte: tokenizer.backend.token_to_id(f"<0x{byte:02X}>") for byte in range(256)}
    whole = [[a_byte[byte] for byte in text.encode()] for text in ("é", "🙀", "日本")]
    parts = [*whole, [a_byte[0xFF]], [a_byte[0xC3]], [a_byte[0xA9]], ids_of(tokenizer, " fox"), [1]]
    ids = [token for _ in range(12) for token in numbers.choice(parts)]
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.push([token]) for token in ids]
    assert "".join(pieces) + detokenizer.finish() == tokenizer.decode(ids)


def test_thousands_of_broken_bytes_are_decoded_in_short_windows(tokenizer):
    lengths, decode = [], tokenizer.decode
    tokenizer.decode = lambda ids, **how: lengths.append(len(ids)) or decode(ids, **how)
    detokenizer = Detokenizer(tokenizer)
    assert "".join(detokenizer.push([tokenizer.backend.token_to_id("ÿ")]) for _ in range(2000)) == "\ufffd" * 2000
    assert max(lengths) <= 3
