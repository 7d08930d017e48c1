"""Files of sentencepiece: ids and texts are those of sentencepiece itself, and damaged files are refused by name."""

import io
import json
import random
from functools import cache

import pytest
import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as protocol

from tests.text.test_tokenizer import CORPUS
from tokenmill.errors import CheckpointError, RequestError
from tokenmill.text.gguf_vocab import gguf_of_tokenizer
from tokenmill.text.literal import encode_chat
from tokenmill.text.sentencepiece import TextRules, read_sentencepiece
from tokenmill.text.tokenizer import Tokenizer

LINES = [*CORPUS[:4], "if x:\n    return 0x0A  # <b>bold</b>", "\u65e5\u672c\u8a9e \u6f22\u5b57", "fox  fox"] * 20
AS_IS = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
SYMBOLS = {"user_defined_symbols": ["<ud>", "qq", "\u672c\u8a9e", "  ", "\u2581\u2581", "<\u00e9>"]}
SETTINGS = {
    "as it is": AS_IS,
    "bytes": {**AS_IS, "byte_fallback": True},
    "no prefix": {**AS_IS, "add_dummy_prefix": False, "byte_fallback": True},
    "without spaces": {"normalization_rule_name": "identity"},
    "default": {},
    "default with bytes": {"byte_fallback": True},
    "nfkc_cf": {"normalization_rule_name": "nfkc_cf", "remove_extra_whitespaces": False},
    "symbols": {**AS_IS, **SYMBOLS},
    "symbols without spaces": {"byte_fallback": True, **SYMBOLS},
    "split digits": {"split_digits": True, "allow_whitespace_only_pieces": True, **AS_IS},
}
PARTS = """fox quick the x <0x0A> <0x 0A > qq <ud> <\u00e9> 12 \ufb01 \u00bd \u2460 \uff21 \u00e9 e\u0301 q\u0307\u0323
\u00b4 \u65e5 \u672c\u8a9e \uff76\uff9e \u1100\u1161 \uac00 \u0345 \u0344 \u0130 \u00df A\u030a \ufdfa \u0958 \u200d
\u2581 \U0001f642 \U0001f469\u200d\U0001f467 \u0928\u093f \u2026""".split()
SPACES = [" ", " ", "  ", "\t", "\n", "\r\n", "\u3000", "\u00a0", "\u200b"]
FIXED = [
    "",
    " ",
    "  ",
    "\t\t\t  x",
    "   x",
    "\n\n  x",
    "x  ",
    "if x:\n    y\n        z",
    " fox",
    "\u2581",
    "x\u2581 ",
    " \u2581x",
]


@cache
def model_file(kind: str, **settings) -> bytes:
    out = io.BytesIO()
    settings = {key: list(value) if isinstance(value, tuple) else value for key, value in settings.items()}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES), model_writer=out, vocab_size=340, model_type=kind, hard_vocab_limit=False,
        minloglevel=2, **settings,
    )  # fmt: skip
    return out.getvalue()


def trained_file(kind: str = "unigram", **settings) -> bytes:
    return model_file(
        kind, **{key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()}
    )


def directory(path, data: bytes, **config):
    (path / "tokenizer.model").write_bytes(data)
    names = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (path / "tokenizer_config.json").write_text(json.dumps(names | config))
    if not (path / "config.json").exists():
        (path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return path


def texts(first: str = "") -> list[str]:
    numbers = random.Random(1)
    mixed = [
        "".join(numbers.choice(numbers.choice([PARTS, SPACES])) for _ in range(numbers.randint(1, 9)))
        for _ in range(400)
    ]
    return [first + text for text in (*FIXED, *LINES[:7], *mixed)]


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize("settings", SETTINGS)
def test_ids_and_texts_are_sentencepieces_own(tmp_path, kind, settings):
    data = trained_file(kind, **SETTINGS[settings])
    theirs = sentencepiece.SentencePieceProcessor(model_proto=data)
    backend, rules = read_sentencepiece(directory(tmp_path, data) / "tokenizer.model", {})
    ours = Tokenizer(backend, rules=rules)
    # transformers and llama.cpp put no space before a text that begins with a symbol of the user; sentencepiece does.
    for text in texts("x" if "symbols" in settings else ""):
        ids = ours.encode(text, add_special_tokens=False)
        assert ids == theirs.encode(text), text
        known = theirs.unk_id() not in ids and not text.lstrip(" ").startswith("\u2581")
        assert not known or ours.decode(ids) == theirs.decode(ids)


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_a_directory_has_the_tokens_and_the_begin_that_transformers_reads(tmp_path, kind):
    data = trained_file(kind, **SETTINGS["bytes"])
    tokenizer = Tokenizer.from_directory(directory(tmp_path, data, add_bos_token=True))
    theirs = sentencepiece.SentencePieceProcessor(model_proto=data)
    assert tokenizer.encode("\t\t x") == [1, *theirs.encode("\t\t x")]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids, tokenizer.rules) == (1, (2,), None)
    assert [tokenizer.backend.id_to_token(i) for i in tokenizer.encode("x</s>x")] == ["<s>", "\u2581", "x", "</s>", "x"]


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        ({}, ["\u2581", "x", "</s>", "x"]),
        ({"legacy": False}, ["\u2581", "x", "</s>", "x"]),
        ({"legacy": True}, ["\u2581", "x", "</s>", "\u2581", "x"]),
        ({"legacy": True, "add_prefix_space": False}, ["x", "</s>", "x"]),
        ({"add_prefix_space": False}, ["x", "</s>", "x"]),
        ({"add_prefix_space": True}, ["\u2581", "x", "</s>", "x"]),
    ],
    ids=str,
)
def test_a_space_is_put_where_transformers_puts_it(tmp_path, config, wanted):
    from transformers import AutoTokenizer

    path = directory(tmp_path, trained_file("bpe", **SETTINGS["bytes"]), **config)
    ours, theirs = Tokenizer.from_directory(path), AutoTokenizer.from_pretrained(str(path))
    ids = ours.encode("x</s>x")
    assert [ours.backend.id_to_token(number) for number in ids] == wanted
    assert theirs.encode("x</s>x") == ids
    assert ours.decode(ids, skip_special=False) == "x</s>x" or config.get("legacy")


