"""Tokenizers as GGUF metadata: every key by hand, and each kind of tokenizer that they cannot describe."""

import pytest
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from tests.gguf_files import vocabulary
from tokenmill.errors import CheckpointError
from tokenmill.text.gguf_vocab import gguf_of_tokenizer
from tokenmill.text.sentencepiece import BYTE, CONTROL, NORMAL, UNKNOWN, bpe_backend
from tokenmill.text.tokenizer import Tokenizer
from tokenmill.text.vocab import tokenizer_from_gguf

KEY = "tokenizer.ggml."
GIVEN = vocabulary()
TOKENS, MERGES = GIVEN[KEY + "tokens"], GIVEN[KEY + "merges"]
COUNT = len(TOKENS)
END = "<|endoftext|>"
CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
LLAMA_3 = CONTRACTION + r"|\s*[\r\n]+|\s+(?!\S)|\s+"


def byte_level(*added, ignores=False, pre=None, **tokenizer):
    """GPT-2's kind, with more added tokens, whose ids begin with 281."""
    merges = [tuple(merge.split()) for merge in MERGES]
    model = models.BPE({token: i for i, token in enumerate(TOKENS)}, merges, ignore_merges=ignores)
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = pre or pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([END])
    backend.add_tokens(list(added))
    return Tokenizer(backend, **{"eos_token_ids": [0]} | tokenizer)


def written(tokenizer, size=None, ends=()):
    """The keys without what stands before them."""
    found = gguf_of_tokenizer(tokenizer, tokenizer.num_tokens if size is None else size, ends)
    return {key.removeprefix(KEY): value for key, value in found.items()}


def refused(*given) -> str:
    with pytest.raises(CheckpointError) as raised:
        written(*given)
    return str(raised.value).removeprefix("the tokenizer cannot be written as GGUF: ")


def test_a_byte_level_tokenizer(caplog):
    assert written(byte_level()) == {
        "model": "gpt2",
        "tokens": TOKENS,
        "token_type": [3] + [1] * 280,
        "pre": "gpt-2",
        "merges": MERGES,
        "eos_token_id": 0,
        "add_bos_token": False,
        "add_eos_token": False,
    }
    assert not caplog.messages
    assert written(tokenizer_from_gguf(GIVEN)) == {key.removeprefix(KEY): value for key, value in GIVEN.items()} | {
        "add_bos_token": False,
        "add_eos_token": False,
    }


def test_rows_without_a_token_get_names_of_their_own():
    found = written(byte_level(), COUNT + 2)
    assert found["tokens"][COUNT:] == [f"[PAD{COUNT}]", f"[PAD{COUNT + 1}]"]
    assert found["token_type"][COUNT - 1 :] == [1, 5, 5]
    assert refused(byte_level(), COUNT - 1) == f"its ids go to {COUNT - 1}, and the embedding has {COUNT - 1} rows"


def test_types_of_added_tokens():
    tokenizer = byte_level(AddedToken("<mine>"), AddedToken("<theirs>", special=True))
    assert written(tokenizer)["token_type"][COUNT:] == [4, 3]


@pytest.mark.parametrize("flag", ["lstrip", "rstrip", "single_word"])
def test_added_tokens_that_take_spaces_are_warned_of(flag, caplog):
    tokens = [AddedToken(f"<mine{i}>", **{flag: True}) for i in range(6)]
    written(byte_level(AddedToken("<plain>"), *tokens))
    names = ", ".join(f"'<mine{i}>'" for i in range(5))
    said = "GGUF cannot say that added tokens take spaces beside them, or are whole words"
    assert caplog.messages == [f"{said}: {names}"]


def test_an_added_token_that_changes_a_probe_is_refused():
    said = refused(byte_level(AddedToken("<tag>", lstrip=True)))
    assert said.startswith("'a1b22c333d4444 _under_score camelCase <tag> http://x.y/z?q=1&r=2' is [")
    assert ", and would be read as [" in said


def test_texts_that_are_decoded_otherwise_are_refused():
    tokenizer = byte_level()
    tokenizer.backend.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip("H", 1, 0)])
    said = refused(tokenizer)
    assert '] is "ello world!' in said and ', and would be read as "Hello world!' in said


def test_kinds_that_are_not_written():
    unigram = tokenizers.Tokenizer(models.Unigram([("a", 0.0)]))
    assert refused(Tokenizer(unigram)) == "it is of kind Unigram, and only BPE and WordPiece can be written"
    ruled = byte_level(rules=object())
    assert refused(ruled) == "it changes characters or removes spaces, and GGUF has no keys for that"


