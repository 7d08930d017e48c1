"""Keys of GGUF files: what llama.cpp itself writes is read, and every key that is known says what it does.

llama_cpp_saved_keys.json is what llama_model_save_to_file of the wheel xllamacpp 2026.10.11549 adds to, or changes in,
the files of tests/gguf_files.py: under "all" what is alike for all of them. Long lists are told by entry and length.
"""

import json
import re
from pathlib import Path
from typing import Any

import gguf
import pytest

from tests import gguf_files
from tokenmill.errors import CheckpointError
from tokenmill.text.vocab import tokenizer_from_gguf
from tokenmill.weights.gguf.checkpoint import GGUFCheckpoint

SAVED = json.loads(Path(__file__).with_name("llama_cpp_saved_keys.json").read_text())
KEYS = gguf.constants.Keys
READ_BY_YARN = "original_context_length yarn_ext_factor yarn_attn_factor yarn_beta_fast yarn_beta_slow".split()
ANY_VALUE = {
    "pooling_type",
    "rope.scaling.finetuned",
    "decoder_start_token_id",
    *(f"rope.scaling.{key}" for key in READ_BY_YARN),
}


def value_of(entry: Any) -> Any:
    if isinstance(entry, dict):
        return [entry["repeat"]] * entry["times"]
    return float("-inf") if entry == "-inf" else entry


def saved(name: str) -> dict[str, Any]:
    pairs = {key: value_of(entry) for key, entry in (SAVED["all"] | SAVED[name]).items()}
    return {key: value for key, value in pairs.items() if not key.startswith("xielu.") and value != []}


def opened(folder, name, **metadata):
    return GGUFCheckpoint(gguf_files.write(folder / "x.gguf", name, metadata=metadata))


@pytest.mark.parametrize("name", [name for name in SAVED if name != "all"])
def test_a_file_that_llama_cpp_has_saved_is_the_same_model(tmp_path, name, caplog):
    plain = opened(tmp_path, name)
    ours = opened(tmp_path, name, **saved(name))
    assert ours.config == plain.config
    assert ours.tokenizer().encode("the 12 x") == plain.tokenizer().encode("the 12 x")
    assert not caplog.messages


@pytest.mark.parametrize("name", ["qwen3", "gptneox"])
def test_another_value_of_these_keys_is_refused(tmp_path, name):
    for key, value in saved(name).items():
        if "tokenizer." in key or key.startswith("general.") or key in ANY_VALUE or isinstance(value, str):
            continue
        other = [3, 4] if isinstance(value, list) else not value if isinstance(value, bool) else value % 1000 + 3
        other = 3.5 if value == float("-inf") else other
        if key in ("rope.scaling.factor", "rope.freq_base"):
            assert opened(tmp_path, name, **{key: other}).config != opened(tmp_path, name).config
            continue
        with pytest.raises(CheckpointError, match=re.escape(key.rpartition(".")[2])):
            opened(tmp_path, name, **{key: other})


