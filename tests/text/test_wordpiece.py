"""BERT's tokenizers in GGUF metadata against the library's own; XLM-RoBERTa's against sentencepiece."""

import json

import pytest
import tokenizers
import transformers
from sentencepiece import SentencePieceProcessor
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from tests.text.test_sentencepiece_file import trained_file
from tokenmill.errors import CheckpointError
from tokenmill.text.gguf_vocab import PROBES, gguf_of_tokenizer
from tokenmill.text.tokenizer import Tokenizer
from tokenmill.text.vocab import tokenizer_from_gguf

WORDS = "hello world naive cafe two spaces end it ##s isn don ##t 20 ##24 本 語 a ##b , . ! ' ? $ % [unused1]".split()
MARKS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TEXTS = (*PROBES, "Hello, WORLDs! naïve café [SEP] isn't", "日本語", "")


def original(words=WORDS, lowers=True, strips=None):
    vocabulary = {token: number for number, token in enumerate([*MARKS, *words])}
    backend = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
    backend.normalizer = normalizers.BertNormalizer(lowercase=lowers, strip_accents=strips)
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    backend.add_special_tokens(MARKS)
    return backend


def written(words=WORDS, **more):
    """Metadata as llama.cpp's converter writes them."""
    spelled = [word.removeprefix("##") if word.startswith("##") else f"▁{word}" for word in words]
    ids = {"bos": 2, "eos": 3, "unknown": 1, "seperator": 3, "padding": 0, "mask": 4}
    keys = {
        "model": "bert",
        "pre": "jina-v2-en",
        "tokens": [*MARKS, *spelled],
        "token_type": [3] * 5 + [1] * len(words),
        "token_type_count": 2,
        **{f"{name}_token_id": number for name, number in ids.items()},
        "add_bos_token": True,
        "add_eos_token": True,
        "add_sep_token": False,
        **more,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items()}


@pytest.mark.parametrize("lowers", [True, False])
def test_tokens_are_those_of_the_library(lowers):
    words = WORDS if lowers else [*WORDS, "Hello", "WORLD"]
    for more in ({}, {"normalizer.lowercase": lowers}):
        found, wanted = tokenizer_from_gguf(written(words, **more)), original(words, lowers)
        for text in TEXTS:
            assert found.encode(text) == wanted.encode(text).ids, text
            pair = wanted.encode("hello world", text)
            assert found.encode_pair("hello world", text)[:2] == (pair.ids, pair.type_ids)


def test_accents_stay_where_the_file_says_so():
    found = tokenizer_from_gguf(written(**{"normalizer.strip_accents": False}))
    assert found.encode("café") == original(strips=False).encode("café").ids != found.encode("cafe")
    with pytest.raises(CheckpointError, match="strip_accents"):
        tokenizer_from_gguf(written(**{"normalizer.strip_accents": "no"}))


def test_what_is_written_is_read_again():
    texts = {"cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]", "pad_token": "[PAD]"}
    tokenizer = Tokenizer(original(), special_texts=texts)
    found = tokenizer_from_gguf(gguf_of_tokenizer(tokenizer, len(MARKS) + len(WORDS)))
    assert [found.encode(text) for text in TEXTS] == [tokenizer.encode(text) for text in TEXTS]


def test_pieces_of_xlm_roberta_are_those_of_sentencepiece():
    model = SentencePieceProcessor(model_proto=(data := trained_file("unigram")))
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(data)
    size = model.vocab_size()
    kinds = [
        3 if model.is_control(i) else 2 if model.is_unknown(i) else 6 if model.is_byte(i) else 1 for i in range(size)
    ]
    keys = {
        "model": "t5",
        "pre": "default",
        "tokens": [model.id_to_piece(number) for number in range(size)],
        "scores": [model.get_score(number) for number in range(size)],
        "token_type": kinds,
        "add_space_prefix": proto.normalizer_spec.add_dummy_prefix,
        "remove_extra_whitespaces": proto.normalizer_spec.remove_extra_whitespaces,
        "precompiled_charsmap": list(proto.normalizer_spec.precompiled_charsmap),
        "bos_token_id": model.bos_id(),
        "eos_token_id": model.eos_id(),
        "unknown_token_id": model.unk_id(),
        "add_bos_token": True,
        "add_eos_token": True,
    }
    found = tokenizer_from_gguf({f"tokenizer.ggml.{key}": value for key, value in keys.items()})
    for text in TEXTS:
        assert found.encode(text) == [model.bos_id(), *model.encode(text), model.eos_id()], text
    ids, _, places = found.encode_pair("hello", "world")
    first, second = model.encode("hello"), model.encode("world")
    bos, eos = model.bos_id(), model.eos_id()
    assert ids == [bos, *first, eos, eos, *second, eos] and [ids[place] for place in places] == second


def saved(path, config, name="tokenizer.json"):
    path.mkdir()
    words = [*MARKS, *WORDS, "Hello"]
    if name == "vocab.txt":
        (path / name).write_text("\n".join(words) + "\n")
    else:
        original([*WORDS, "Hello"]).save(str(path / name))
    (path / "config.json").write_text('{"model_type": "bert"}')
    (path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer", **config}))
    return path


@pytest.mark.parametrize("name", ["tokenizer.json", "vocab.txt"])
@pytest.mark.parametrize(
    "config", [{}, {"do_lower_case": False}, {"strip_accents": False}, {"tokenize_chinese_chars": False}], ids=str
)
def test_letters_are_changed_as_transformers_changes_them(config, name, tmp_path):
    path = saved(tmp_path / "x", config, name)
    ours, theirs = Tokenizer.from_directory(path), transformers.AutoTokenizer.from_pretrained(path)
    for text in TEXTS:
        assert ours.encode(text) == theirs(text)["input_ids"], text
        if text:  # transformers takes an empty text for none
            assert ours.encode_pair("hello", text)[0] == theirs("hello", text)["input_ids"]


@pytest.mark.parametrize("name", ["tokenizer.json", "vocab.txt"])
@pytest.mark.parametrize("config", [{}, {"do_lower_case": False}, {"strip_accents": False}], ids=str)
def test_mpnet_has_the_marks_of_roberta(name, config, tmp_path):
    words = ["<s>", "<pad>", "</s>", "[UNK]", *WORDS, "Hello", "<mask>"]
    if name == "vocab.txt":
        (tmp_path / name).write_text("\n".join(words) + "\n")
    else:
        transformers.MPNetTokenizer({word: number for number, word in enumerate(words)}).save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "mpnet"}')
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "MPNetTokenizer", **config}))
    ours, theirs = Tokenizer.from_directory(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in (*TEXTS, "hello <mask> world", "a</s>b"):
        assert ours.encode(text) == theirs(text)["input_ids"], text
        if text:
            assert ours.encode_pair("hello", text)[:2] == (ids := theirs("hello", text)["input_ids"], [0] * len(ids))


def test_a_vocabulary_without_marks_is_refused(tmp_path):
    path = saved(tmp_path / "x", {}, "vocab.txt")
    (path / "vocab.txt").write_text("a\nb\n")
    with pytest.raises(CheckpointError, match=r"has no token \[UNK\]"):
        Tokenizer.from_directory(path)
