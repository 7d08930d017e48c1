"""tokenizer_config.json: every key means what transformers' AutoTokenizer makes of it, or is refused by name."""

import json
import logging
from pathlib import Path

import pytest
import tokenizers
import transformers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers.models.auto.tokenization_auto import (
    MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS,
    TOKENIZER_MAPPING_NAMES,
)
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

from tests.text.test_tokenizer import CORPUS
from tokenmill.errors import CheckpointError
from tokenmill.registry import FAMILIES
from tokenmill.text.tokenizer import Tokenizer
from tokenmill.text.tokenizer_config import read_tokenizer_config

END, PADDING = "<|endoftext|>", "<|padding|>"
TEXTS = ["two three", " two", "  two", "", f"the{END}fox {END} fox", "\nfox", "fox <x> quick", "naïve fox\nlazy"]


def trained(regex: str | None = None) -> tokenizers.Tokenizer:
    """A byte-level tokenizer that splits as GPT-2's, or by a regex as Qwen's."""
    backend = tokenizers.Tokenizer(models.BPE())
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex is None)
    split = [] if regex is None else [pre_tokenizers.Split(Regex(regex), "isolated", False)]
    backend.pre_tokenizer = pre_tokenizers.Sequence([*split, letters]) if split else letters
    if regex is not None:
        backend.normalizer = normalizers.NFC()
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet, special_tokens=[END, PADDING])
    )
    return backend


def like_llama() -> tokenizers.Tokenizer:
    """Pieces with ▁ for a space, as transformers 5 converts Llama's."""
    parts = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    parts.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    parts.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=340, special_tokens=names))
    made = json.loads(parts.to_str())["model"]
    merges = [tuple(merge) for merge in made["merges"]]
    backend = tokenizers.Tokenizer(
        models.BPE(made["vocab"], merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(steps)
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return backend


BACKENDS = {"gpt2": trained(), "qwen2": trained(PRETOKENIZE_REGEX), "llama": like_llama()}
CLASSES = {
    "gpt2": ["GPT2Tokenizer", "GPT2TokenizerFast", "GPTNeoXTokenizer", "CodeGenTokenizer"],
    "qwen2": ["Qwen2Tokenizer", "Qwen2TokenizerFast"],
    "llama": ["LlamaTokenizer", "LlamaTokenizerFast"],
}
GENERIC = ["PreTrainedTokenizerFast", "TokenizersBackend", "LlamaTokenizerFast"]


def write(path: Path, backend: tokenizers.Tokenizer, /, model_type: str = "llama", **settings) -> Path:
    backend.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    (path / "config.json").write_text(json.dumps({"model_type": model_type, "vocab_size": 400}))
    return path


def compare(path: Path, texts=TEXTS) -> None:
    ours, theirs = Tokenizer.from_directory(path), transformers.AutoTokenizer.from_pretrained(path)
    for text in texts:
        ids = theirs(text)["input_ids"]
        assert ours.encode(text) == ids, text
        assert ours.decode(ids, skip_special=False) == theirs.decode(ids)
    found = [
        {number: (token.content, token.special, token.lstrip, token.rstrip, token.normalized, token.single_word)
         for number, token in backend.get_added_tokens_decoder().items()
         if token.content != PADDING}  # which transformers forgets where the config declares other tokens
        for backend in (ours.backend, theirs.backend_tokenizer)
    ]  # fmt: skip
    assert found[0] == found[1]


@pytest.mark.parametrize("prefix", [True, False, None, ...])
@pytest.mark.parametrize("model_type", ["llama", "qwen3", "granite"])
@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in CLASSES for name in [*CLASSES[kind], *GENERIC]])
def test_a_space_before_a_text_is_transformers_(kind, name, model_type, prefix, tmp_path):
    if prefix is None and name.removesuffix("Fast") in ("GPT2Tokenizer", "GPTNeoXTokenizer", "CodeGenTokenizer"):
        pytest.skip("transformers fails on null, and tokenmill takes it for no space")
    settings = {} if prefix is ... else {"add_prefix_space": prefix}
    compare(write(tmp_path, BACKENDS[kind], model_type, tokenizer_class=name, **settings))


