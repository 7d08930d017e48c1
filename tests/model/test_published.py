"""Configs of published models are read, and describe as many parameters as are published.

published.json has them by name, with what its file says and the parameters of the language model. Lists of LongRoPE's
divisors and configs of vision towers, whose values change no shape here, are shortened.
"""

import json
from pathlib import Path

import pytest

from tokenmill.model.description import count_parameters
from tokenmill.model.families import read_config

PUBLISHED = json.loads(Path(__file__).with_name("published.json").read_text(encoding="utf-8"))


def published(name):
    return read_config(PUBLISHED[name]["config"])


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_parameters_are_as_many(name):
    """Within 1 %, as some are published rounded."""
    assert sum(count_parameters(published(name)).values()) == pytest.approx(PUBLISHED[name]["parameters"], rel=0.01)


def test_gemma_3_has_a_rope_for_each_kind_of_layer():
    """The 4B's text_config says no more than its scaling, which is that of layers without a window alone."""
    model = published("gemma-3-4b-it")
    assert model.windows[:7] == (1024,) * 5 + (None, 1024)
    local, whole = model.ropes[0], model.ropes[5]
    assert (local.theta, local.kind, whole.theta, whole.scaling) == (1e4, "default", 1e6, (("factor", 8.0),))
    assert model.eos_token_ids == (1, 106) and model.dtype == "bfloat16" and model.tie_embeddings
    assert published("gemma-3-27b-it").attention_scale == 168**-0.5
    assert published("gemma-2-2b").attention_softcap == 50.0


def test_rope_of_other_families():
    phi = published("Phi-4-mini").rope
    assert (phi.dim, phi.kind) == (96, "longrope")
    assert dict(phi.scaling)["attention_factor"] == pytest.approx(1.1902380714)  # sqrt(1 + ln 32 / ln 4096)
    assert published("Phi-3-mini-128k").rope.kind == "longrope"
    assert [rope is None for rope in published("SmolLM3-3B").ropes[:4]] == [False, False, False, True]
    assert [rope is None for rope in published("EXAONE-4.0-32B").ropes[:4]] == [False, False, False, True]
    assert None not in (published("EXAONE-4.0-1.2B").ropes or (published("EXAONE-4.0-1.2B").rope,))
    olmo = published("Olmo-3-7B")
    assert [rope.kind for rope in olmo.ropes[:4]] == ["default", "default", "default", "yarn"]
    assert published("Hunyuan-0.5B").rope.theta == pytest.approx(11158839.925, rel=1e-9)  # 10000 * 1000 ** (128 / 126)
    assert published("Ministral-3-3B").attention_temperature == (0.1, 16384)
    assert published("Mistral-Small-3.1").attention_temperature is None
