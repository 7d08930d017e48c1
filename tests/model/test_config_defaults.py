"""A config.json in which keys are left out, null, or spelled in another way is what transformers makes of it.

Each config of tests/tiny_models.py is changed one key at a time. Wanted is what is read of transformers' own config of
the changed file, written out in full. Where that cannot be read, transformers' model of it must fail as well.
"""

import dataclasses
import json
import logging
from collections.abc import Iterator, Mapping
from copy import deepcopy
from functools import cache
from typing import Any

import pytest
import torch
from transformers import PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests.tiny_models import FAMILY_NAMES, HYBRIDS, KINDS, TINY, auto_class, config_of, without_timm
from tokenmill.errors import CheckpointError
from tokenmill.model.config import ModelConfig
from tokenmill.model.families import DEFAULTS, NULLS, find_family, read_config
from tokenmill.registry import FAMILIES

Config = dict[str, Any]
# What the reader refuses with a sentence though transformers makes some model of it.
REFUSED = (
    "heads do not divide a hidden size",
    "transformers rotates whole heads",
    "in the rope parameters",  # a base beside the rope parameters of Apertus' class, which transformers 4 took
    "rope_theta = None",  # where no layer has a rope
    "per_layer_config = None",  # which transformers takes, and loses where it writes the config again
    "or 0 for none, for each of 2 layers",  # a base of each layer, while all of Muse Glimmer's have the model's
    "is not allowed: as many as vocab_size",  # of a table for inputs of layers
    "entries that are rotated",  # in a model whose inputs decide its shapes, so that it cannot be tried without weights
    "model_max_length = None",  # which transformers does not check
    "does not know: partial_rotary_factor",  # which is rotary_pct in GPT-NeoX
)
# Keys and other names of keys that the classes take from the rest of a config, nulls that their code replaces, and
# sizes that a family lacks, for which ones stand.
IN_CODE: dict[str, set[str]] = {
    "mamba2": {"intermediate_size", "num_attention_heads", "num_key_value_heads", "max_position_embeddings"},
    "nemotron_h": {"num_key_value_heads", "num_hidden_layers", "mamba_n_groups", "mamba_d_conv", "mamba_conv_bias"},
    "lfm2": {"block_ff_dim", "tie_embedding"},
    "lfm2_moe": {"tie_embedding"},
    "kimi_linear": {"first_k_dense_replace", "max_position_embeddings", "n_group", "n_routed_experts", "norm_topk_prob"}
    | {"n_shared_experts", "num_experts_per_tok"},
    "gemma4_text": {"sliding_window", "global_head_dim"},
    **{name: {"sliding_window"} for name in ("exaone_moe", "laguna", "mimo_v2_flash")},
    "phimoe": {"num_key_value_heads"},
    "gemma3n_text": {"sliding_window"},
    "gemma4_unified_text": {
        *("sliding_window", "global_head_dim"),
        *("hidden_size_per_layer_input", "vocab_size_per_layer_input", "enable_moe_block"),  # which it lacks
    },
    "qwen3_5_text": {"full_attention_interval"},
    "qwen3_5_moe_text": {"full_attention_interval"},
    "qwen3_next": {"full_attention_interval"},
}
OUTSIDE = ("rope_theta", "partial_rotary_factor")
NAMES = [
    name if name in FAMILY_NAMES or "rope_parameters" in numbers else pytest.param(name, marks=pytest.mark.long)
    for name, (_, numbers) in TINY.items()
]
"""The others have keys of the family's first model, with other values."""
WITH_ALL = (*KINDS, *HYBRIDS, "gemma3")
"""Families whose every key is changed by default, one with parts among them."""
INHERITED = set(PreTrainedConfig().to_dict()) - {"model_type", "dtype"}
"""Keys that every class has from transformers' own and no family reads."""
OF_BOTH = ("dtype", "torch_dtype", "both dtypes", "eos_token_id", "tie_word_embeddings", "quantization_config")
"""What a file may say of a model with parts beside its text part and inside."""


def plain(config: Any) -> Config:
    return dict(json.loads(json.dumps(config.to_dict(), default=str)))


def made(config: Config) -> Any:
    """transformers' config of such a file."""
    return CONFIG_MAPPING[config["model_type"]].from_dict(deepcopy(config))


def fails(config: Config) -> bool:
    """Whether transformers cannot make this model, or its model cannot run."""
    try:
        theirs = made(config)
        with torch.device("meta"), without_timm():
            model = auto_class(theirs).from_config(theirs, attn_implementation="eager", dtype=torch.bfloat16)
            model(torch.zeros(1, 7, dtype=torch.long))
    except NotImplementedError:  # of shapes that depend on values
        return False
    except Exception:  # noqa: BLE001  (whatever goes wrong there)
        return True
    return False


