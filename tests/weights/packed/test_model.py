"""A packed model as a checkpoint: what it says of the model that it was made of, and its tokenizer, checked."""

import zlib
from pathlib import Path

import pytest

from tests.gguf_files import vocabulary
from tests.weights.packed.test_reader import WEIGHTS, written
from tokenmill.errors import CheckpointError, PackedModelError
from tokenmill.text.vocab import tokenizer_from_gguf
from tokenmill.weights.fingerprint import fingerprint
from tokenmill.weights.packed.model import PackedCheckpoint
from tokenmill.weights.packed.reader import PackedReader

REMEDY = "; make it again with `tokenmill pack`"
BACKEND = tokenizer_from_gguf(vocabulary()).backend
TEXT = BACKEND.to_str().encode()
NAMES = {
    "bos_token_id": 0,
    "eos_token_ids": [0, 5],
    "chat_template": "x",
    "named_templates": {"tool_use": "y"},
    "special_texts": {"bos_token": "<|endoftext|>"},
    "suppressed_ids": [7],
    "rules": None,
}
MADE = {"generation_defaults": {}, "shapes": {"a": [2, 3]}, "config": {"model_type": "llama"}, "rounded": "some"}


@pytest.fixture
def source(tmp_path):
    """The model that it was made of: any files."""
    path = tmp_path / "model"
    path.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (path / name).write_text(name)
    return path


@pytest.fixture
def make(tmp_path, source):
    """The file, with other facts; `names` are other facts of its tokenizer."""

    def make(text=TEXT, names=(), **changes):
        facts = MADE | {"source": str(source), "fingerprint": fingerprint(source)}
        facts |= {
            "tokenizer": NAMES | dict(names),
            "tokenizer_bytes": len(text),
            "tokenizer_checksum": zlib.crc32(text),
        }
        return written(tmp_path / "x.packed", text=text, **facts | changes)

    return make


def test_what_it_says(make):
    file = make()
    found = PackedCheckpoint(file)
    assert (found.path, found.file, found.is_copy, found.num_bytes) == (file, file, False, 100)
    assert (found.shapes, found.config, found.rounded) == ({"a": (2, 3)}, {"model_type": "llama"}, "some")
    with pytest.raises(
        PackedModelError, match=r"x.packed is a packed model, whose a cannot be read: give the model, /.*"
    ):
        found.read("a")
    assert bytes(found.payload()) == WEIGHTS


def test_one_reader_serves_all(make):
    reader = PackedReader(make())
    found = PackedCheckpoint(reader.path, reader)
    found.start_reading()
    assert found.reader is reader and found.tokenizer() is not None
    assert bytes(found.payload()) == WEIGHTS and found.reader is None


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (["config.json"], "config"),
        (["model.safetensors"], "weights"),
        (["config.json", "tokenizer.json"], "config and tokenizer"),
    ],
)
def test_a_model_that_has_changed_since(make, source, files, said):
    file = make()
    for name in files:
        (source / name).write_text("changed")
    with pytest.raises(PackedModelError) as raised:
        PackedCheckpoint(file)
    assert str(raised.value) == f"{file} is stale: {said} of {source} have changed{REMEDY}"
    assert PackedCheckpoint(file, copy_of=source).is_copy, "of which it is known that it is the same"


@pytest.mark.parametrize("how", ["sampled", "full"])
def test_digests_are_compared_as_they_were_made(make, source, how):
    file = make(fingerprint=fingerprint(source, how))
    PackedCheckpoint(file)
    with pytest.raises(PackedModelError, match="is stale: weights of"):
        PackedCheckpoint(make(fingerprint=fingerprint(source, how) | {"weights": "other"}))


def test_a_model_that_is_gone(make, source):
    for file in source.iterdir():
        file.unlink()
    file = make()
    source.rmdir()
    assert PackedCheckpoint(file).tokenizer() is not None


def test_a_source_that_no_path_can_be(make, monkeypatch):
    """Of which some versions of Python say that it does not exist."""
    file = make(source="name")

    def refuse(path):
        raise OSError(36, "File name too long")

    monkeypatch.setattr(Path, "exists", refuse)
    with pytest.raises(PackedModelError, match=r"x.packed is damaged: its source is 'name'; make it again with"):
        PackedCheckpoint(file)


def test_its_tokenizer(make):
    found = PackedCheckpoint(make()).tokenizer()
    assert found.encode("the 12") == tokenizer_from_gguf(vocabulary()).encode("the 12")
    assert (found.bos_token_id, found.eos_token_ids, found.suppressed_ids) == (0, (0, 5), (7,))
    assert (found.chat_template, found.named_templates) == ("x", {"tool_use": "y"})
    assert found.special_texts == {"bos_token": "<|endoftext|>"} and found.rules is None
    bare = {"bos_token_id": None, "chat_template": None, "named_templates": None, "special_texts": None}
    none = PackedCheckpoint(make(names=bare | {"eos_token_ids": [], "suppressed_ids": []})).tokenizer()
    assert (none.bos_token_id, none.chat_template, none.named_templates, none.special_texts) == (None, None, {}, {})
    assert PackedCheckpoint(make(text=b"")).tokenizer() is None


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"tokenizer_checksum": 1}, "is damaged: its tokenizer does not match its checksum; make it again"),
        ({"text": b"{"}, "is damaged: its tokenizer cannot be read; make it again"),
        ({"text": b"\xff"}, "is damaged: its tokenizer cannot be read; make it again"),
        ({"names": {"rules": [1]}}, "is damaged: its tokenizer cannot be read; make it again"),
        ({"names": {"chat_template": 5}}, "is damaged: its tokenizer's special tokens are no texts; make it again"),
        ({"names": {"named_templates": {"a": 5}}}, "is damaged: its tokenizer's special tokens are no texts"),
        ({"names": {"special_texts": {"a": None}}}, "is damaged: its tokenizer's special tokens are no texts"),
        ({"names": {"named_templates": [1]}}, "named_templates must be an object with named values, not"),
        ({"names": {"bos_token_id": -1}}, "bos_token_id = -1 is not allowed: a whole number from 0"),
        ({"names": {"eos_token_ids": ["x"]}}, "eos_token_ids = .* is not allowed: token ids from 0"),
        ({"names": {"suppressed_ids": 1.5}}, "suppressed_ids = 1.5 is not allowed: token ids from 0"),
        ({"tokenizer": None}, "has no 'tokenizer', which is required"),
    ],
    ids=str,
)
def test_tokenizers_that_are_damaged(make, how, message):
    with pytest.raises(PackedModelError, match=message):
        PackedCheckpoint(make(**how)).tokenizer()


def test_the_settings_that_the_model_recommends(make, source):
    assert PackedCheckpoint(make()).generation_defaults() == {}
    assert PackedCheckpoint(make(generation_defaults={"top_k": 5, "top_p": 1.0})).generation_defaults() == {
        "top_k": 5,
        "top_p": 1.0,
    }
    with pytest.raises(CheckpointError, match=r"x.packed: top_k = -2 is not allowed"):
        PackedCheckpoint(make(generation_defaults={"top_k": -2})).generation_defaults()
    (source / "generation_config.json").write_text('{"repetition_penalty": 1.5}')
    copy = PackedCheckpoint(make(generation_defaults={"top_k": 5}), copy_of=source)
    assert copy.generation_defaults() == {"repetition_penalty": 1.5}, "a copy has the model's own file beside it"
