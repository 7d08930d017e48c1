"""Law 11: streamed pieces are the whole text, for every split of characters, tokens and stop strings.

Pieces of a session that is cut anywhere are those of one call.
"""

import codecs
import os
import random
import shutil
from dataclasses import replace

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.text.test_tokenizer import trained, write
from tests.text.test_vocab import sentencepiece_metadata
from tests.tiny_models import FAMILY_NAMES, VOCABULARY, save
from tokenmill import load
from tokenmill.text.detokenize import Detokenizer
from tokenmill.text.token_bytes import token_bytes
from tokenmill.text.tokenizer import Tokenizer
from tokenmill.text.vocab import tokenizer_from_gguf

EXAMPLES = int(os.environ.get("TOKENMILL_EXAMPLES", "20"))
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
    @settings(max_examples=4 * EXAMPLES, deadline=None)
    @given(text=TEXTS, cuts=CUTS)
    def check(text: str, cuts: list[int]) -> None:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert stream(tokenizer, ids, cuts)[0] == tokenizer.decode(ids)

    check()


def test_any_tokens_in_any_split(tokenizer):
    """Random ids: bytes that are no characters, special tokens in between."""

    @settings(max_examples=6 * EXAMPLES, deadline=None)
    @given(ids=st.lists(st.integers(0, tokenizer.num_tokens - 1), max_size=20), cuts=CUTS, skips=st.booleans())
    def check(ids: list[int], cuts: list[int], skips: bool) -> None:
        assert stream(tokenizer, ids, cuts, skip_special=skips)[0] == tokenizer.decode(ids, skips)

    check()


def test_text_that_continues_a_prompt(tokenizer):
    """After a prompt that is text nothing of the answer is left out, not even sentencepiece's first space."""
    prompt = tokenizer.encode("the quick")

    @settings(max_examples=3 * EXAMPLES, deadline=None)
    @given(text=TEXTS, cuts=CUTS)
    def check(text: str, cuts: list[int]) -> None:
        ids = tokenizer.encode(text, continues=True)
        shown = stream(tokenizer, ids, cuts, prompt=prompt)[0]
        assert shown == tokenizer.decode(ids, continues=True)
        assert tokenizer.decode(prompt) + shown == tokenizer.decode([*prompt, *ids])

    check()


@pytest.mark.parametrize("include_stop", [False, True])
def test_stop_strings_in_any_split(tokenizer, include_stop):
    @settings(max_examples=4 * EXAMPLES, deadline=None)
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


@pytest.mark.parametrize("include_stop", [False, True])
def test_until_min_tokens_no_stop_string_is_complete(tokenizer, include_stop):
    """vLLM's rule (v1/engine/detokenizer.py): a match must end in text that comes after that of the first tokens."""

    @settings(max_examples=3 * EXAMPLES, deadline=None)
    @given(text=TEXTS, stops=STOPS, cuts=CUTS, least=st.integers(0, 8))
    def check(text: str, stops: list[str], cuts: list[int], least: int) -> None:
        ids = tokenizer.encode(text, add_special_tokens=False)
        held = Detokenizer(tokenizer)
        held.push(ids[:least])
        free = len(held.text) if least < len(ids) else len(text) + 2
        whole = tokenizer.decode(ids)
        ends = [
            (end, end - len(stop), stop)
            for stop in stops
            for end in range(free + 1, len(whole) + 1)
            if whole[:end].endswith(stop)
        ]
        options = {"stop": stops, "include_stop": include_stop, "min_tokens": least}
        shown, detokenizer = stream(tokenizer, ids, cuts, **options)
        if not ends:
            assert (shown, detokenizer.stopped) == (whole, None)
        else:
            end, start, stop = min(ends)
            assert shown == whole[: end if include_stop else start]
            assert detokenizer.stopped == stop

    check()


def test_a_character_that_a_limit_cuts_is_left_out(tokenizer):
    @settings(max_examples=3 * EXAMPLES, deadline=None)
    @given(text=st.text(st.sampled_from("a é你🙂\ufffd"), max_size=8), cuts=CUTS, size=st.integers(0, 20))
    def check(text: str, cuts: list[int], size: int) -> None:
        ids = tokenizer.encode(text.replace("\ufffd", ""), add_special_tokens=False)[:size]
        detokenizer = Detokenizer(tokenizer)
        shown = detokenizer.push(ids) + detokenizer.finish(cut=True)
        assert shown == detokenizer.text
        assert "\ufffd" not in shown and text.replace("\ufffd", "").startswith(shown)
        assert tokenizer.decode(ids).rstrip("\ufffd").startswith(shown)
        longest = max((n for n in range(len(ids) + 1) if "\ufffd" not in tokenizer.decode(ids[:n])), default=0)
        assert shown.startswith(tokenizer.decode(ids[:longest]))

    check()