def test_normalizers(caplog):
    tokenizer = byte_level()
    tokenizer.backend.normalizer = normalizers.NFC()
    assert written(tokenizer)["pre"] == "gpt-2"
    said = "GGUF cannot say that the tokenizer normalises texts to NFC: others give the same tokens as they are"
    assert caplog.messages == [said]
    tokenizer.backend.normalizer = normalizers.Lowercase()
    assert refused(tokenizer) == "its normalizer is Lowercase, and GGUF has no normalizer for byte-level tokens"


def sequence(*steps):
    return pre_tokenizers.Sequence(list(steps))


def split(regex, **how):
    return pre_tokenizers.Split(Regex(regex), **{"behavior": "isolated", "invert": False} | how)


LETTERS = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


@pytest.mark.parametrize(
    ("pre", "ignores", "name"),
    [
        (GPT2, False, "gpt-2"),
        (pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False), False, "gpt-2"),
        (sequence(sequence(GPT2)), False, "gpt-2"),
        (sequence(pre_tokenizers.Digits(individual_digits=True), GPT2), False, "smollm"),
        (sequence(split(r"\p{N}"), GPT2), False, "smollm"),
        (sequence(split(LLAMA_3), LETTERS), True, "llama-bpe"),
        (sequence(split(LLAMA_3), LETTERS), False, "dbrx"),
    ],
    ids=str,
)
def test_the_first_name_of_what_splits_alike(pre, ignores, name):
    assert written(byte_level(pre=pre, ignores=ignores))["pre"] == name


@pytest.mark.parametrize(
    ("pre", "ignores"),
    [
        (GPT2, True),
        (pre_tokenizers.ByteLevel(add_prefix_space=True), False),
        (LETTERS, False),
        (sequence(pre_tokenizers.Digits(individual_digits=False), GPT2), False),
        (sequence(split(r"\p{N}", behavior="removed"), GPT2), False),
        (sequence(split(r"\p{N}", invert=True), GPT2), False),
    ],
    ids=str,
)
def test_splits_that_have_no_name(pre, ignores):
    assert refused(byte_level(pre=pre, ignores=ignores)).startswith("none of the known pre-tokenizers (gpt-2, gpt2, ")


def test_a_tokenizer_that_splits_nothing_has_no_name():
    tokenizer = byte_level()
    tokenizer.backend.pre_tokenizer = pre_tokenizers.Sequence([])
    assert refused(tokenizer).endswith("splits as it does: []")


def around(tokenizer, single, *names):
    ids = [(name, tokenizer.backend.token_to_id(name)) for name in names]
    tokenizer.backend.post_processor = processors.TemplateProcessing(single=single, special_tokens=ids)
    return tokenizer


def special(tokenizer, ends=()):
    names = "bos_token_id eos_token_id eot_token_id eom_token_id unknown_token_id padding_token_id".split()
    found = written(tokenizer, None, ends)
    ids = {name.removesuffix("_token_id"): found[name] for name in names if name in found}
    return ids, found["add_bos_token"], found["add_eos_token"]


A, B, C = (AddedToken(name, special=True) for name in ("<a>", "<b>", "<c>"))


@pytest.mark.parametrize(
    ("single", "how", "wanted"),
    [
        ("$A", {"bos_token_id": 281}, ({"bos": 281, "eos": 0}, False, False)),
        ("<a> $A", {"bos_token_id": 281}, ({"bos": 281, "eos": 0}, True, False)),
        ("<a> $A", {}, ({"bos": 281, "eos": 0}, True, False)),
        (f"$A {END}", {}, ({"eos": 0}, False, True)),
        (f"<a> $A {END}", {"eos_token_ids": [0, 282]}, ({"bos": 281, "eos": 0, "eot": 282}, True, True)),
        ("$A", {"eos_token_ids": []}, ({}, False, False)),
        ("$A", {"eos_token_ids": [281, 282, 283]}, ({"eos": 281, "eot": 282, "eom": 283}, False, False)),
        ("$A", {"eos_token_ids": [281, 0, 282, 283]}, ({"eos": 281, "eot": 282, "eom": 283}, False, False)),
    ],
    ids=str,
)
def test_ids_and_what_is_put_around_a_text(single, how, wanted):
    tokenizer = around(byte_level(A, B, C, **how), single, *(name for name in ("<a>", END) if name in single))
    assert special(tokenizer) == wanted


