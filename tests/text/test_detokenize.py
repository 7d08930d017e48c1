"""The detokenizer, by example: what is held back, and until when."""

import random

import pytest
import tokenizers

from tests.text.test_gguf_vocab import sentencepiece
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


# ---- every rule against what is written down here, over texts of few letters


def expected(tokenizer, ids, stops, min_tokens, include_stop):
    """Text, stop string and number of tokens: of the match that ends first beyond the free tokens, or the longest."""
    texts = [tokenizer.decode(ids[:count]) for count in range(len(ids) + 1)]
    whole, free = texts[-1], len(texts[min(min_tokens, len(ids))])
    matches = [
        (start + len(stop), start, stop)
        for stop in stops
        for start in range(len(whole))
        if whole.startswith(stop, start) and start + len(stop) > free
    ]
    if not matches:
        return whole, None, len(ids)
    end, start, stop = min(matches)
    count = next(count for count, text in enumerate(texts) if len(text) >= end)
    return whole[: end if include_stop else start], stop, count


@pytest.mark.parametrize("seed", range(300))
def test_stop_strings_as_they_are_described(seed, tokenizer):
    numbers = random.Random(seed)
    words = ["a", "b", "ab", " ", "he", "the", "hello"]
    ids = [numbers.choice(ids_of(tokenizer, numbers.choice(words))) for _ in range(numbers.randrange(12))]
    stops = ["".join(numbers.choices("abhe", k=numbers.randrange(1, 4))) for _ in range(numbers.randrange(4))]
    how = {"min_tokens": numbers.randrange(4), "include_stop": numbers.random() < 0.5}
    detokenizer, pieces, at = Detokenizer(tokenizer, stop=stops, **how), [], 0
    while at < len(ids):
        size = numbers.randrange(1, 4)
        pieces.append(detokenizer.push(ids[at : at + size]))
        assert not any(
            detokenizer.text.endswith(stop) for stop in stops if not how["include_stop"] and not how["min_tokens"]
        )
        at += size
    pieces.append(detokenizer.finish())
    text, stopped, count = expected(tokenizer, ids, stops, **how)
    assert ("".join(pieces), detokenizer.stopped, detokenizer.num_tokens_used) == (text, stopped, count)
    assert detokenizer.text == text and detokenizer.has_stops == bool(stops)


def letters(tokenizer, text):
    """A token for each letter."""
    found = [tokenizer.backend.token_to_id(letter) for letter in text]
    assert None not in found
    return found


@pytest.mark.parametrize(
    ("text", "stops", "held"),
    [
        ("xabc", ["abcd"], ["x", "", "", ""]),
        ("xabx", ["abcd"], ["x", "", "", "abx"]),
        ("aab", ["aabb"], ["", "", ""]),
        ("aaab", ["aabb"], ["", "", "a", ""]),
        ("ab", ["b"], ["a", ""]),
        ("abcx", ["bcd", "cd"], ["a", "", "", "bcx"]),
    ],
)
def test_what_is_held_back_is_the_longest_beginning_of_a_stop_string(tokenizer, text, stops, held):
    detokenizer = Detokenizer(tokenizer, stop=stops)
    assert [detokenizer.push([token]) for token in letters(tokenizer, text)] == held


def test_the_first_tokens_stop_nothing(tokenizer):
    ids = letters(tokenizer, "abab")
    for min_tokens, text, count in ((0, "", 2), (1, "", 2), (2, "ab", 4), (3, "ab", 4), (4, "abab", 4)):
        detokenizer = Detokenizer(tokenizer, stop=["ab"], min_tokens=min_tokens)
        assert detokenizer.push(ids) + detokenizer.finish() == text, min_tokens
        assert (detokenizer.stopped, detokenizer.num_tokens_used) == ("ab" if min_tokens < 4 else None, count)


def test_a_text_goes_on_with_what_was_held_back(tokenizer):
    detokenizer = Detokenizer(tokenizer, stop=["STOP"])
    smile = [tokenizer.backend.token_to_id(token) for token in "ðŁĻĢ"]
    assert detokenizer.push([*letters(tokenizer, "aST"), *smile[:2]]) == "a"
    detokenizer.go_on(stop=["x"], include_stop=True)
    assert (detokenizer.text, detokenizer.num_tokens_used, detokenizer.has_stops) == ("", 0, True)
    assert detokenizer.push([*smile[2:], *letters(tokenizer, "xy")]) == "ST🙀x"
    assert (detokenizer.stopped, detokenizer.num_tokens_used) == ("x", 3)
    detokenizer.go_on()
    assert detokenizer.stopped is None and detokenizer.has_stops is False
    assert detokenizer.push(letters(tokenizer, "z")) == "z", "what came behind the match was not taken in"


