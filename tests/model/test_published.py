"""Configs of public models are read and describe as many parameters as they have, or they are refused in a sentence."""

import re
from copy import deepcopy

import pytest
import torch
import transformers

from tests.published import PUBLISHED, READ, REFUSED, without_codes
from tests.tiny_models import CORRECTIONS, auto_class, without_timm
from tokenmill.errors import CheckpointError
from tokenmill.model.counts import count_parameters
from tokenmill.model.families import read_config
from tokenmill.registry import FAMILIES


def published(name):
    return read_config(without_codes(PUBLISHED[name]["config"]))


def counted(config):
    """The parameters of the language model that transformers makes of this config, without their memory. A tied head
    is no parameter of its own; a number that is added to an expert's score is a buffer there, and one here.
    """
    with torch.device("meta"), without_timm():
        model = auto_class(config).from_config(config)
    model.tie_weights()
    tower = ("vision", "visual", "multi_modal", "mm_projector", "audio")
    parameters = {id(each): each for name, each in model.named_parameters() if not any(part in name for part in tower)}
    corrections = [each for name, each in model.named_buffers() if name.endswith(CORRECTIONS)]
    return sum(each.numel() for each in [*parameters.values(), *corrections])


def test_there_are_many():
    assert len(PUBLISHED) >= 150 and len(READ) >= 100
    assert all(entry["source"] and {"model_type"} <= set(entry["config"]) for entry in PUBLISHED.values())


@pytest.mark.parametrize("name", READ)
def test_the_parameters_are_as_many(name):
    """Exactly as transformers has them, and within 1 % of what is published, which may be rounded or have buffers."""
    entry, ours = PUBLISHED[name], sum(count_parameters(published(name)).values())
    assert ours == entry.get("parameters", ours)
    assert ours == pytest.approx(entry.get("published", ours), rel=0.01)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_implemented_is_refused_in_a_sentence(name):
    with pytest.raises(CheckpointError, match=re.escape(PUBLISHED[name]["refused"])):
        published(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in READ if "parameters" in PUBLISHED[name]])
def test_transformers_counts_as_many(name):
    config = {key: value for key, value in without_codes(PUBLISHED[name]["config"]).items() if value is not None}
    made = transformers.AutoConfig.for_model(**deepcopy(config))
    assert counted(made) == PUBLISHED[name]["parameters"]


# Whose defaults are no model: widths that do not fit, or nothing where a number is needed. Or one that is refused.
NO_DEFAULTS = set(
    "deepseek_v2 dots1 glm4_moe granitemoehybrid hunyuan_v1_dense hunyuan_v1_moe lfm2_moe nemotron".split()
)


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(set(FAMILIES) - NO_DEFAULTS))
def test_the_defaults_of_transformers_are_read(family):
    """A config that says nothing, and one that says all of it, are the model that transformers makes of the first."""
    config = transformers.AutoConfig.for_model(family)
    num_parameters = counted(config)
    for written in (config.to_diff_dict(), config.to_dict()):
        assert sum(count_parameters(read_config(written)).values()) == num_parameters


def test_gemma_3_has_a_rope_for_each_kind_of_layer():
    """The 4B's text_config says no more than its scaling, which is that of layers without a window alone."""
    model = published("gemma-3-4b-it")
    assert model.windows[:7] == (1024,) * 5 + (None, 1024)
    local, whole = model.ropes[0], model.ropes[5]
    assert (local.theta, local.kind, whole.theta, whole.scaling) == (1e4, "default", 1e6, (("factor", 8.0),))
    assert model.eos_token_ids == (1, 106) and model.dtype == "bfloat16" and model.tie_embeddings
    assert published("gemma-3-27b-it").attention_scale == 168**-0.5
    assert published("gemma-2-2b-it").attention_softcap == 50.0


def test_rope_of_other_families():
    phi = published("Phi-4-mini-instruct").rope
    assert (phi.dim, phi.kind) == (96, "longrope")
    assert dict(phi.scaling)["attention_factor"] == pytest.approx(1.1902380714)  # sqrt(1 + ln 32 / ln 4096)
    assert published("Phi-3-mini-128k").rope.kind == "longrope"
    assert [rope is None for rope in published("SmolLM3-3B").ropes[:4]] == [False, False, False, True]
    assert [rope is None for rope in published("EXAONE-4.0-32B").ropes[:4]] == [False, False, False, True]
    assert None not in (published("EXAONE-4.0-1.2B").ropes or (published("EXAONE-4.0-1.2B").rope,))
    olmo = published("Olmo-3-7B")
    assert [rope.kind for rope in olmo.ropes[:4]] == ["default", "default", "default", "yarn"]
    assert published("Hunyuan-0.5B").rope.theta == pytest.approx(11158839.925, rel=1e-9)  # 10000 * 1000 ** (128 / 126)
    assert published("Ministral-3-3B-Reasoning-2512").attention_temperature == (0.1, 16384)
    assert published("Mistral-Small-3.1").attention_temperature is None