@pytest.mark.parametrize(
    ("single", "how"),
    [
        ("<a> <b> $A", {}),
        ("<a> $A", {"bos_token_id": 282}),
        ("$A <a>", {}),
        ("$A <a>", {"eos_token_ids": []}),
        (f"$A {END} {END}", {}),
    ],
    ids=str,
)
def test_what_is_put_around_a_text_otherwise_is_refused(single, how):
    tokenizer = around(byte_level(A, B, C, **how), single, *(n for n in ("<a>", "<b>", END) if n in single))
    plain, whole = (tokenizer.encode("a", add_special_tokens=added) for added in (False, True))
    said = f"it encodes 'a' as {whole}, which is not {plain} between a token before and one after"
    assert refused(tokenizer) == said


def test_ends_beside_the_tokenizer_s_own():
    assert special(byte_level(A, B, C), [0, 281]) == ({"eos": 0, "eot": 281}, False, False)
    assert special(byte_level(A, B, C, eos_token_ids=[]), [281]) == ({"eos": 281}, False, False)
    tokenizer = byte_level(A, B, C, eos_token_ids=[5, 281, 282, 283])
    assert refused(tokenizer) == "4 tokens end a text, and GGUF has keys for 3"


def test_names_of_other_tokens_and_those_that_are_never_drawn():
    texts = {"unk_token": "<a>", "pad_token": "<b>", "sep_token": "<c>"}
    assert special(byte_level(A, B, C, special_texts=texts))[0] == {"eos": 0, "unknown": 281, "padding": 282}
    assert "suppress_tokens" not in written(byte_level())
    assert written(byte_level(suppressed_ids=[7, 9]))["suppress_tokens"] == [7, 9]
    templates = byte_level(chat_template="x", named_templates={"tool_use": "y"})
    found = gguf_of_tokenizer(templates, COUNT)
    assert (found["tokenizer.chat_template"], found["tokenizer.chat_template.tool_use"]) == ("x", "y")


LETTER_PIECES = ["▁", "a", "b", "c"]
MADE = ["ab", "▁ab", "bc"]


def sentencepiece(pieces=tuple(MADE), prefix="always", merges=None, **tokenizer):
    """Its BPE, of three letters and every byte: <unk>, <s>, </s>, bytes, letters, and what is made of them."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *LETTER_PIECES, *pieces]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * (len(tokens) - 259)]
    scores = [0.0] * 263 + [-float(i) for i in range(len(pieces))]
    backend = bpe_backend(tokens, types, scores, prefix)
    if merges is not None:
        vocabulary = {token: i for i, token in enumerate(tokens)}
        backend.model = models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    backend.add_special_tokens([AddedToken("<unk>"), AddedToken("<s>"), AddedToken("</s>")])
    settings = {"special_texts": {"unk_token": "<unk>"}, "bos_token_id": 1, "eos_token_ids": [2]}
    return around(Tokenizer(backend, **settings | tokenizer), "<s> $A", "<s>")


@pytest.mark.parametrize("prefix", ["always", "never"])
def test_a_sentencepiece_tokenizer(prefix):
    tokenizer = sentencepiece(prefix=prefix)
    found = written(tokenizer)
    assert found["model"] == "llama" and found["pre"] == "default" and "merges" not in found
    assert found["add_space_prefix"] is (prefix == "always")
    assert found["token_type"] == [2, 3, 3, *[6] * 256, *[1] * 7]
    assert found["scores"] == [-3.0] * 263 + [0.0, -1.0, -2.0], "the earlier a piece is made, the better"
    ids = {name: found[f"{name}_token_id"] for name in ("bos", "eos", "unknown")}
    assert ids == {"bos": 1, "eos": 2, "unknown": 0} and found["add_bos_token"] is True
    assert found["tokens"][259:] == [*LETTER_PIECES, *MADE]


def test_a_piece_that_is_made_in_two_ways_counts_once():
    found = written(sentencepiece(["ab", "bc", "abc"]))
    assert found["scores"][-3:] == [0.0, -1.0, -2.0]


def test_merges_in_another_order_than_their_pieces_are_refused():
    merges = [("a", "b"), ("b", "c"), ("ab", "c"), ("a", "bc")]
    said = refused(sentencepiece(["ab", "bc", "abc"], merges=merges))
    assert said == "its merges are not in the order of the tokens that they make"