def test_special_tokens_count_and_have_no_text(tokenizer):
    ids = tokenizer.encode("a<|end|>b", add_special_tokens=False)
    detokenizer = Detokenizer(tokenizer)
    assert [detokenizer.push([token]) for token in ids] == ["a", "", "b"] and detokenizer.num_tokens_used == 3
    shown = Detokenizer(tokenizer, skip_special=False)
    assert "".join(shown.push([token]) for token in ids) == "a<|end|>b"
    some = Detokenizer(tokenizer, shown=[ids[1]])
    assert "".join(some.push([token]) for token in ids) == "a<|end|>b"
    others = Detokenizer(tokenizer, shown=[ids[0]])
    assert "".join(others.push([token]) for token in ids) == "ab"


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("before", ["", "é", "hello "])
def test_a_character_that_was_cut_is_left_out_when_that_is_asked_for(tokenizer, count, before):
    smile = [tokenizer.backend.token_to_id(token) for token in "ðŁĻĢ"]
    detokenizer = Detokenizer(tokenizer)
    shown = detokenizer.push([*ids_of(tokenizer, before), *smile[:count]])
    assert shown + detokenizer.finish(cut=True) == before + "🙀" * (count == 4)
    again = Detokenizer(tokenizer)
    shown = again.push([*ids_of(tokenizer, before), *smile[:count]])
    assert shown + again.finish() == before + ("🙀" if count == 4 else "\ufffd" * bool(count))


@pytest.fixture(scope="module")
def of_bytes(tmp_path_factory):
    """A sentencepiece vocabulary, whose bytes are decoded together."""
    return tokenizer_from_gguf(sentencepiece_metadata(tmp_path_factory.mktemp("spm"))[0])


def byte_ids(tokenizer, *parts: bytes):
    return [tokenizer.backend.token_to_id(f"<0x{byte:02X}>") for part in parts for byte in part]


SMILE = "🙀".encode()


@pytest.mark.parametrize(
    ("parts", "pieces", "cut", "whole"),
    [
        (["é".encode()], ["", ""], "é", "é"),
        (["é".encode(), SMILE[:1]], [""] * 3, "é", "\ufffd" * 3),
        (["é".encode(), SMILE[:3]], [""] * 5, "é", "\ufffd" * 5),
        ([SMILE, SMILE[:2]], [""] * 6, "🙀", "\ufffd" * 6),
        ([SMILE[:2]], ["", ""], "", "\ufffd" * 2),
        ([b"\xff"], ["\ufffd"], "", ""),
        ([b"\xff", SMILE[:2]], ["\ufffd"] * 3, "", ""),
        (["é".encode(), b"\xff"], ["", "", "\ufffd" * 3], "", ""),
        ([b"\xc3", b"A"], ["", "\ufffd" * 2], "", ""),
    ],
    ids=str,
)
def test_runs_of_bytes(of_bytes, parts, pieces, cut, whole):
    """Bytes that are no UTF-8 are a mark each; a run that may yet become characters is held back."""
    ids = byte_ids(of_bytes, *parts)
    for is_cut, wanted in ((True, cut), (False, whole)):
        detokenizer = Detokenizer(of_bytes)
        assert [detokenizer.push([token]) for token in ids] == pieces
        assert detokenizer.finish(cut=is_cut) == wanted


def test_a_run_of_bytes_ends_with_the_next_word(of_bytes):
    fox = ids_of(of_bytes, "fox")
    detokenizer = Detokenizer(of_bytes)
    assert detokenizer.push(byte_ids(of_bytes, "é".encode())) == ""
    assert detokenizer.push(fox) == "é fox"
    assert detokenizer.push(byte_ids(of_bytes, SMILE[:2])) == ""
    assert detokenizer.push(fox) == "\ufffd\ufffd fox"
    assert detokenizer.push(byte_ids(of_bytes, b"\xff")) == "\ufffd"
    assert detokenizer.push(byte_ids(of_bytes, "é".encode())) == "\ufffd\ufffd", "one broken byte breaks the run"
    assert detokenizer.push([*fox, *byte_ids(of_bytes, "é".encode()), *fox]) == " foxé fox"


def test_the_first_word_keeps_its_space_after_a_text(of_bytes):
    fox = ids_of(of_bytes, "fox")
    assert Detokenizer(of_bytes).push(fox) == "fox"
    assert Detokenizer(of_bytes, prompt=[1]).push(fox) == "fox", "a special token is no text"
    assert Detokenizer(of_bytes, prompt=fox).push(fox) == " fox"
    assert Detokenizer(of_bytes).push([]) == "" == Detokenizer(of_bytes).finish()


def test_of_matches_in_one_token_the_one_that_ends_first_wins(tokenizer):
    (the,) = ids_of(tokenizer, "the")
    for stops in (["he", "h"], ["h", "he"]):
        detokenizer = Detokenizer(tokenizer, stop=stops)
        assert (detokenizer.push([the]), detokenizer.stopped) == ("t", "h")


def test_without_settings_the_first_token_may_end_a_text(tokenizer):
    detokenizer = Detokenizer(tokenizer, stop=["a"])
    for _ in range(2):
        assert detokenizer.push(letters(tokenizer, "a")) == "" and detokenizer.stopped == "a"
        detokenizer.go_on(stop=["a"])


def test_a_mark_that_is_a_piece_is_shown_at_once():
    """Of a vocabulary with byte tokens; one without them says nothing of what its marks may become."""
    tokenizer = sentencepiece(["\ufffd"])
    detokenizer = Detokenizer(tokenizer, prompt=letters(tokenizer, "a"))
    assert detokenizer.push([tokenizer.backend.token_to_id("\ufffd")]) == "\ufffd"
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"\ufffd": 0, "b": 1}, unk_token="b"))
    held = Detokenizer(Tokenizer(words))
    assert held.push([0]) == "" and held.push([1]) == "\ufffd b"
