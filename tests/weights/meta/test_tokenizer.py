"""The tokenizers of directories in Meta's and Mistral's own layout, and of others that have a tekken.json alone."""

import json

import pytest
import sentencepiece
import torch

from tests.text.test_byte_ranks import TEXTS, TOKENS, spelled, tekken
from tests.tiny_models import save
from tests.weights.meta.test_checkpoint import PARAMS, original, written
from tokenmill.errors import CheckpointError
from tokenmill.hub.progress import Silent
from tokenmill.model.families import read_config
from tokenmill.weights.checkpoint import open_checkpoint
from tokenmill.weights.write.convert import convert


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return written(tmp_path_factory.mktemp("own") / "m", PARAMS, original(PARAMS))


@pytest.fixture
def path(model, tmp_path):
    folder = tmp_path / "download" / "m"
    folder.mkdir(parents=True)
    for file in model.iterdir():
        (folder / file.name).hardlink_to(file)
    return folder


def test_ranks_of_llama_3(path):
    (path / "tokenizer.model").write_text("".join(f"{spelled(token)} {rank}\n" for rank, token in enumerate(TOKENS)))
    (path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    found = open_checkpoint(path).tokenizer()
    assert found.encode("the<|eot_id|>") == [len(TOKENS), TOKENS.index(b"the"), len(TOKENS) + 9]
    assert found.chat_template == "{{ messages[0].content }}" and found.eos_token_ids == (
        len(TOKENS) + 1,
        len(TOKENS) + 9,
    )
    (path / "params.json").unlink()
    (path / "params.json").write_text(json.dumps(PARAMS | {"use_scaled_rope": True}))
    assert open_checkpoint(path).tokenizer().backend.token_to_id("<|eom_id|>") == len(TOKENS) + 8


def test_a_converted_directory_has_the_same_tokenizer_and_model(path, tmp_path):
    (path / "tokenizer.model").write_text("".join(f"{spelled(token)} {rank}\n" for rank, token in enumerate(TOKENS)))
    (path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    source = open_checkpoint(path)
    converted = open_checkpoint(convert(source, tmp_path / "out", "auto", Silent()))
    for name in source.shapes:
        assert torch.equal(source.read(name), converted.read(name))
    assert read_config(source.config) == read_config(converted.config)
    one, other = source.tokenizer(), converted.tokenizer()
    for text in (*TEXTS, "<|eot_id|>the"):
        assert one.encode(text) == other.encode(text)
    assert (one.eos_token_ids, one.chat_template) == (other.eos_token_ids, other.chat_template)


def test_sentencepiece_beside_the_directory_as_meta_had_it(path, tmp_path):
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(["the quick brown fox jumps", "over the lazy dog", "hello other world"] * 20))
    how = {"model_type": "bpe", "vocab_size": 300, "byte_fallback": True, "normalization_rule_name": "identity"}
    how |= {"character_coverage": 1.0, "remove_extra_whitespaces": False, "minloglevel": 5}
    sentencepiece.SentencePieceTrainer.train(input=str(texts), model_prefix=str(path.parent / "tokenizer"), **how)
    own = sentencepiece.SentencePieceProcessor(str(path.parent / "tokenizer.model"))
    found = open_checkpoint(path).tokenizer()
    for text in TEXTS:
        assert found.encode(text) == [1, *own.encode(text)]
    assert (found.bos_token_id, found.eos_token_ids) == (1, (2,))
    (path / "tokenizer.model.v3").write_bytes(b"damaged")
    with pytest.raises(CheckpointError, match=r"tokenizer\.model\.v3 is damaged"):
        open_checkpoint(path).tokenizer()


def test_tekken_beside_a_config_json(models, tmp_path):
    for file in save("ministral3", models).iterdir():
        (tmp_path / file.name).hardlink_to(file)
    assert open_checkpoint(tmp_path).tokenizer() is None
    (tmp_path / "tekken.json").write_text(json.dumps(tekken()))
    assert open_checkpoint(tmp_path).tokenizer().encode("the") == [1, 10 + TOKENS.index(b"the")]