@pytest.mark.parametrize("name", ["GPT2TokenizerFast", "Qwen2Tokenizer"])
def test_a_space_that_only_tokenizer_json_asks_for_is_left_out(name, tmp_path):
    kind = "gpt2" if name.startswith("GPT2") else "qwen2"
    asks = tokenizers.Tokenizer.from_str(BACKENDS[kind].to_str().replace(
        '"add_prefix_space":false', '"add_prefix_space":true'
    ))  # fmt: skip
    compare(write(tmp_path, asks, tokenizer_class=name))


def test_text_that_follows_other_text_gets_no_space(tmp_path):
    given = Tokenizer.from_directory(
        write(tmp_path, BACKENDS["gpt2"], tokenizer_class="GPT2Tokenizer", add_prefix_space=True)
    )
    assert given.encode("fox") == given.encode(" fox", continues=True) != given.encode("fox", continues=True)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_the_class_of_a_family_is_transformers_(family):
    """Beside a class of another family, and beside none."""
    registered = TOKENIZER_MAPPING_NAMES.get(family)
    backend = "TokenizersBackend"
    config = read_tokenizer_config({}, {}, family, True)
    assert config.class_name == (registered or backend)
    named = read_tokenizer_config({"tokenizer_class": "GPT2TokenizerFast"}, {}, family, True).class_name
    is_wrong = family in MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS and registered != backend
    assert named == (backend if registered == backend else registered if is_wrong else "GPT2Tokenizer")


def added(content: str, **flags: bool) -> dict:
    return {"content": content, **dict.fromkeys(("lstrip", "rstrip", "normalized", "single_word"), False), **flags}


def more(*tokens: AddedToken) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer.from_str(BACKENDS["gpt2"].to_str())
    backend.add_tokens(list(tokens))
    return backend


@pytest.mark.parametrize("name", ["GPT2Tokenizer", "PreTrainedTokenizerFast"])
@pytest.mark.parametrize(
    ("backend", "settings"),
    [
        (more(), {"eos_token": END, "add_bos_token": True, "add_eos_token": True, "bos_token": END}),
        (more(), {"eos_token": {**added(END, lstrip=True), "__type": "AddedToken"}}),
        (more(), {"added_tokens_decoder": {"330": added("<x>", special=True)}}),
        (more(), {"added_tokens_decoder": {"330": added("<x>", special=True, lstrip=True, rstrip=True)}}),
        (more(), {"added_tokens_decoder": {"330": added("<x>", normalized=True)}}),
        (more(), {"added_tokens_decoder": {"0": added(END, special=True, lstrip=True)}}),
        (more(AddedToken("<x>")), {"added_tokens_decoder": {"330": added("<x>", special=True, lstrip=True)}}),
        (more(), {"pad_token": "<x>", "eos_token": END}),
        (more(), {"pad_token": "qui"}),
        (more(AddedToken("<x>")), {"eos_token": "<x>"}),
        (more(), {"additional_special_tokens": ["<x>", "fox"]}),
        (more(AddedToken("<x>")), {"additional_special_tokens": ["<x>"]}),
        (more(AddedToken("<x>")), {"extra_special_tokens": {"image_token": "<x>"}}),
        (more(AddedToken("<x>")), {"extra_special_tokens": ["<x>"]}),
        (more(AddedToken("<x>")), {"image_token": "<x>"}),
        (more(AddedToken("fox", single_word=True)), {}),
        (more(), {"bos_token": None, "eos_token": None, "split_special_tokens": False, "errors": "strict"}),
        (more(), {"model_max_length": 2, "do_lower_case": True, "legacy": False, "padding_side": "left"}),
    ],
    ids=lambda value: json.dumps(value)[:60] if isinstance(value, dict) else "",
)
def test_tokens_are_added_as_transformers_adds_them(name, backend, settings, tmp_path):
    compare(write(tmp_path, backend, tokenizer_class=name, **settings))


