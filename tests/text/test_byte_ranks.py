"""Vocabularies of bytes and ranks: the ids are those of transformers' own conversions of the same files."""

import base64
import json

import pytest
from transformers.convert_slow_tokenizer import TikTokenConverter
from transformers.integrations.mistral.tokenizer import MistralConverter

from tokenmill.errors import CheckpointError
from tokenmill.text.byte_ranks import llama3_specials, read_tekken, read_tiktoken
from tokenmill.text.pre_tokenizers import PRE_TOKENIZERS

TEXTS = (
    "Hello the other world, 12345 of them!  \n\n the end",
    "naïve café — “quoted” 日本語 мир 🤗",
    "",
    "theeeethe the",
    "   three",
)
MORE = [
    "th",
    "he",
    " t",
    "the",
    " the",
    "ee",
    "eee",
    "in",
    "er",
    "ther",
    "other",
    "  ",
    "12",
    "123",
    "\n\n",
    "ca",
    "fé",
]
TOKENS = [*(bytes([byte]) for byte in range(256)), *(text.encode() for text in MORE)]
SPECIALS = [{"rank": 0, "token_str": "<unk>"}, {"rank": 1, "token_str": "<s>"}, {"rank": 2, "token_str": "</s>"}]


def spelled(token: bytes) -> str:
    return base64.b64encode(token).decode()


@pytest.fixture
def ranks(tmp_path):
    file = tmp_path / "tokenizer.model"
    file.write_text("".join(f"{spelled(token)} {rank}\n" for rank, token in enumerate(TOKENS)))
    return file


def tekken(**settings) -> dict:
    pattern = next(iter(PRE_TOKENIZERS["tekken"].splits))
    config = {"pattern": pattern, "default_vocab_size": len(TOKENS) + 8, "default_num_special_tokens": 10}
    vocabulary = [{"rank": rank, "token_bytes": spelled(token)} for rank, token in enumerate(TOKENS)]
    return {"config": config, "vocab": vocabulary, "special_tokens": SPECIALS, **settings}


def test_llama_3s_are_those_of_the_conversion(ranks, monkeypatch):
    table = {token: rank for rank, token in enumerate(TOKENS)}
    monkeypatch.setattr(TikTokenConverter, "load_tiktoken_bpe", staticmethod(lambda file: table))
    specials = llama3_specials(True)
    wanted = TikTokenConverter(str(ranks), extra_special_tokens=specials).converted()
    found = read_tiktoken(ranks, specials)
    for text in (*TEXTS, "<|start_header_id|>user<|end_header_id|>\n\nthe<|eot_id|>"):
        assert found.encode(text, add_special_tokens=False) == wanted.encode(text, add_special_tokens=False).ids
        assert found.decode(found.encode(text), skip_special=False) == f"<|begin_of_text|>{text}"
    first = len(TOKENS)
    assert found.encode("the") == [first, TOKENS.index(b"the")]
    assert (found.bos_token_id, found.eos_token_ids, found.num_tokens) == (
        first,
        (first + 1, first + 8, first + 9),
        first + 256,
    )


def test_the_special_tokens_of_llama_3():
    """As transformers' conversion lists them, which is in no package."""
    older, newer = llama3_specials(False), llama3_specials(True)
    assert len(set(older)) == len(set(newer)) == len(older) == len(newer) == 256
    differ = [place for place, pair in enumerate(zip(older, newer, strict=True)) if len(set(pair)) > 1]
    assert differ[:3] == [4, 5, 8] and newer[4] == "<|finetune_right_pad_id|>" and newer[8] == "<|eom_id|>"
    assert older[6:10] == ["<|start_header_id|>", "<|end_header_id|>", "<|reserved_special_token_4|>", "<|eot_id|>"]
    assert (older[-1], newer[-1]) == ("<|reserved_special_token_250|>", "<|reserved_special_token_247|>")


def test_tekkens_are_those_of_the_conversion(tmp_path):
    file = tmp_path / "tekken.json"
    file.write_text(json.dumps(tekken()))
    found, wanted = read_tekken(file), MistralConverter(str(file)).converted()
    assert found.num_tokens == len(TOKENS) + 8, "the last two are left out, as the config says"
    for text in (*TEXTS, "a</s>b"):
        assert found.encode(text, add_special_tokens=False) == wanted.encode(text, add_special_tokens=False).ids
    assert found.encode("the") == [1, 10 + TOKENS.index(b"the")]
    assert (found.bos_token_id, found.eos_token_ids) == (1, (2,))
    assert found.special_texts == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def test_older_tekkens_do_not_say_their_special_tokens(tmp_path):
    file = tmp_path / "tekken.json"
    older = {key: value for key, value in tekken().items() if key != "special_tokens"}
    older["config"] |= {"default_num_special_tokens": 30, "default_vocab_size": len(TOKENS) + 30}
    file.write_text(json.dumps(older))
    found = read_tekken(file)
    assert found.encode("[INST]the", add_special_tokens=False) == [3, 30 + TOKENS.index(b"the")]
    assert found.backend.token_to_id("<SPECIAL_29>") == 29 and found.special_texts["pad_token"] == "<pad>"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocab": []}, "vocab = [] is not allowed: a list of at least 271 tokens"),
        ({"vocab": [{"token_bytes": "?"}] * 300}, "tokens with token_bytes in base64"),
        ({"vocab": [3] * 300}, "tokens with token_bytes in base64"),
        ({"vocab": [{"token_bytes": "AA=="}] * 300}, "its tokens must differ, and hold every byte"),
        ({"special_tokens": [{"rank": 1, "token_str": "<s>"}]}, "tokens with their names, and ranks from 0 on"),
        ({"special_tokens": 4}, "tokens with their names, and ranks from 0 on"),
        ({"special_tokens": SPECIALS[:1]}, "its special tokens lack '<s>' or '</s>'"),
        ({"config": {"pattern": "(", "default_vocab_size": 273}}, "its pattern '(' cannot be used"),
        ({"config": {"pattern": "x"}}, "config has no 'default_vocab_size', which is required"),
    ],
    ids=str,
)
def test_damaged_tekkens_are_refused(change, message, tmp_path):
    file = tmp_path / "tekken.json"
    file.write_text(json.dumps(tekken(**change)))
    with pytest.raises(CheckpointError) as raised:
        read_tekken(file)
    assert message in str(raised.value) and str(file) in str(raised.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("AA== 1\n", "rank 1 in line 1"),
        ("AA==\n", "damaged or no list of bytes and ranks"),
        ("A 0\n", "damaged or no list of bytes and ranks"),
        ("AA== 0\n", "its tokens must differ, and hold every byte"),
        ("", "its tokens must differ, and hold every byte"),
    ],
)
def test_damaged_ranks_are_refused(text, message, ranks):
    ranks.write_text(text)
    with pytest.raises(CheckpointError, match=message):
        read_tiktoken(ranks, llama3_specials(False))
    ranks.write_text("".join(f"{spelled(token)} {rank}\n" for rank, token in enumerate([*TOKENS, b"x" * 2000])))
    with pytest.raises(CheckpointError, match="it has a token of 2000 bytes"):
        read_tiktoken(ranks, llama3_specials(False))
