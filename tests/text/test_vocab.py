"""Tokenizers inside GGUF files: split as llama.cpp splits, refused when incomplete or unknown."""

from types import SimpleNamespace

import pytest
import tokenizers
from tokenizers import models, normalizers

from tests.text.test_tokenizer import CORPUS, trained
from tokenmill.errors import CheckpointError
from tokenmill.text.gguf_vocab import gguf_of_tokenizer
from tokenmill.text.pre_tokenizers import PRE_TOKENIZERS
from tokenmill.text.sentencepiece import CONTROL, NORMAL, UNKNOWN, USER_DEFINED, add_tokens
from tokenmill.text.tokenizer import Tokenizer
from tokenmill.text.vocab import end_token_ids, has_vocabulary, tokenizer_from_gguf

TEXTS = ["Hello there", "  don't WE'LL\n\n x", "naïve 你好 🙂 12345.678", "a\tb\r\n"]


def metadata(**changes) -> dict:
    """The metadata that llama.cpp writes for the small byte-level tokenizer of the tokenizer tests."""
    import json

    model = json.loads(trained().to_str())["model"]
    tokens = [token for token, _ in sorted(model["vocab"].items(), key=lambda item: item[1])]
    values = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3, 3] + [1] * (len(tokens) - 3),
        "tokenizer.ggml.merges": [" ".join(pair) for pair in model["merges"]],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.eot_token_id": 2,
        "tokenizer.chat_template": "{{ messages }}",
    }
    values |= {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    return {key: value for key, value in values.items() if value is not None}


def test_a_byte_level_vocabulary_gives_the_ids_of_the_tokenizer_it_came_from():
    ours, theirs = tokenizer_from_gguf(metadata()), trained()
    for text in [*TEXTS, *CORPUS[:4], "<s>x</s>"]:
        assert ours.encode(text) == theirs.encode(text).ids
        assert ours.decode(ours.encode(text), skip_special=False) == text
    assert ours.bos_token_id == 0
    assert ours.eos_token_ids == (1, 2)
    assert ours.special_texts == {"bos_token": "<s>", "eos_token": "</s>"}
    assert ours.chat_template == "{{ messages }}"


def test_named_chat_templates_are_read_and_written():
    keys = {"tokenizer.chat_template.tool_use": "tools", "tokenizer.chat_templates": ["tool_use"]}
    ours = tokenizer_from_gguf(metadata() | keys)
    assert (ours.chat_template, ours.named_templates) == ("{{ messages }}", {"tool_use": "tools"})
    written = gguf_of_tokenizer(ours, ours.num_tokens)
    assert {key: value for key, value in written.items() if "template" in key} == {
        "tokenizer.chat_template": "{{ messages }}",
        **keys,
    }
    with pytest.raises(CheckpointError, match=r"tokenizer\.chat_template\.tool_use = 5"):
        tokenizer_from_gguf(metadata() | {"tokenizer.chat_template.tool_use": 5})


def test_begin_of_text_is_added_where_the_file_says_so():
    assert tokenizer_from_gguf(metadata(add_bos_token=True)).encode("hello")[0] == 0
    assert tokenizer_from_gguf(metadata(add_bos_token=False)).encode("hello")[0] != 0
    assert tokenizer_from_gguf(metadata(add_eos_token=True)).encode("hello")[-1] == 1


BEGINS = "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano tekken chameleon".split()


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_some_vocabularies_begin_a_text_where_the_file_does_not_say(pre):
    """Files of 2024 name the pre-tokenizer and have no add_bos_token; llama.cpp adds the token for these names."""
    first = tokenizer_from_gguf(metadata(pre=pre)).encode("hello")[0]
    assert (first == 0) == (pre in BEGINS)
    assert tokenizer_from_gguf(metadata(pre=pre, add_bos_token=False)).encode("hello")[0] != 0


@pytest.mark.parametrize("name", ["<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "</s>"])
def test_control_tokens_of_a_well_known_spelling_end_a_text(name):
    values = metadata(eos_token_id=None, eot_token_id=None)
    values["tokenizer.ggml.tokens"] = ["<s>", "<end>", name, *values["tokenizer.ggml.tokens"][3:]]
    assert tokenizer_from_gguf(values).eos_token_ids == (2,)
    assert end_token_ids(values | {"tokenizer.ggml.eos_token_id": 7}) == [7, 2]
    values["tokenizer.ggml.token_type"] = [1] * len(values["tokenizer.ggml.tokens"])
    assert tokenizer_from_gguf(values).eos_token_ids == ()  # letters that happen to be there, as in Qwen's `</s>`


# Pieces before merging, from the regular expressions in llama.cpp's llama-vocab.cpp applied by hand.
SPLITS = {
    "gpt-2": ["I", " paid", " 12345", " dollars", "!!", " don", "'t", " ask"],
    "smollm": ["I", " paid", " ", "1", "2", "3", "4", "5", " dollars", "!!", " don", "'t", " ask"],
    "llama-bpe": ["I", " paid", " ", "123", "45", " dollars", "!!", " don", "'t", " ask"],
    **{
        name: ["I", " paid", " ", "1", "2", "3", "4", "5", " dollars", "!!", " don", "'t", " ask"]
        for name in ("qwen2", "seed-coder", "tekken", "kormo")
    },
    **{
        name: ["I", " paid", " ", "123", "45", " dollars", "!!", " don", "'t", " ask"]
        for name in ("falcon3", "glm4", "deepseek-v3")
    },
    "gpt-4o": ["I", " paid", " ", "123", "45", " dollars", "!!", " don't", " ask"],
    "deepseek-llm": ["I", " paid", " ", "12345", " dollars", "!!", " don", "'", "t", " ask"],
    "deepseek-coder": ["I", " paid", " ", "1", "2", "3", "4", "5", " dollars", "!!", " don", "'", "t", " ask"],
    "falcon": ["I", " paid", " ", "123", "45", " dollars", "!!", " don", "'", "t", " ask"],
    "default": ["I", " paid", " ", "123", "45", " dollars", "!!", " don", "'", "t", " ask"],
    "superbpe": ["I paid ", "12", "345", " dollars!! don't ask"],
    "bloom": ["I", " paid", " 12345", " dollars", "!!", " don't", " ask"],
}


@pytest.mark.parametrize("pre", SPLITS)
def test_texts_are_split_as_the_name_of_the_pre_tokenizer_says(pre):
    text = "I paid 12345 dollars!! don't ask"
    pieces = [text[a:b] for _, (a, b) in PRE_TOKENIZERS[pre].build().pre_tokenize_str(text)]
    assert pieces == SPLITS[pre]


def test_tekken_splits_words_by_case_in_every_script():
    """The original does not take É for a letter of both cases, as llama.cpp's own form of the expression does."""
    pieces = [piece for piece, _ in PRE_TOKENIZERS["tekken"].build().pre_tokenize_str("camelCase étéÉté")]
    assert pieces == ["camel", "Case", "ĠÃ©tÃ©", "ÃītÃ©"]


def test_a_byte_level_vocabulary_without_a_pre_tokenizer_is_split_as_llama_cpp_does(caplog):
    tokenizer = tokenizer_from_gguf(metadata(pre=None))
    assert "tokenizer.ggml.pre is missing" in caplog.text
    for text in TEXTS:
        assert tokenizer.encode(text) == tokenizer_from_gguf(metadata(pre="default")).encode(text)


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_every_known_pre_tokenizer_can_be_built(pre):
    tokenizer = tokenizer_from_gguf(metadata(pre=pre))
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("name", ["<|a b|>", "$A", "$0", "a:1", "a:b"])
def test_a_token_of_any_text_can_begin_a_text(name):
    values = metadata(add_bos_token=True)
    values["tokenizer.ggml.tokens"] = [name, *values["tokenizer.ggml.tokens"][1:]]
    tokenizer = tokenizer_from_gguf(values)
    assert tokenizer.encode("fox") == [0, *tokenizer.encode("fox", add_special_tokens=False)]


def sentencepiece_metadata(tmp_path) -> tuple[dict, "object"]:
    import sentencepiece

    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(CORPUS))
    prefix = str(tmp_path / "spm")
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus), model_prefix=prefix, vocab_size=320, model_type="bpe", byte_fallback=True,
        hard_vocab_limit=False, minloglevel=2, normalization_rule_name="identity", remove_extra_whitespaces=False,
    )  # fmt: skip
    model = sentencepiece.SentencePieceProcessor(model_file=prefix + ".model")
    ids = range(model.get_piece_size())
    kinds = [2 if model.is_unknown(i) else 3 if model.is_control(i) else 6 if model.is_byte(i) else 1 for i in ids]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [model.id_to_piece(i) for i in ids],
        "tokenizer.ggml.scores": [model.get_score(i) for i in ids],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }, model