def test_a_name_without_a_row_stays_text(tmp_path):
    """Its id would lie beyond the embedding; transformers gives it all the same."""
    path = write(tmp_path, more(), pad_token="<x>")
    (path / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": more().get_vocab_size()}))
    assert max(Tokenizer.from_directory(path).encode("<x>")) < more().get_vocab_size()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"add_prefix_space": "yes"}, "add_prefix_space = 'yes' is not allowed: true or false"),
        ({"add_prefix_space": 1}, "add_prefix_space = 1 is not allowed"),
        ({"add_bos_token": 1}, "add_bos_token = 1 is not allowed"),
        ({"clean_up_tokenization_spaces": "no"}, "clean_up_tokenization_spaces"),
        ({"legacy": 0}, "legacy = 0"),
        ({"bos_token": 3}, "bos_token must be an object with named values, not 3"),
        ({"bos_token": ["<s>"]}, "bos_token must be an object"),
        ({"eos_token": {"content": 3}}, "eos_token: content = 3 is not allowed: a text"),
        ({"eos_token": {"content": "</s>", "lstrip": "no"}}, "eos_token: lstrip = 'no'"),
        ({"eos_token": {"content": "</s>", "strip": True}}, "eos_token has keys that tokenmill does not know: strip"),
        ({"extra_special_tokens": "<x>"}, "extra_special_tokens = '<x>' is not allowed: a list of tokens, or an"),
        ({"additional_special_tokens": [3]}, "additional_special_tokens"),
        ({"added_tokens_decoder": ["<x>"]}, "added_tokens_decoder = .* must map token ids to tokens"),
        ({"added_tokens_decoder": {"x": {}}}, "added_tokens_decoder"),
        ({"added_tokens_decoder": {"7": {"content": "<x>", "special": 1}}}, "added_tokens_decoder: 7: special = 1"),
        ({"tokenizer_class": 7}, "tokenizer_class = 7 is not allowed: a text"),
        ({"padding_side": "top"}, "padding_side = 'top' is not implemented: only 'right', 'left'"),
        ({"split_special_tokens": True}, "split_special_tokens = True is not implemented"),
        ({"byte_alphabet": "another"}, "tokenizer_config.json has keys that tokenmill does not know: byte_alphabet"),
    ],
)
def test_what_is_refused(settings, message, tmp_path):
    with pytest.raises(CheckpointError, match=message):
        Tokenizer.from_directory(write(tmp_path, BACKENDS["gpt2"], **settings))


@pytest.mark.parametrize("name", ["GPT2Tokenizer", "PreTrainedTokenizerFast"])
def test_a_text_has_one_encoding(name, tmp_path, caplog):
    """BPE's dropout, which training leaves in a file, is off: the ids are those of the same file without it."""
    backend = more()
    plain = [backend.encode(text).ids for text in TEXTS]
    backend.model.dropout = 0.5
    path = write(tmp_path, backend, tokenizer_class=name)
    with caplog.at_level(logging.WARNING):
        ours = Tokenizer.from_directory(path)
    assert "the tokenizer's dropout = 0.5, which is of training, is off" in caplog.text.replace(
        "0.4000000059604645", "0.4"
    )
    for _ in range(20):
        assert [ours.encode(text) for text in TEXTS] == plain
        assert ours.encode("quick fox", continues=True) == backend_without_dropout("quick fox")


def backend_without_dropout(text: str) -> list[int]:
    return list(more().encode(text).ids)


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("content", ["<é>", "naïve", "ÿ", "<\uff5cfim▁é\uff5c>", "é你"])
def test_an_added_token_is_its_own_text(content, special, tmp_path):
    """Byte-level decoding takes é for a byte; a token that is added has a text, and no bytes in letters."""
    path = write(tmp_path, more(AddedToken(content, special=special, normalized=False)))
    ours, text = Tokenizer.from_directory(path), f"the {content} fox é{content}"
    ids = ours.encode(text)
    assert ours.backend.token_to_id(content) in ids
    assert ours.decode(ids, skip_special=False) == text
    assert ours.decode(ids) == (text.replace(content, "") if special else text)
    assert ours.decode_each([ours.backend.token_to_id(content)]) == [content]


