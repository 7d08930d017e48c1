"""Law 11: streamed pieces are the whole text, for every split of characters, tokens and stop strings."""

import shutil

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.text.test_tokenizer import trained, write
from tests.text.test_vocab import sentencepiece_metadata
from tests.tiny_models import FAMILY_NAMES, VOCABULARY, save
from tokenmill import load
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
    @given(ids=st.lists(st.integers(0, tokenizer.num_tokens - 1), max_size=20), cuts=CUTS, skips=st.booleans())
    def check(ids: list[int], cuts: list[int], skips: bool) -> None:
        assert stream(tokenizer, ids, cuts, skip_special=skips)[0] == tokenizer.decode(ids, skips)

    check()


def test_text_that_continues_a_prompt(tokenizer):
    """After a prompt that is text nothing of the answer is left out, not even sentencepiece's first space."""
    prompt = tokenizer.encode("the quick")

    @settings(max_examples=300, deadline=None)
    @given(text=TEXTS, cuts=CUTS)
    def check(text: str, cuts: list[int]) -> None:
        ids = tokenizer.encode(text, continues=True)
        shown = stream(tokenizer, ids, cuts, prompt=prompt)[0]
        assert shown == tokenizer.decode(ids, continues=True)
        assert tokenizer.decode(prompt) + shown == tokenizer.decode([*prompt, *ids])

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


def letters() -> tokenizers.Tokenizer:
    """As many tokens as the tiny models have: bytes of UTF-8 in an order that makes characters of several likely."""
    alphabet = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    spell = lambda data: "".join(text for text, _ in alphabet.pre_tokenize_str(data))  # noqa: E731
    smile = spell("🙂")
    tokens = [
        "<s>",
        *(spell(letter) for letter in "abcdefgh \n"),
        *smile,
        smile[:2],
        smile[2:],
        *spell("é"),
        spell("你"),
    ]
    tokens = list(dict.fromkeys(tokens))
    tokens += [spell(a + b) for a in "abcdefgh 🙂é" for b in "abcdefgh \né你ßxyzuvw"][: VOCABULARY - len(tokens)]
    assert len(set(tokens)) == VOCABULARY
    backend = tokenizers.Tokenizer(tokenizers.models.BPE({token: i for i, token in enumerate(tokens)}, []))
    backend.pre_tokenizer, backend.decoder = alphabet, tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(["<s>"])
    return backend


@pytest.fixture(scope="module")
def engines(models):
    """Per family an engine whose tokens come one by one, and two that have several in a step."""

    def engines(family: str) -> list:
        path = models / f"{family}-letters"
        if not path.exists():
            shutil.copytree(save(family, models), path)
            write(path, letters())
        shared = {"dtype": "float32", "max_length": 64, "threads": 1}
        return [load(path, speculate=how, **shared) for how in ("off", "suffix", "auto")]

    return engines


# Forced towards few tokens, a text repeats itself and is foreseen. The smile comes in halves, and in quarters.
BIAS = {"loop": {11: 14.0, 12: 14.0, 13: 14.0, 14: 14.0}, "halves": {15: 60.0, 16: 60.0, 2: 58.0}, "free": {}}
PROMPT = [1, 2, 15, 16, 3, 11, 12, 13, 14, 15, 16, 1, 2, 15, 16, 3]


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_a_stream_of_the_engine_is_the_text_of_its_tokens(family, engines):
    """However many tokens a step brings, pieces are the whole text: split characters, stop strings, special tokens."""
    one_by_one, *others = engines(family)
    longest = [0, 0, 0]
    for bias in BIAS.values():
        for temperature in (0.0, 0.7):
            asked = {"max_new_tokens": 30, "temperature": temperature, "seed": 3, "logit_bias": bias}
            free = one_by_one.generate(PROMPT, **asked)
            assert free.text == one_by_one.tokenizer.decode(free.tokens)
            stops = {free.text[at : at + size] for at, size in ((9, 3), (20, 2))} - {""}
            for stop in ([], *([stop] for stop in sorted(stops)), sorted(stops)):
                wanted = one_by_one.generate(PROMPT, stop=stop, **asked)
                for number, engine in enumerate((one_by_one, *others)):
                    pieces = list(engine.stream(PROMPT, stop=stop, **asked))
                    done = pieces[-1].done
                    assert (done.tokens, done.text) == (wanted.tokens, wanted.text)
                    assert "".join(piece.text for piece in pieces) == wanted.text
                    assert [token for piece in pieces for token in piece.tokens] == list(wanted.tokens)
                    longest[number] = max(longest[number], *(len(piece.tokens) for piece in pieces))
    assert longest[0] == 1
    assert longest[1] > 2  # else no step brought several