def test_text_that_follows_other_text_keeps_its_spaces(tmp_path):
    data = trained_file(byte_fallback=True)
    backend, rules = read_sentencepiece(directory(tmp_path, data) / "tokenizer.model", {})
    ours = Tokenizer(backend, rules=rules)
    first, rest = ours.encode("the  quick"), ours.encode("  brown", continues=True)
    assert [*first, *rest] == sentencepiece.SentencePieceProcessor(model_proto=data).encode("the  quick  brown")
    assert ours.decode(rest, continues=True) == " brown"


def test_letters_that_become_a_control_token_are_refused(tmp_path):
    """NFKC makes <s> of full-width letters. sentencepiece keeps them letters: no text may become a control token."""
    backend, rules = read_sentencepiece(directory(tmp_path, trained_file()) / "tokenizer.model", {})
    ours = Tokenizer(backend, rules=rules, chat_template="<s>{{ messages[0]['content'] }}</s>")
    with pytest.raises(RequestError, match="turns into '<s>', a control token"):
        ours.encode("x \uff1cs\uff1e y")
    messages = [{"role": "user", "content": "a  \ufb01 </s> b"}]
    ids = encode_chat(ours, messages)
    assert ids[0] == 1
    assert ids.count(2) == 1
    assert ours.decode(ids, skip_special=False) == "<s>a fi </s> b</s>"


def test_rules_survive_being_written_and_are_not_written_to_gguf(tmp_path):
    backend, rules = read_sentencepiece(directory(tmp_path, trained_file("bpe")) / "tokenizer.model", {})
    again = TextRules.from_json(json.loads(json.dumps(rules.as_json())))
    for text in texts():
        assert again.apply(text) == rules.apply(text)
    with pytest.raises(CheckpointError, match="changes characters or removes spaces, and GGUF has no keys"):
        gguf_of_tokenizer(Tokenizer(backend, rules=rules), 400)


def changed(data: bytes, change) -> bytes:
    model = protocol.ModelProto()
    model.ParseFromString(data)
    change(model)
    return model.SerializeToString()


def without_unknown(model) -> None:
    model.pieces[0].type = 1


DAMAGES = {
    "empty": (lambda data: b"", "it is cut off, or has no pieces"),
    "no protobuf": (lambda data: b"not a model at all", "is damaged or no sentencepiece model"),
    "half": (lambda data: data[: len(data) // 2], "is damaged or no sentencepiece model"),
    "cut between pieces": (
        lambda data: changed(data, lambda model: model.ClearField("trainer_spec")),
        "it is cut off, or has no pieces",
    ),
    "without rules": (lambda data: changed(data, lambda model: model.ClearField("normalizer_spec")), "it is cut off"),
    "no unknown piece": (lambda data: changed(data, without_unknown), "one must be of type UNKNOWN"),
    "twice": (lambda data: changed(data, lambda m: setattr(m.pieces[9], "piece", m.pieces[8].piece)), "must differ"),
    "a broken map": (
        lambda data: changed(data, lambda m: setattr(m.normalizer_spec, "precompiled_charsmap", b"\x01\0\0\0abc")),
        "map of characters is damaged",
    ),
    "suffix": (
        lambda data: changed(data, lambda m: setattr(m.trainer_spec, "treat_whitespace_as_suffix", True)),
        "treat_whitespace_as_suffix = True is not allowed: False",
    ),
    "spaces as they are": (
        lambda data: changed(data, lambda m: setattr(m.normalizer_spec, "escape_whitespaces", False)),
        "escape_whitespaces = False is not allowed: True",
    ),
    "words": (
        lambda data: changed(data, lambda m: setattr(m.trainer_spec, "model_type", 3)),
        "model_type = WORD is not allowed: BPE or UNIGRAM",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_a_damaged_file_is_refused_by_name(tmp_path, kind, damage):
    change, message = DAMAGES[damage]
    path = directory(tmp_path, change(trained_file(kind, byte_fallback=True)))
    with pytest.raises(CheckpointError, match=message) as caught:
        Tokenizer.from_directory(path)
    assert str(path / "tokenizer.model") in str(caught.value)


def test_pieces_of_which_tokenizers_would_make_others_are_refused(tmp_path):
    data = changed(trained_file(), lambda model: setattr(model.pieces[20], "piece", "\u00a7\u00a7x"))
    with pytest.raises(CheckpointError, match="'\u00a7' is part of a piece and no piece itself"):
        Tokenizer.from_directory(directory(tmp_path, data))
    data = changed(trained_file(), lambda model: setattr(model.pieces[20], "type", 5))
    with pytest.raises(CheckpointError, match="pieces that are not used"):
        Tokenizer.from_directory(directory(tmp_path, data))