def test_a_sentencepiece_vocabulary_gives_sentencepieces_own_ids(tmp_path):
    values, model = sentencepiece_metadata(tmp_path)
    ours = tokenizer_from_gguf(values)
    for text in [*TEXTS, *CORPUS[:4], "fox  fox", "unseen ☃ snowman"]:
        assert ours.encode(text) == [1, *model.encode(text)]
        assert ours.decode(ours.encode(text)) == text


def without(values: dict, *names: str) -> dict:
    return {key: value for key, value in values.items() if key.removeprefix("tokenizer.ggml.") not in names}


def test_a_sentencepiece_vocabulary_that_names_nothing_has_llama_cpps_defaults(tmp_path):
    """The vocabulary begins with 1, ends with 2, has 0 for what is unknown; byte tokens stay bytes without types."""
    values, _ = sentencepiece_metadata(tmp_path)
    whole = tokenizer_from_gguf(values)
    bare = without(values, "bos_token_id", "eos_token_id", "unknown_token_id", "token_type")
    for given in (bare, bare | {"tokenizer.ggml.token_type": values["tokenizer.ggml.token_type"]}):
        ours = tokenizer_from_gguf(given)
        assert (ours.bos_token_id, ours.eos_token_ids) == (1, (2,))
        assert ours.special_texts == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
        assert ours.special_ids == {0, 1, 2}
        for text in [*TEXTS, "unseen ☃", "a</s>b<unk>c", "<0x0A>"]:
            assert ours.encode(text) == whole.encode(text)
            assert ours.decode(ours.encode(text), skip_special=False) == whole.decode(
                whole.encode(text), skip_special=False
            )
    assert end_token_ids(bare) == [2]


