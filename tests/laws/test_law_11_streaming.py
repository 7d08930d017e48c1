"""Law 11: streamed pieces are the whole text, for every split of characters, tokens and stop strings."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.text.test_tokenizer import trained
from tests.text.test_vocab import sentencepiece_metadata
from tokenmill.text.detokenize import Detokenizer
from tokenmill.text.tokenizer import Tokenizer
from tokenmill.text.vocab import tokenizer_from_gguf

CUTS = st.lists(st.integers(0, 60), max_size=5)
TEXTS = st.one_of(
    st.text(max_size=20),
    st.text(st.sampled_from("ab \n🙂é你👩‍👧e\u0301"), max_size=30),
    st.lists(st.sampled_from(["hello", " there", "STOP", "ST", "OP", " ", "\n\n", "🙂"]), max_size=12).map("".join),
)
STOPS = st.lists(st.sampled_from(["STOP", "OPS", "\n\n", "🙂", " there", "a", "ab", "bab", "é你"]), max_size=3)


@pytest.fixture(scope="module", params=["bytes", "sentencepiece"])
def tokenizer(request, tmp_path_factory):
    if request.param == "bytes":
        return Tokenizer(trained())
    return tokenizer_from_gguf(sentencepiece_metadata(tmp_path_factory.mktemp("spm"))[0])


def stream(tokenizer, ids, cuts, **options) -> tuple[str, Detokenizer]:
    """Push the ids in pieces; what was shown must be what `text` says."""
    detokenizer, shown, last = Detokenizer(tokenizer, **options), "", 0
    for cut in [*sorted(min(cut, len(ids)) for cut in cuts), len(ids)]:
        shown += detokenizer.push(ids[last:cut])
        last = max(last, cut)
    shown += detokenizer.finish()
    assert shown == detokenizer.text
    return shown, detokenizer


def first_match(text: str, stops: list[str]) -> tuple[int, int] | None:
    """Start and end of the match that is complete first, read character by character."""
    for end in range(len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            return min(starts), end
    return None


def test_text_in_any_split(tokenizer):
    @settings(max_examples=400, deadline=None)
    @given(text=TEXTS, cuts=CUTS)
    def check(text: str, cuts: list[int]) -> None:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert stream(tokenizer, ids, cuts)[0] == tokenizer.decode(ids)

    check()


def test_any_tokens_in_any_split(tokenizer):
    """Random ids: bytes that are no characters, special tokens in between."""

    @settings(max_examples=600, deadline=None)
    @given(ids=st.lists(st.integers(0, tokenizer.num_tokens - 1), max_size=20), cuts=CUTS)
    def check(ids: list[int], cuts: list[int]) -> None:
        assert stream(tokenizer, ids, cuts)[0] == tokenizer.decode(ids)

    check()


@pytest.mark.parametrize("include_stop", [False, True])
def test_stop_strings_in_any_split(tokenizer, include_stop):
    @settings(max_examples=400, deadline=None)
    @given(text=TEXTS, stops=STOPS, cuts=CUTS)
    def check(text: str, stops: list[str], cuts: list[int]) -> None:
        ids = tokenizer.encode(text, add_special_tokens=False)
        whole = tokenizer.decode(ids)
        shown, detokenizer = stream(tokenizer, ids, cuts, stop=stops, include_stop=include_stop)
        match = first_match(whole, stops)
        if match is None:
            assert shown == whole
            assert detokenizer.stopped is None
            assert detokenizer.num_tokens_used == len(ids)
        else:
            assert shown == whole[: match[1] if include_stop else match[0]]
            assert detokenizer.stopped == whole[slice(*match)]
            assert detokenizer.num_tokens_used == stream(tokenizer, ids, [], stop=stops)[1].num_tokens_used

    check()
