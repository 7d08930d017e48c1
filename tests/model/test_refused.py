"""Families that are refused: one sentence, with the word that matters. What they are is taken from transformers' tables
of classes, and llama.cpp's architectures from the gguf package.
"""

from functools import cache

import gguf
import pytest
import transformers
from huggingface_hub.errors import StrictDataclassError
from transformers.models.auto import modeling_auto as classes
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from tokenmill.errors import CheckpointError
from tokenmill.model.families import architectures, find_family
from tokenmill.model.families.refused import features_of_config, why_not
from tokenmill.registry import ENCODERS as READ
from tokenmill.registry import FAMILIES

OTHERS = sorted(set(CONFIG_MAPPING_NAMES) - set(FAMILIES) - set(READ))
DECODERS = set(classes.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
# Those of one kind alone, as transformers has them.
ENCODERS = sorted(set(classes.MODEL_FOR_MASKED_LM_MAPPING_NAMES) - DECODERS - set(READ))
SEEING = sorted(set(classes.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES) - DECODERS - set(FAMILIES))


def refused(config):
    with pytest.raises(CheckpointError) as error:
        find_family(config)
    return str(error.value)


@cache
def config_of(name):
    """The config that transformers has of it, with the class of its first use; its name alone where it has none."""
    try:
        return {**transformers.AutoConfig.for_model(name).to_dict(), "model_type": name}
    except (ValueError, TypeError, StrictDataclassError):  # of a few whose defaults do not fit
        return {"model_type": name}


LONG = pytest.param(True, 1, marks=pytest.mark.long)


@pytest.mark.parametrize(("with_config", "step"), [(False, 1), (True, 4), LONG])
def test_every_other_family_of_transformers_is_refused_in_a_short_sentence(with_config, step):
    """Of the configs every fourth by default: to import all of them takes transformers seven seconds."""
    for name in OTHERS[::step]:
        told = refused(config_of(name) if with_config else {"model_type": name})
        assert told.startswith(f"config.json: model_type {name!r} is not implemented: ") and len(told) < 320, told
        assert "only" not in told and told.count(",") < 4, told


@pytest.mark.parametrize(
    ("names", "word", "known"),
    [
        pytest.param(ENCODERS, "encoder", 0.9, id="encoders"),
        pytest.param(SEEING[::4], "pictures", 0.9, id="some seeing"),
        pytest.param(SEEING, "pictures", 0.9, id="seeing", marks=pytest.mark.long),
    ],
)
def test_the_word_is_found_by_the_config_or_the_name(names, word, known):
    """Of nine in ten: some have neither."""
    told = [name for name in names if word in refused(config_of(name))]
    assert len(told) >= known * len(names), sorted(set(names) - set(told))


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.long)])
def test_encoders_with_decoders_are_told_by_their_config(step):
    both = [name for name in OTHERS[::step] if config_of(name).get("is_encoder_decoder") is True]
    assert len(both) > 20 // step
    assert [name for name in both if "encodes" not in refused(config_of(name))] == []


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("mobilebert", "an encoder"),
        ("t5", "encodes"),
        ("whisper", "hears"),
        ("mamba", "state"),
        ("rwkv7", "state"),
        ("jamba", "state"),
        ("deepseek_v32", "latent attention"),
        ("sarvam_mla", "latent attention"),
        ("llava_next", "pictures"),
        ("bitnet", "ternary"),
        ("mimo_v2", "another family"),
        ("bloom", "ALiBi"),
        ("dream", "noise"),
        ("falcon", "another family"),
    ],
)
def test_the_word_that_matters_by_name_alone(name, word):
    assert word in refused({"model_type": name})


def test_keys_and_classes_tell_of_families_that_have_no_name_here():
    assert "latent attention" in refused({"model_type": "new", "kv_lora_rank": 512})
    both = refused({"model_type": "new_vl", "vision_config": {"depth": 1}, "text_config": {"mamba_d_state": 16}})
    assert both.endswith(": it sees pictures, and its layers keep a state in the place of keys and values")
    assert "an encoder" in refused({"model_type": "new", "architectures": ["NewForMaskedLM"]})
    assert "another family" in refused({"model_type": "new", "architectures": ["NewForCausalLM"]})
    assert "another family" in refused({"model_type": "new", "architectures": 3})
    assert features_of_config({"layer_types": ["conv"]}) == ("layers with state",)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("LLAMA", "llama"),
        ("lama", "llama"),
        ("mixtrall", "mixtral"),
        ("qwen3-moe", "qwen3_moe"),
        ("gpt-neox", "gpt_neox"),
    ],
)
def test_a_misspelt_name_gets_the_nearest_one(name, meant):
    assert refused({"model_type": name}) == (
        f"config.json: model_type {name!r} is not implemented: did you mean {meant!r}?"
    )


@pytest.mark.parametrize("name", ["qwen", "internlm2", "ministral", "deepseek", "exaone", "phi-msft"])
def test_another_family_of_a_like_name_is_no_misspelling(name):
    assert "did you mean" not in refused({"model_type": name})


@pytest.mark.parametrize("name", [None, 7, "", ["llama"]])
def test_what_is_no_name(name):
    assert refused({"model_type": name}).endswith("is not implemented: the name of a family is needed")


def test_architectures_of_llama_cpp():
    known = architectures().keys()
    told = {name: why_not(name, known) for name in gguf.MODEL_ARCH_NAMES.values() if name not in known}
    assert all(len(sentence) < 160 for sentence in told.values())
    for word, names in {
        "state": ("mamba", "rwkv6", "jamba", "qwen35", "granitehybrid", "falcon-h1", "lfm2", "nemotron_h"),
        "encoder": ("nomic-bert", "modern-bert", "t5encoder", "gemma-embedding"),
        "encodes": ("t5",),
        "latent": ("deepseek32", "plm", "glm-dsa"),
    }.items():
        assert all(word in told[name] for name in names if name in told)