def test_ends_are_known_by_their_spelling_where_a_file_has_no_types():
    values = without(metadata(), "token_type", "eos_token_id", "eot_token_id", "bos_token_id")
    values["tokenizer.ggml.tokens"] = ["<s>", "<end>", "<|im_end|>", *values["tokenizer.ggml.tokens"][3:]]
    tokenizer = tokenizer_from_gguf(values)
    assert (tokenizer.eos_token_ids, tokenizer.special_ids, tokenizer.bos_token_id) == ((2,), {2}, None)


def test_a_mark_of_known_spelling_is_control_and_html_is_not():
    values = metadata(eos_token_id=None, eot_token_id=None)
    values["tokenizer.ggml.token_type"] = [4, 4, 4, *values["tokenizer.ggml.token_type"][3:]]
    values["tokenizer.ggml.tokens"] = ["<fim_prefix>", "</s>", "<|im_end|>", *values["tokenizer.ggml.tokens"][3:]]
    tokenizer = tokenizer_from_gguf(values | {"tokenizer.ggml.bos_token_id": 0})
    assert (tokenizer.eos_token_ids, tokenizer.special_ids) == ((2,), {0, 2})
    parts = ["<|return|>", "<|call|>", "<|end|>"]
    values["tokenizer.ggml.tokens"] = [*parts, *values["tokenizer.ggml.tokens"][3:]]
    assert tokenizer_from_gguf(values).eos_token_ids == (0, 1)


def test_what_llama_cpp_takes_in_a_vocabulary_is_taken(caplog):
    values = metadata(padding_token_id=32000, scores=[0.0] * 400)
    tokens = list(values["tokenizer.ggml.tokens"])
    values |= {"tokenizer.ggml.tokens": [*tokens, ""], "tokenizer.ggml.token_type": [3] * 3 + [1] * 500}
    tokenizer = tokenizer_from_gguf(values)
    assert "padding_token_id is 32000, which is no token of 330" in caplog.text
    assert "pad_token" not in tokenizer.special_texts
    assert tokenizer.spellings[329] == "[EMPTY_329]"
    assert not has_vocabulary({"tokenizer.ggml.model": "none"})
    assert not has_vocabulary({})
    phi = tokenizer_from_gguf(metadata() | {"general.name": "Phi-3-mini"})
    assert phi.encode("x</s>  y") == phi.encode("x</s>y") != tokenizer_from_gguf(metadata()).encode("x</s>  y")