# Keys beside the tokens and the template of files of these makers, and of programs that write such files.
WRITTEN = {
    "Qwen": {"add_bos_token": False, "errors": "replace", "split_special_tokens": False, "model_max_length": 131072},
    "Llama": {"legacy": True, "sp_model_kwargs": {}, "spaces_between_special_tokens": False, "add_prefix_space": None},
    "Gemma": {"boi_token": END, "image_token": END, "processor_class": "Gemma3Processor", "extra_special_tokens": {}},
    "GLM": {"do_lower_case": False, "remove_space": False, "auto_map": {"AutoTokenizer": ["x.Y", None]}},
    "SmolLM3": {"fast": False, "model_input_names": ["input_ids", "attention_mask"], "max_length": None},
    "phi": {"pad_to_multiple_of": None, "pad_token_type_id": 0, "stride": 0, "truncation_strategy": "longest_first"},
    "transformers 5": {"backend": "tokenizers", "is_local": True, "local_files_only": False, "response_schema": {}},
    "other programs": {
        "tool_parser_type": "json_tools",
        "image_token_id": 7,
        "unsloth_version": "2026.1",
        "eos_token_id": 0,
    },
}


# One key each of the same kinds, whose values change nothing in transformers.
HARMLESS = {
    "from_slow": True, "suffix_first": False, "do_basic_tokenize": True, "never_split": ["x"], "extra_ids": 0,
    "mode": "finetuning", "num_img_tokens": 144, "decode_with_prefix_space": False, "_attn_implementation": "sdpa",
    "attn_implementation": "eager", "low_cpu_mem_usage": True, "load_in_8bit": True, "load_in_4bit": True,
    "max_new_tokens": 512, "return_tensors": "pt", "use_flash_attention_2": True, "_name_or_path": "a/b",
    "is_fast": True, "num_labels": 2, "rope_scaling": {"type": "linear", "factor": 2.0}, "use_cache": False,
    "resume_download": True, "force_download": False, "max_position_embeddings": 4096, "is_split_into_words": True,
    "device_map": "auto", "quantization_config": {"bits": 4}, "skip_special_tokens": True, "dtype": "bfloat16",
    "variant": "fp16", "wordpieces_prefix": "##", "fill_token": END, "return_attention_mask": True,
}  # fmt: skip


@pytest.mark.parametrize("key", HARMLESS)
def test_a_key_of_another_call_or_class_changes_nothing(key, tmp_path):
    compare(write(tmp_path, BACKENDS["gpt2"], tokenizer_class="GPT2Tokenizer", **{key: HARMLESS[key]}))


@pytest.mark.parametrize("declared", [{}, {"0": {**added(END), "special": True}}, None])
def test_special_tokens_map_counts_where_the_config_declares_no_tokens(declared, tmp_path):
    settings = {} if declared is None else {"added_tokens_decoder": declared}
    path = write(tmp_path, more(AddedToken("<x>")), tokenizer_class="PreTrainedTokenizerFast", **settings)
    (path / "special_tokens_map.json").write_text(json.dumps({"eos_token": END, "pad_token": "<x>"}))
    compare(path)
    ours, theirs = Tokenizer.from_directory(path), transformers.AutoTokenizer.from_pretrained(path)
    assert ours.special_texts == theirs.special_tokens_map
    assert ours.eos_token_ids == (() if theirs.eos_token_id is None else (theirs.eos_token_id,))


@pytest.mark.parametrize("maker", WRITTEN)
def test_keys_that_others_write_are_known(maker, tmp_path):
    ours = Tokenizer.from_directory(write(tmp_path, BACKENDS["gpt2"], **WRITTEN[maker]))
    assert [ours.encode(text) for text in TEXTS] == [BACKENDS["gpt2"].encode(text).ids for text in TEXTS]


def test_a_unigram_model_draws_no_cuts(caplog):
    model = models.Unigram([("<unk>", 0.0), ("a", -1.0), ("b", -1.1), ("ab", -1.2), ("ba", -1.3), ("aba", -1.2)], 0)
    plain = tokenizers.Tokenizer(model).encode("abababa").ids
    model.alpha, model.nbest_size = 0.5, 10
    with caplog.at_level(logging.WARNING):
        ours = Tokenizer(tokenizers.Tokenizer(model))
    assert {tuple(ours.encode("abababa")) for _ in range(20)} == {tuple(plain)}
    assert "alpha = 0.5" in caplog.text and "nbest_size = 10" in caplog.text