@pytest.mark.parametrize(
    ("metadata", "scaling"),
    [
        ({"rope.scaling.factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        ({"rope.scale_linear": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 0.0}, None),
        ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, None),
        ({"rope.scaling.factor": 0.0, "rope.scale_linear": 4.0}, None),
    ],
    ids=str,
)
def test_a_factor_is_read_as_llama_cpp_reads_it(tmp_path, metadata, scaling):
    """llama-model.cpp: without a type it is linear, 0 is 1, and an old name counts where the new one is missing."""
    assert opened(tmp_path, "llama", **metadata).config.get("rope_scaling") == scaling


def test_the_numbers_of_yarn_that_stand_for_not_set_are_none(tmp_path, caplog):
    """llama.cpp writes 1.0 for the attention factor that it does not read, and -1.0 beside it."""
    yarn = {"type": "yarn", "factor": 4.0, "original_context_length": 32, "yarn_attn_factor": 1.0}
    yarn |= {"yarn_ext_factor": -1.0, "yarn_beta_fast": 32.0, "yarn_beta_slow": 1.0}
    config = opened(tmp_path, "qwen3", **{f"rope.scaling.{key}": value for key, value in yarn.items()}).config
    assert "attention_factor" not in config["rope_scaling"]
    assert not caplog.messages


USED = {
    "temp": {"temperature": 0.5},
    "top_k": {"top_k": 5},
    "top_p": {"top_p": 0.5},
    "min_p": {"min_p": 0.5},
    "penalty_repeat": {"repetition_penalty": 0.5},
    "xtc_probability": {"xtc_probability": 0.5},
    "xtc_threshold": {"xtc_threshold": 0.5},
}
VALUES = {"top_k": 5, "sequence": "kp", "penalty_last_n": 64, "mirostat": 2}


@pytest.mark.parametrize("key", [value for name, value in vars(KEYS.General).items() if not name.startswith("_")])
def test_every_general_key_is_known(tmp_path, key, caplog):
    special = {"general.architecture": "llama", "general.type": "model", "general.alignment": 32}
    name = key.replace("{id}", "0")
    last = name.removeprefix("general.sampling.")
    is_sampling = last != name
    value = special.get(name, VALUES.get(last, 0.5) if is_sampling else "some text")
    metadata = {name: value} if name not in ("general.architecture", "general.alignment") else {}
    defaults = opened(tmp_path, "llama", **metadata).generation_defaults()
    assert defaults == (USED.get(last, {}) if is_sampling else {})
    warned = last in ("sequence", "mirostat")
    assert bool(caplog.messages) == warned
    assert not warned or f"has settings that tokenmill does not have: {last} = {value!r}" in caplog.text


def test_general_keys_that_are_not_known_are_named(tmp_path, caplog):
    opened(tmp_path, "llama", **{"general.base_model.3.novel": "x", "general.rescale": 0.5})
    assert "are ignored: general.base_model.3.novel = 'x', general.rescale = 0.5" in caplog.text


def test_a_window_of_the_repetition_penalty_is_said_where_there_is_a_penalty(tmp_path, caplog):
    penalty = {"general.sampling.penalty_repeat": 1.1, "general.sampling.penalty_last_n": 64}
    assert opened(tmp_path, "llama", **penalty).generation_defaults() == {"repetition_penalty": 1.1}
    assert "has settings that tokenmill does not have: penalty_last_n = 64" in caplog.text


# What each key of a vocabulary does here: to the ids or texts, nothing, or that it is refused.
NOTHING = """token_type_count add_sep_token huggingface.json rwkv.world seperator_token_id mask_token_id
fim_pre_token_id fim_suf_token_id fim_mid_token_id prefix_token_id suffix_token_id middle_token_id""".split()
OF_SENTENCEPIECE = ["scores", "add_space_prefix", "remove_extra_whitespaces"]
ENDS = [f"{name}_token_id" for name in ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")]
DOES = ["model", "pre", "tokens", "token_type", "merges", "add_bos_token", "add_eos_token"]
NAMES = {"bos_token_id": "bos_token", "unknown_token_id": "unk_token", "padding_token_id": "pad_token"}
TEMPLATES = {"chat_template": "x", "chat_template.{name}": "x", "chat_templates": ["x"]}
EXAMPLES = {"token_type_count": 2, "add_sep_token": True, "huggingface.json": "{}", "rwkv.world": "x"}
WRONG = {"tokens": [1], "merges": ["x"], "token_type": [1], "add_bos_token": 1, "add_eos_token": 1}


@pytest.mark.parametrize("key", [value for name, value in vars(KEYS.Tokenizer).items() if not name.startswith("_")])
def test_every_key_of_a_vocabulary_is_known(key):
    metadata = gguf_files.vocabulary()
    plain, short = tokenizer_from_gguf(metadata), key.removeprefix("tokenizer.").removeprefix("ggml.")

    def changed(value):
        return tokenizer_from_gguf(metadata | {key.replace("{name}", "tool_use"): value})

    if short in NOTHING:
        ours = changed(EXAMPLES.get(short, 7))
        assert (ours.encode("the x"), ours.eos_token_ids) == (plain.encode("the x"), plain.eos_token_ids)
    elif short in ENDS:
        assert 7 in changed(7).eos_token_ids
    elif short in NAMES:
        assert changed(7).special_texts[NAMES[short]] == plain.spellings[7]
    elif short in TEMPLATES:
        assert changed(TEMPLATES[short]) is not None
    elif short == "precompiled_charsmap":
        with pytest.raises(CheckpointError, match=r"precompiled_charsmap = \[1\] is not implemented: only \[\]"):
            changed([1])
    elif short in OF_SENTENCEPIECE:
        assert changed([0.0] * 281 if short == "scores" else True).encode("the x") == plain.encode("the x")
    else:
        assert short in DOES
        with pytest.raises(CheckpointError, match=short):
            changed(WRONG.get(short, "novel"))