def test_tokens_that_a_file_suppresses_are_known_by_their_ids():
    assert tokenizer_from_gguf(metadata(suppress_tokens=[7, 9, 7, 4000])).suppressed_ids == (7, 9)


def test_the_special_tokens_of_a_vocabulary_are_added_at_once():
    """Each call builds the automaton of all added tokens anew: one by one, Gemma 3's 6,000 took eight seconds."""
    calls = []
    backend = SimpleNamespace(add_tokens=calls.append)
    add_tokens(backend, ["a", "<b>", "<c>", "<d>"], [NORMAL, CONTROL, USER_DEFINED, UNKNOWN])
    assert [[(token.content, token.special) for token in call] for call in calls] == [
        [("<b>", True), ("<c>", False), ("<d>", True)]
    ]


def test_spelling_a_control_token_in_pieces_does_not_make_it(tmp_path):
    """sentencepiece merges no pieces into control, unknown and byte tokens, whatever their spelling."""
    values, model = sentencepiece_metadata(tmp_path)
    tokens = [*values["tokenizer.ggml.tokens"], "</", "s>", "<0", "x0A>"]
    values |= {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [*values["tokenizer.ggml.scores"], -1.0, -1.0, -1.0, -1.0],
        "tokenizer.ggml.token_type": [*values["tokenizer.ggml.token_type"], 1, 1, 1, 1],
    }
    control = model.piece_to_id("</s>")
    ours = tokenizer_from_gguf(values)
    ours.backend.encode_special_tokens = True
    assert control not in ours.encode("x</s>", add_special_tokens=False)
    assert model.piece_to_id("<0x0A>") not in ours.encode("x<0x0A>", add_special_tokens=False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "rwkv"}, "tokenizer.ggml.model = 'rwkv' .*'gpt2', 'llama'"),
        ({"model": None}, "no 'tokenizer.ggml.model', which is required"),
        ({"model": ["gpt2"]}, "tokenizer.ggml.model = .'gpt2'."),
        ({"pre": ["gpt-2"]}, "tokenizer.ggml.pre = .'gpt-2'."),
        ({"token_type": ["x"] * 329}, r"tokenizer.ggml.token_type = \['x', .* is not allowed: 329 numbers"),
        (
            {"model": "llama", "scores": [float("nan")] * 329},
            r"tokenizer.ggml.scores = \[nan, .* is not allowed: 329 numbers",
        ),
        ({"bos_token_id": True}, "bos_token_id = True"),
        ({"add_bos_token": "yes"}, "add_bos_token = 'yes'"),
        ({"novel_key": 3}, "keys that tokenmill does not know: tokenizer.ggml.novel_key = 3"),
        ({"suppress_tokens": "x"}, "suppress_tokens = 'x'"),
        ({"pre": "novel"}, "tokenizer.ggml.pre = 'novel' .*llama-bpe"),
        ({"tokens": None}, "no 'tokenizer.ggml.tokens', which is required"),
        ({"tokens": [1, 2]}, r"tokenizer.ggml.tokens = \[1, 2\] is not allowed: a list of str values"),
        ({"tokens": ["a", "a"], "token_type": [1, 1]}, "names a token twice"),
        ({"token_type": [1, 2]}, r"tokenizer.ggml.token_type = \[1, 2\] is not allowed: 329 numbers"),
        ({"merges": None}, "no 'tokenizer.ggml.merges', which is required"),
        ({"merges": ["a nothing"]}, "merges holds 'a nothing'"),
        ({"merges": ["lonely"]}, "merges holds 'lonely'"),
        ({"eos_token_id": 350}, "eos_token_id = 350 is not allowed: a whole number from 0 to 328"),
        ({"bos_token_id": "x"}, "bos_token_id = 'x'"),
        ({"model": "llama", "scores": [1.0]}, r"tokenizer.ggml.scores = \[1.0\] is not allowed: 329 numbers"),
        ({"token_type": 7}, "tokenizer.ggml.token_type = 7 is not allowed: 329 numbers"),
        ({"tokens": ["a" * 2_000_000], "token_type": [1]}, "the longest has 2000000 characters"),
        ({"tokens": [], "token_type": []}, "the longest has 0 characters"),
        (
            {"model": "llama", "tokens": ["a" * 2_000_000], "token_type": [1], "scores": [0.0]},
            "the longest has 2000000",
        ),
    ],
)
def test_incomplete_or_unknown_vocabularies_are_refused(changes, message):
    with pytest.raises(CheckpointError, match=message) as caught:
        tokenizer_from_gguf(metadata(**changes))
    assert "\n" not in str(caught.value)