def test_text_goes_on_where_it_was_cut(tokenizer):
    @settings(max_examples=3 * EXAMPLES, deadline=None)
    @given(text=TEXTS, stops=STOPS, cuts=CUTS)
    def check(text: str, stops: list[str], cuts: list[int]) -> None:
        ids = tokenizer.encode(text, add_special_tokens=False)
        wanted, whole = stream(tokenizer, ids, [], stop=stops)
        detokenizer, shown, last = Detokenizer(tokenizer, stop=stops), "", 0
        for cut in [*sorted(min(cut, len(ids)) for cut in cuts), len(ids)]:
            detokenizer.go_on(stop=stops)
            shown, used = shown + detokenizer.push(ids[last:cut]), last + detokenizer.num_tokens_used
            last = max(last, cut)
            if detokenizer.stopped is not None:
                break
        shown += detokenizer.finish()
        assert (shown, detokenizer.stopped, used) == (wanted, whole.stopped, whole.num_tokens_used)

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


def without_a_begun_character(tokenizer, tokens):
    """The decoding of all tokens; Python's decoder says whether the last bytes begin a character."""
    utf8 = codecs.getincrementaldecoder("utf-8")("replace")
    utf8.decode(b"".join(token_bytes(tokenizer, token) for token in tokens if token not in tokenizer.special_ids))
    text = tokenizer.decode(tokens)
    return text.removesuffix("\ufffd") if utf8.getstate()[0] else text


@pytest.mark.parametrize("family", [*FAMILY_NAMES[:1], "gpt2", "mixtral"])
def test_a_stream_of_the_engine_is_the_text_of_its_tokens(family, engines):
    """However many tokens a step brings, pieces are the whole text: split characters, stop strings, special tokens."""
    one_by_one, *others = engines(family)
    longest = [0, 0, 0]
    for bias in BIAS.values():
        for temperature in (0.0, 0.7):
            asked = {"max_new_tokens": 30, "temperature": temperature, "seed": 3, "logit_bias": bias}
            free = one_by_one.generate(PROMPT, **asked)
            assert free.text == without_a_begun_character(one_by_one.tokenizer, free.tokens)
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


@pytest.mark.parametrize("family", FAMILY_NAMES[:1])
def test_a_session_that_is_cut_anywhere_says_what_one_call_says(family, engines, tmp_path):
    """With split characters, and with stop texts of which one call has the beginning and another the end."""
    rng, num_stopped, num_held = random.Random(5), 0, 0
    for engine in engines(family):
        for bias in BIAS.values():
            asked = {"temperature": 0.7, "seed": 3, "logit_bias": bias}
            free = engine.generate(PROMPT, max_new_tokens=30, **asked).text
            for stop in ([], [free[9:12]], [free[20:22], free[13:17]]):
                for include in (False, True) if stop else (False,):
                    how = {**asked, "stop": [each for each in stop if each], "include_stop": include}
                    with engine.session(PROMPT) as session:
                        wanted = session.generate(max_new_tokens=30, **how)
                    session, parts = engine.session(PROMPT), []
                    while not parts or (parts[-1].finish_reason == "length" and sum(len(d.tokens) for d in parts) < 30):
                        left = 30 - sum(len(done.tokens) for done in parts)
                        parts.append(session.generate(max_new_tokens=min(rng.choice([1, 1, 2, 3, 7]), left), **how))
                        num_held += parts[-1].text != engine.tokenizer.decode(parts[-1].tokens)
                        session = goes_on(session, rng.choice("nnnfso"), tmp_path / "x.kv", engine)
                    assert [token for done in parts for token in done.tokens] == list(wanted.tokens)
                    assert "".join(done.text for done in parts) == wanted.text
                    assert parts[-1].finish_reason == wanted.finish_reason
                    num_stopped += wanted.finish_reason == "stop"
                    session.close()
    assert num_stopped > 10 and num_held > 50


def goes_on(session, how: str, file, engine):
    """The same text: as it is, forked, taken back by a token that was more, or from a file."""
    if how == "n":
        return session
    if how == "f":
        other = session.fork()
    elif how == "s":
        length, other = len(session), session
        session.params, params = replace(session.params, stop=()), session.params
        session.generate(max_new_tokens=2)
        session.rewind(length)
        session.params = params
    else:
        session.save(file)
        other = engine.open_session(file)
    if other is not session:
        session.close()
    return other


def test_a_limit_within_a_character_puts_no_mark_into_the_text(engines):
    """And a session shows the character with the call that completes it, another prompt forgets it."""
    engine = engines("llama")[0]
    first, second = ({"max_new_tokens": 1, "logit_bias": {half: 100.0}} for half in (15, 16))
    assert engine.generate(PROMPT, **first).text == ""
    assert "".join(piece.text for piece in engine.stream(PROMPT, **first)) == ""
    with engine.session(PROMPT) as session:
        assert (session.generate(**first).text, session.generate(**second).text) == ("", "🙂")
        assert session.generate(**first).text == "" and "🙂" not in session.generate([1], **second).text


def test_a_stop_text_waits_for_the_first_tokens(engines):
    engine = engines("llama")[0]
    free = engine.generate(PROMPT, max_new_tokens=30, ignore_eos=True)
    stop = next(letter for letter in free.text if letter != "\ufffd")
    early = engine.generate(PROMPT, max_new_tokens=30, stop=stop)
    late = engine.generate(PROMPT, max_new_tokens=30, stop=stop, min_new_tokens=len(early.tokens) + 3)
    assert early.finish_reason == "stop" and len(late.tokens) > len(early.tokens) + 3
    assert late.tokens == free.tokens[: len(late.tokens)]
