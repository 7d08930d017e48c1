"""Tokenizers of model directories: the same ids as transformers, and damaged files refused."""

import json

import pytest
import tokenizers
import transformers
from tokenizers import decoders, normalizers, pre_tokenizers

from tokenmill.errors import CheckpointError, RequestError
from tokenmill.text.tokenizer import Tokenizer

TEXTS = ["Hello there", " two  spaces\n\n", "naïve 你好 🙂 12345", "<s>marked</s> text", "", "x" * 50]
CORPUS = ["the quick brown fox jumps over the lazy dog", "naïve café 你好 🙂", "0123456789", "hello there world"] * 20


def trained(add_bos: bool = False) -> tokenizers.Tokenizer:
    """A small byte-level BPE with three special tokens."""
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=350,
        special_tokens=["<s>", "</s>", "<|end|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    backend.train_from_iterator(CORPUS, trainer)
    if add_bos:
        backend.post_processor = tokenizers.processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", backend.token_to_id("<s>"))]
        )
    return backend


def write(path, backend, **config) -> None:
    backend.save(str(path / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", **config}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))


@pytest.mark.parametrize("add_bos", [False, True])
def test_ids_and_text_equal_transformers(tmp_path, add_bos):
    write(tmp_path, trained(add_bos))
    ours = Tokenizer.from_directory(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in TEXTS:
        ids = ours.encode(text)
        assert ids == theirs(text)["input_ids"]
        assert ours.encode(text, add_special_tokens=False) == theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def test_what_the_files_say_about_special_tokens(tmp_path):
    write(tmp_path, trained(), eos_token={"content": "</s>", "lstrip": False}, chat_template="{{ messages }}")
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 1]}))
    tokenizer = Tokenizer.from_directory(tmp_path)
    assert tokenizer.bos_token_id == 0
    assert tokenizer.eos_token_ids == (1, 2)
    assert tokenizer.special_ids == {0, 1, 2}
    assert tokenizer.special_texts == {"bos_token": "<s>", "eos_token": "</s>"}
    assert tokenizer.chat_template == "{{ messages }}"
    assert tokenizer.num_tokens == 329


def test_truncation_and_padding_in_the_file_are_switched_off(tmp_path):
    backend = trained()
    backend.enable_truncation(max_length=3)
    backend.enable_padding(length=64)
    write(tmp_path, backend)
    assert len(Tokenizer.from_directory(tmp_path).encode("0 1 2 3 4 5 6 7 8 9")) == 19


def test_a_directory_without_a_tokenizer_has_none(tmp_path):
    assert Tokenizer.from_directory(tmp_path) is None


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "generation_config.json"])
@pytest.mark.parametrize("content", ["{", "[1, 2]", '{"model": 7}', "[" * 100_000, '{"eos_token": "\\ud800"}'])
def test_damaged_files_are_refused_by_name(tmp_path, name, content):
    if content == '{"model": 7}' and name != "tokenizer.json":
        pytest.skip("a JSON object that these files may hold")
    write(tmp_path, trained())
    (tmp_path / name).write_text(content)
    with pytest.raises(CheckpointError, match=name) as caught:
        Tokenizer.from_directory(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("declared", [[1], {"x": {"content": "q"}}, {"9" * 5000: {"content": "q"}}])
def test_declared_tokens_must_be_a_map_of_ids(tmp_path, declared):
    write(tmp_path, trained(), added_tokens_decoder=declared)
    with pytest.raises(CheckpointError, match="added_tokens_decoder"):
        Tokenizer.from_directory(tmp_path)


@pytest.mark.parametrize("given", [True, "2", [1, "x"], 1.5, {}])
def test_what_is_no_id_does_not_end_a_text(tmp_path, given):
    """True counted as id 1, and a list lost what was no number in it."""
    write(tmp_path, trained())
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": given}))
    with pytest.raises(CheckpointError, match=r"generation_config.json: eos_token_id = .* a token id, or several"):
        Tokenizer.from_directory(tmp_path)


NAMED = {"default": "plain", "tool_use": "tools"}


@pytest.mark.parametrize(
    ("config", "files", "wanted"),
    [
        ([{"name": name, "template": text} for name, text in NAMED.items()], {}, NAMED),
        (NAMED, {}, NAMED),
        ("one", {}, {"default": "one"}),
        (None, {}, {}),
        (None, NAMED, NAMED),
        ("one", NAMED, NAMED),
        (NAMED, {"default": "file"}, {"default": "file"}),
        ("one", {"rag": "file"}, {"rag": "file"}),
    ],
    ids=str,
)
def test_named_chat_templates_are_those_of_transformers(tmp_path, config, files, wanted):
    """Files take the place of all that tokenizer_config.json says."""
    write(tmp_path, trained(), tokenizer_class="PreTrainedTokenizerFast", chat_template=config)
    (tmp_path / "additional_chat_templates").mkdir()
    for name, text in files.items():
        default = name == "default"
        (tmp_path / ("chat_template.jinja" if default else f"additional_chat_templates/{name}.jinja")).write_text(text)
    ours, theirs = (
        Tokenizer.from_directory(tmp_path),
        transformers.AutoTokenizer.from_pretrained(str(tmp_path)).chat_template,
    )
    found = dict(ours.named_templates) | ({} if ours.chat_template is None else {"default": ours.chat_template})
    assert found == wanted == (theirs if isinstance(theirs, dict) else {"default": theirs} if theirs else {})


@pytest.mark.parametrize("wrong", [5, ["text"], [{"name": "default"}], [{"template": "x"}], {"default": 5}], ids=str)
def test_chat_templates_that_are_none_are_refused(tmp_path, wrong):
    write(tmp_path, trained(), chat_template=wrong)
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json: chat_template"):
        Tokenizer.from_directory(tmp_path)


def test_a_chat_template_that_is_no_text_is_refused(tmp_path):
    write(tmp_path, trained())
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(CheckpointError, match=r"chat_template\.jinja"):
        Tokenizer.from_directory(tmp_path)


def test_a_prompt_with_half_a_surrogate_pair_is_refused():
    with pytest.raises(RequestError, match="surrogate"):
        Tokenizer(trained()).encode("a\ud800b")


SPACES = [" ", "\u2581"]
FIRST_SPACES = {
    # What puts a space before a text and what takes it away, as published tokenizers of the kind have it.
    "prepend": (
        normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(*SPACES)]),
        None,
        decoders.Sequence([decoders.Replace(*SPACES[::-1]), decoders.Fuse(), decoders.Strip(" ", 1, 0)]),
    ),
    "metaspace first": (
        None,
        pre_tokenizers.Metaspace(prepend_scheme="first", split=False),
        decoders.Sequence([decoders.Replace(*SPACES[::-1]), decoders.Fuse(), decoders.Strip(" ", 1, 0)]),
    ),
    "metaspace always": (None, pre_tokenizers.Metaspace(), decoders.Metaspace()),
    "bytes": (None, pre_tokenizers.ByteLevel(add_prefix_space=True), decoders.ByteLevel()),
}