def spellings(config: Config, aliases: Mapping[str, str]) -> Iterator[tuple[str, Config]]:
    """The same, or what a writer may have meant, in other words."""
    for alias, name in aliases.items():
        if name in config:
            yield f"{alias} for {name}", without(config, name) | {alias: config[name]}
    rest, rope = without(config, "rope_parameters"), config.get("rope_parameters")
    if isinstance(rope, dict) and "rope_type" in rope:
        outside = {key: value for key, value in rope.items() if key in OUTSIDE}
        inside = {key: value for key, value in rope.items() if key not in OUTSIDE}
        older = {"type": inside["rope_type"], **without(inside, "rope_type")}
        yield "rope_scaling", rest | outside | {"rope_scaling": inside}
        yield "rope_scaling with a type", rest | outside | {"rope_scaling": older}
        yield "rope_scaling that says all", rest | {"rope_scaling": rope}
        yield "rope_parameters with a type", rest | {"rope_parameters": older | outside}
        yield "rope_theta in both places", config | outside
        yield "rope_theta in no place", rest | {"rope_parameters": inside}
        yield "rope_theta of null", rest | {"rope_theta": None}
        yield "rope_scaling of null", rest | outside | {"rope_scaling": None}
        yield "rope_theta alone", rest | outside
        yield "a part of the head", rest | outside | {"partial_rotary_factor": 0.5}
    yield "torch_dtype", without(config, "dtype") | {"torch_dtype": "bfloat16"}
    yield "torch_dtype of null", without(config, "dtype") | {"torch_dtype": None}
    yield "both dtypes", config | {"torch_dtype": "bfloat16", "dtype": "float16"}


def without(config: Config, key: str) -> Config:
    return {name: value for name, value in config.items() if name != key}


def changes(config: Config) -> Iterator[tuple[str, Config]]:
    """Each key left out and null, and the other spellings."""
    for key in sorted(set(config) - {"model_type"}):
        yield f"without {key}", without(config, key)
        yield f"{key} of null", config | {key: None}
    yield from spellings(config, CONFIG_MAPPING[config["model_type"]].attribute_map)


def cases(name: str) -> Iterator[tuple[str, Config]]:
    config = plain(config_of(*TINY[name]))
    yield from changes(config)
    if "text_config" in config:
        inner = config["text_config"]
        for label, changed in changes(inner):
            yield f"text_config: {label}", config | {"text_config": changed}
        for tie in (True, False):
            text = {"text_config": inner | {"tie_word_embeddings": tie}}
            yield f"a tie of {tie} inside alone", without(config, "tie_word_embeddings") | text


@cache
def part_of(name: str) -> str:
    """The family of the text part."""
    return str(config_of(*TINY[name]).text_config.model_type)


def is_elsewhere(name: str, label: str) -> bool:
    """Whether the change of a key is tried in other families, by the same code.

    A text part is read as a model of its family is, but for the keys that may stand outside.
    """
    if name in WITH_ALL:
        return False
    inner = label.removeprefix("text_config: ")
    key = inner.removeprefix("without ").removesuffix(" of null")
    if key in INHERITED:
        return True
    has_own = label != inner and part_of(name) in FAMILY_NAMES
    return has_own and key not in OF_BOTH


def read(config: Config) -> ModelConfig | str:
    try:
        return read_config(config)
    except CheckpointError as error:
        return str(error)


def is_right(changed: Config) -> bool:
    ours = read(changed)
    try:
        wanted = read(plain(made(changed)))
    except Exception:  # noqa: BLE001  (transformers refuses it, and tokenmill may)
        return True
    if isinstance(ours, ModelConfig) and ours == wanted:
        return True
    return (isinstance(ours, str) and any(words in ours for words in REFUSED)) or fails(changed)


@pytest.mark.parametrize("name", NAMES)
def test_a_config_is_what_transformers_makes_of_it(name, caplog):
    """8,000 cases with those of the next test, of which 300 are asked of transformers' model, without weights."""
    caplog.set_level(logging.ERROR)
    every = list(cases(name))
    found = [(label, changed) for label, changed in every if not is_elsewhere(name, label)]
    assert len(every) > 40 and len(found) > 20
    assert [label for label, changed in found if not is_right(changed)] == []


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in TINY if name not in WITH_ALL])
def test_the_keys_that_families_share_are_read_alike(name, caplog):
    caplog.set_level(logging.ERROR)
    found = [(label, changed) for label, changed in cases(name) if is_elsewhere(name, label)]
    assert len(found) > 20
    assert [label for label, changed in found if not is_right(changed)] == []


def test_the_cases_can_be_wrong(monkeypatch):
    """The same with the defaults of another class."""
    family = find_family({"model_type": "mixtral"})
    monkeypatch.setitem(family.defaults, "rms_norm_eps", 1e-6)
    assert [label for label, changed in cases("mixtral") if not is_right(changed)] == ["without rms_norm_eps"]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_defaults_are_those_of_the_class(family):
    """Every key that the family's class has, by its type and its value; what is null by the types that it may have."""
    ours, cls = find_family({"model_type": family}), CONFIG_MAPPING[family]
    fields = {field.name: field for field in dataclasses.fields(cls)}
    if ours.text is not None:
        if family == "muse_glimmer":  # whose class has no such key
            return
        assert fields["tie_word_embeddings"].default == ours.text.tied
        assert ("None" in str(fields["tie_word_embeddings"].type)) == ours.text.untied_by_null
        return
    defaults, nulls = {**DEFAULTS, **ours.defaults}, {**NULLS, **ours.nulls}
    known = {key: fields[name] for key in defaults if (name := ours.keys.get(key, key)) in fields}
    assert {key: defaults[key] for key in known} == {
        key: nulls.get(key) if field.default is None else field.default for key, field in known.items()
    }
    assert all(type(defaults[key]) in (type(field.default), list) for key, field in known.items())
    in_code = IN_CODE.get(family, set())
    assert {key for key in nulls if key in known and "None" not in str(known[key].type)} <= in_code
    others = {key for key, value in ours.defaults.items() if key not in known and value is not None}
    assert others <= {"partial_rotary_factor", "rope_theta", "rope_local_base_freq", *in_code}
    assert set(ours.aliases) <= {*cls.attribute_map, *cls.attribute_map.values(), *in_code}