@pytest.mark.model
def test_the_real_vocabulary(real_model):
    from tokenmill.weights.checkpoint import open_checkpoint

    tokenizer = open_checkpoint(real_model).tokenizer()
    assert isinstance(tokenizer, Tokenizer)
    assert isinstance(tokenizer.backend, tokenizers.Tokenizer)
    assert tokenizer.num_tokens == 49152
    assert tokenizer.eos_token_ids == (2, 0, 4)  # <|im_end|>, <|endoftext|>, and <reponame> as in llama.cpp
    assert tokenizer.encode("Why is the sky blue?") == [4898, 314, 260, 6376, 4461, 47]
    assert [tokenizer.decode([i]) for i in tokenizer.encode("1234")] == ["1", "2", "3", "4"]
    for text in ["héllo wörld 你好 🙂👩‍👩‍👧", "def f(x):\n\treturn x  # 12.5%", "<|im_start|>user\nhi<|im_end|>"]:
        assert tokenizer.decode(tokenizer.encode(text), skip_special=False) == text


def test_a_token_of_the_user_is_its_own_text():
    """Byte-level decoding takes é for a byte; llama.cpp copies the text of such a token."""
    values = metadata()
    names = ["<é>", "naïve", "ÿÿ"]
    values["tokenizer.ggml.tokens"] = [*values["tokenizer.ggml.tokens"], *names]
    values["tokenizer.ggml.token_type"] = [*values["tokenizer.ggml.token_type"], *[USER_DEFINED] * 3]
    tokenizer = tokenizer_from_gguf(values)
    text = "hello <é> ÿÿ there naïve é"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert {tokenizer.backend.token_to_id(name) for name in names} <= set(ids)
    assert tokenizer.decode(ids) == text


def test_a_token_of_the_user_is_its_own_text_among_pieces(tmp_path):
    values, _ = sentencepiece_metadata(tmp_path)
    values["tokenizer.ggml.tokens"] = [*values["tokenizer.ggml.tokens"], "<é>"]
    values["tokenizer.ggml.token_type"] = [*values["tokenizer.ggml.token_type"], USER_DEFINED]
    values["tokenizer.ggml.scores"] = [*values["tokenizer.ggml.scores"], 0.0]
    tokenizer = tokenizer_from_gguf(values)
    ids = tokenizer.encode("a <é>", add_special_tokens=False)
    assert len(values["tokenizer.ggml.tokens"]) - 1 in ids
    assert tokenizer.decode(ids) == "a <é>"


def test_the_vocabulary_of_gemma_4_has_merges_of_letters():
    """Its tokenizer.json, as llama.cpp's converter stores it: no bytes but for letters that no token has."""
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    letters = ["▁", "a", "b", "é", "\n"]
    merges = [("▁", "a"), ("a", "b"), ("▁a", "b"), ("\n", "\n"), ("\n\n", "\n")]
    tokens += letters + ["".join(pair) for pair in merges]
    original = tokenizers.Tokenizer(
        models.BPE(
            {token: number for number, token in enumerate(tokens)},
            merges,
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    original.normalizer = normalizers.Replace(" ", "▁")
    metadata = {
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3, 3, 2, *[6] * 256, *[1] * (len(tokens) - 260)],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in merges],
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
    }
    tokenizer = tokenizer_from_gguf(metadata)
    for text in ("ab ab", " a  b", "é\n\n\nab", "ü😀", "aab b", "\n\n"):
        ids = tokenizer.encode(text)
        assert ids == [2, *original.encode(text).ids]
        assert tokenizer.decode(ids[1:]) == text
    with pytest.raises(CheckpointError, match="merges holds 'x y', whose parts are no tokens"):
        tokenizer_from_gguf({**metadata, "tokenizer.ggml.merges": ["x y"]})
