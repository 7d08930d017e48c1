"""The setting `tokenizer`: the tokenizer of another model, in the place of one that is missing, unknown or wrong."""

import logging

import gguf
import pytest

from tests import gguf_files
from tests.word_model import TEMPLATE, save_chat_model
from tokenmill.cli.main import main
from tokenmill.engine.load import load
from tokenmill.errors import CheckpointError, ConfigError
from tokenmill.loader import packed_copy
from tokenmill.loader.copies import copies

TEXT = "the cat sat on 1234 mats"
HINT = "; the setting tokenizer names another model whose tokenizer is taken"


@pytest.fixture
def broken(tmp_path):
    """A model whose pre-tokenizer nobody knows."""
    return gguf_files.write(tmp_path / "broken.gguf", "llama", metadata={"tokenizer.ggml.pre": "novel"})


@pytest.fixture
def other(tmp_path):
    """A file with a vocabulary alone, of an architecture that is unknown here, as llama.cpp's own vocabularies are."""
    writer = gguf.GGUFWriter(None, "mamba")
    metadata = gguf_files.vocabulary() | {"tokenizer.chat_template": "{{ 1 }}", "tokenizer.ggml.pre": "qwen2"}
    for key, value in metadata.items():
        gguf_files.ADD[type(value)](writer, key, value)
    path = tmp_path / "vocabulary.gguf"
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.close()
    return path


def test_a_tokenizer_that_cannot_be_read_is_refused_with_a_way_out(broken):
    with pytest.raises(CheckpointError) as error:
        load(broken)
    assert "tokenizer.ggml.pre = 'novel' is not" in str(error.value) and str(error.value).endswith(HINT)


def test_the_tokenizer_of_another_file_is_taken_with_its_template(broken, other, tmp_path):
    same = gguf_files.write(tmp_path / "same.gguf", "llama", metadata={"tokenizer.ggml.pre": "qwen2"})
    wanted = load(same)
    found = load(broken, tokenizer=str(other))
    assert found.tokenizer.encode(TEXT) == wanted.tokenizer.encode(TEXT)
    assert found.generate(TEXT, max_new_tokens=3).tokens == wanted.generate(TEXT, max_new_tokens=3).tokens
    assert found.tokenizer.chat_template == "{{ 1 }}"


def test_the_tokenizer_of_a_directory_is_taken(broken, tmp_path):
    engine = load(broken, tokenizer=save_chat_model(tmp_path))
    assert engine.tokenizer.encode("w5 w7") == [5, 7] and engine.tokenizer.chat_template == TEMPLATE


def test_a_model_without_a_tokenizer_is_none(broken, tmp_path):
    path = gguf_files.write(tmp_path / "none.gguf", "llama", tokenizer=False)
    with pytest.raises(ConfigError, match=r"tokenizer = .*none.gguf' is not allowed: a model with a tokenizer"):
        load(broken, tokenizer=str(path))
    with pytest.raises(CheckpointError, match="no model 'nowhere'"):
        load(broken, tokenizer="nowhere")


def test_one_with_too_many_tokens_is_told_by_its_name(other, tmp_path, caplog):
    path = save_chat_model(tmp_path)
    load(path, tokenizer=str(other))
    assert "vocabulary.gguf: the tokenizer has 281 tokens and the model" in caplog.text


def test_a_draft_of_the_same_model_has_the_same_tokenizer(broken, other):
    engine = load(broken, tokenizer=str(other), draft_model="q8")
    assert len(engine.generate(TEXT, max_new_tokens=3).tokens) == 3


def test_a_packed_copy_is_of_one_tokenizer(broken, other, tmp_path, monkeypatch):
    monkeypatch.setattr(packed_copy, "SMALLEST", 0)
    monkeypatch.setenv("TOKENMILL_CACHE", str(tmp_path / "cache"))
    settings = {"program": "native", "packed_cache": True}
    first = load(broken, tokenizer=str(other), **settings)
    again = load(broken, tokenizer=str(other), **settings)
    assert len(copies()) == 1
    assert again.tokenizer.encode(TEXT) == first.tokenizer.encode(TEXT)
    with pytest.raises(CheckpointError, match="'novel'"):
        load(broken, **settings)
    words = load(broken, tokenizer=save_chat_model(tmp_path / "words"), **settings)
    assert words.tokenizer.encode("w5") == [5] and len(copies()) == 2


@pytest.mark.parametrize(("pre", "said"), [(None, "missing"), ("default", "'default'")])
def test_a_file_that_does_not_say_how_texts_are_split_is_warned_of(pre, said, tmp_path, caplog):
    path = gguf_files.write(tmp_path / "x.gguf", "llama", metadata={"tokenizer.ggml.pre": pre})
    with caplog.at_level(logging.WARNING):
        load(path)
    assert f"tokenizer.ggml.pre is {said}: texts are split as llama.cpp" in caplog.text
    caplog.clear()
    load(path, tokenizer=str(gguf_files.write(tmp_path / "y.gguf", "llama")))
    assert "tokenizer.ggml.pre" not in caplog.text


def test_verbs_have_the_option(broken, other, tmp_path, capsys):
    (tmp_path / "text").write_text(TEXT * 3, encoding="utf-8")
    assert main(["generate", str(broken), "--tokenizer", str(other), "-p", TEXT, "-n", "2"]) == 0
    assert main(["eval", "perplexity", str(broken), str(tmp_path / "text"), "--tokenizer", str(other)]) == 0
    assert main(["generate", str(broken), "-p", TEXT, "-n", "2"]) == 2
    assert HINT in capsys.readouterr().err
