"""Tokenizers inside GGUF files: split as llama.cpp splits, refused when incomplete or unknown."""

import pytest
import tokenizers

from tests.text.test_tokenizer import CORPUS, trained
from tokenmill.errors import CheckpointError
from tokenmill.text.gguf_vocab import gguf_of_tokenizer
from tokenmill.text.tokenizer import Tokenizer
from tokenmill.text.vocab import PRE_TOKENIZERS, end_token_ids, tokenizer_from_gguf

TEXTS = ["Hello there", "  don't WE'LL\n\n x", "naïve 你好 🙂 12345.678", "a\tb\r\n"]


def metadata(**changes) -> dict:
    """What llama.cpp writes for the small byte-level tokenizer of the tokenizer tests."""
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


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_llama_3_begins_a_text_where_the_file_does_not_say(pre):
    """Files of 2024 name the pre-tokenizer and have no add_bos_token; llama.cpp adds the token for these names."""
    first = tokenizer_from_gguf(metadata(pre=pre)).encode("hello")[0]
    assert (first == 0) == (pre in ("llama3", "llama-bpe", "llama-v3"))
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
    "qwen2": ["I", " paid", " ", "1", "2", "3", "4", "5", " dollars", "!!", " don", "'t", " ask"],
}


@pytest.mark.parametrize("pre", SPLITS)
def test_texts_are_split_as_the_name_of_the_pre_tokenizer_says(pre):
    text = "I paid 12345 dollars!! don't ask"
    pieces = [text[a:b] for _, (a, b) in PRE_TOKENIZERS[pre]().pre_tokenize_str(text)]
    assert pieces == SPLITS[pre]


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
        ({"model": "t5"}, "tokenizer.ggml.model = 't5' .*'gpt2', 'llama'"),
        ({"model": None}, "no 'tokenizer.ggml.model', which is required"),
        ({"model": ["gpt2"]}, "tokenizer.ggml.model = .'gpt2'."),
        ({"pre": ["gpt-2"]}, "tokenizer.ggml.pre = .'gpt-2'."),
        ({"token_type": ["x"] * 329}, r"tokenizer.ggml.token_type = \['x', .* is not allowed: 329 numbers"),
        (
            {"model": "llama", "scores": [float("nan")] * 329},
            r"tokenizer.ggml.scores = \[nan, .* is not allowed: 329 numbers",
        ),
        ({"bos_token_id": True}, "bos_token_id = True"),
        ({"pre": "novel"}, "tokenizer.ggml.pre = 'novel' .*llama-bpe"),
        ({"pre": None}, "no 'tokenizer.ggml.pre', which is required"),
        ({"tokens": None}, "no 'tokenizer.ggml.tokens', which is required"),
        ({"tokens": [1, 2]}, r"tokenizer.ggml.tokens = \[1, 2\] is not allowed: a list of str values"),
        ({"tokens": ["a", "a"], "token_type": [1, 1]}, "names a token twice"),
        ({"token_type": [1, 2]}, r"tokenizer.ggml.token_type = \[1, 2\] is not allowed: 329 numbers"),
        ({"merges": None}, "no 'tokenizer.ggml.merges', which is required"),
        ({"merges": ["a nothing"]}, "merges holds 'a nothing'"),
        ({"merges": ["lonely"]}, "merges holds 'lonely'"),
        ({"eos_token_id": 350}, "eos_token_id = 350 is not allowed: a whole number from 0 to 328"),
        ({"bos_token_id": "x"}, "bos_token_id = 'x'"),
        ({"model": "llama"}, "no 'tokenizer.ggml.scores', which is required"),
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
    assert tokenizer.eos_token_ids == (2, 0)  # <|im_end|>, <|endoftext|>
    assert tokenizer.encode("Why is the sky blue?") == [4898, 314, 260, 6376, 4461, 47]
    assert [tokenizer.decode([i]) for i in tokenizer.encode("1234")] == ["1", "2", "3", "4"]
    for text in ["héllo wörld 你好 🙂👩‍👩‍👧", "def f(x):\n\treturn x  # 12.5%", "<|im_start|>user\nhi<|im_end|>"]:
        assert tokenizer.decode(tokenizer.encode(text), skip_special=False) == text