@pytest.mark.parametrize("kind", FIRST_SPACES)
def test_a_continuation_is_tokens_in_the_middle_of_a_text(kind):
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    # Trained word by word, so that no token holds a space in its middle.
    backend.pre_tokenizer = pre_tokenizers.ByteLevel() if kind == "bytes" else pre_tokenizers.Metaspace()
    special = ["<s>", "</s>"]
    backend.train_from_iterator(CORPUS, tokenizers.trainers.BpeTrainer(vocab_size=120, special_tokens=special))
    normalizer, backend.pre_tokenizer, backend.decoder = FIRST_SPACES[kind]
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.add_tokens([tokenizers.AddedToken("<tool>", normalized=False)])
    tokenizer = Tokenizer(backend)
    whole = tokenizer.encode("the quick brown fox<tool> jumps")
    start = tokenizer.encode("the quick")
    rest = tokenizer.encode(" brown fox<tool> jumps", continues=True)
    assert whole[0] == start[0] != rest[0]
    assert [*start, *rest] == whole
    spaces = "  " if kind == "prepend" else " "  # Prepend puts one after every added token, at any place
    assert tokenizer.decode(rest, continues=True) == f" brown fox<tool>{spaces}jumps"
    brown = tokenizer.encode("brown", continues=True)
    assert brown != tokenizer.encode("brown")
    assert tokenizer.decode([*start, *brown]) == "the quickbrown".replace("the", " the" if kind == "bytes" else "the")
    assert tokenizer.is_text(start)
    assert not tokenizer.is_text([0, 1])


def test_a_continuation_of_bytes_needs_no_other_tokenizer():
    tokenizer = Tokenizer(trained(add_bos=True))
    assert tokenizer.encode(" there", add_special_tokens=False) == tokenizer.encode(" there", False, continues=True)


def test_a_long_text_has_the_ids_of_its_parts(tmp_path):
    write(tmp_path, trained(add_bos=True))
    tokenizer = Tokenizer.from_directory(tmp_path)
    text = "the quick brown fox. " * 1000
    for settings in ({}, {"add_special_tokens": False}, {"continues": True}):
        assert tokenizer.encode(text, **settings) == _plain(tokenizer, text, **settings)
    with pytest.raises(RequestError, match="surrogate"):
        tokenizer.encode(text + "\ud800")


def _plain(tokenizer, text, add_special_tokens=True, continues=False):
    return tokenizer.backend.encode(text, add_special_tokens=add_special_tokens and not continues).ids
