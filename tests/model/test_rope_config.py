"""The rope of a config.json, in the older and in the newer spelling, and what is refused in it."""

import copy
import json
import math

import pytest
import torch
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tests.tiny_models import TINY, auto_class, config_of
from tokenmill.errors import CheckpointError
from tokenmill.model.config import ModelConfig, Rope
from tokenmill.model.families import read_config
from tokenmill.model.rope_config import yarn_attention_factor
from tokenmill.registry import FAMILIES

LLAMA = {
    "model_type": "llama",
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "vocab_size": 211,
    "max_position_embeddings": 128,
}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
FACTORS = (("factor", 8.0), ("high_freq_factor", 4.0), ("low_freq_factor", 1.0))


def rope(scaling=None, key="rope_scaling", **more):
    return read_config({**LLAMA, **more, **({} if scaling is None else {key: scaling})}).rope


def yarn(**numbers):
    found = {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 4.0, "original_max_position_embeddings": 32, **numbers}
    return Rope(8, 10000.0, "yarn", tuple(sorted(found.items())))


@pytest.mark.parametrize(
    ("stretch", "weight", "expected"),
    [(1.0, 1.0, 1.0), (0.5, 1.0, 1.0), (math.e, 1.0, 1.1), (math.e, 2.0, 1.2), (math.e**10, 1.0, 2.0)],
)
def test_the_factor_of_yarn(stretch, weight, expected):
    """0.1 ln s + 1, and 1 where nothing is stretched: equation 22 of arXiv 2309.00071."""
    assert yarn_attention_factor(stretch, weight) == pytest.approx(expected, rel=1e-12)
    assert yarn_attention_factor(stretch) == yarn_attention_factor(stretch, 1.0)


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("name", ["rope_type", "type"])
@pytest.mark.parametrize(
    ("kind", "numbers", "expected"),
    [
        ("default", {}, ()),
        ("linear", {"factor": 2.0}, (("factor", 2.0),)),
        ("dynamic", {"factor": 2.0}, (("factor", 2.0), ("max_position_embeddings", 128))),
        ("dynamic", {"factor": 2.0, "original_max_position_embeddings": 64},
         (("factor", 2.0), ("max_position_embeddings", 128), ("original_max_position_embeddings", 64))),
        ("factors", {"factors": [1.0, 2.5]}, (("factors", (1.0, 2.5)),)),
        ("llama3", {**LLAMA3, "original_max_position_embeddings": 64},
         (*FACTORS, ("original_max_position_embeddings", 64))),
        ("llama3", LLAMA3,
         (*FACTORS, ("original_max_position_embeddings", 128))),
    ],
)  # fmt: skip
def test_every_kind_in_every_spelling(key, name, kind, numbers, expected):
    assert rope({name: kind, **numbers}, key) == Rope(8, 10000.0, kind, expected)


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ({"factor": 4.0, "original_max_position_embeddings": 32}, {"attention_factor": 0.1 * math.log(4) + 1}),
        ({"original_max_position_embeddings": 32}, {"attention_factor": 0.1 * math.log(4) + 1}),  # 128 / 32
        ({"factor": 4.0}, {"attention_factor": 0.1 * math.log(4) + 1, "original_max_position_embeddings": 128}),
        ({"factor": 4.0, "original_max_position_embeddings": 32, "attention_factor": 0.7}, {"attention_factor": 0.7}),
        (
            {"original_max_position_embeddings": 32, "beta_fast": 20, "beta_slow": 2, "truncate": False},
            {"attention_factor": 0.1 * math.log(4) + 1, "beta_fast": 20.0, "beta_slow": 2.0, "truncate": False},
        ),
        (
            {"original_max_position_embeddings": 32, "mscale": 2.0, "mscale_all_dim": 0.5},
            {"attention_factor": (0.2 * math.log(4) + 1) / (0.05 * math.log(4) + 1)},
        ),
        (
            {"original_max_position_embeddings": 32, "mscale": 1.0, "mscale_all_dim": 0.0},
            {"attention_factor": 0.1 * math.log(4) + 1},
        ),
        ({"original_max_position_embeddings": 32, "mscale": 2.0}, {"attention_factor": 0.1 * math.log(4) + 1}),
        ({"original_max_position_embeddings": 32, "mscale_all_dim": 2.0}, {"attention_factor": 0.1 * math.log(4) + 1}),
        (
            {"original_max_position_embeddings": 32, "mscale": 2.0, "mscale_all_dim": 0.5, "attention_factor": 0.9},
            {"attention_factor": 0.9},
        ),
    ],
    ids=str,
)
def test_yarn_as_it_counts(numbers, expected):
    found, wanted = rope({"rope_type": "yarn", **numbers}), yarn(**expected)
    assert [name for name, _ in found.scaling] == [name for name, _ in wanted.scaling]
    assert dict(found.scaling) == pytest.approx(dict(wanted.scaling), rel=1e-12)


LISTS = {"short_factor": [1, 1.5, 2.0, 3.5], "long_factor": [1.0, 4, 16.0, 60.5]}


@pytest.mark.parametrize(
    "numbers",
    [
        {"original_max_position_embeddings": 32},
        {"original_max_position_embeddings": 32, "factor": 9.0},
        {"original_max_position_embeddings": 32, "attention_factor": 0.7},
        {"original_max_position_embeddings": 1, "attention_factor": 0.7},
        {"original_max_position_embeddings": 128},
        {},
    ],
    ids=str,
)
def test_the_factor_of_longrope_is_that_of_transformers(numbers):
    scaling = {"rope_type": "longrope", **LISTS, **numbers}
    theirs = AutoConfig.for_model(rope_parameters={"rope_theta": 10000.0, **scaling}, **LLAMA)
    _, factor = ROPE_INIT_FUNCTIONS["longrope"](theirs, "cpu")
    found = dict(rope(scaling).scaling)
    numbers = {"original_max_position_embeddings": numbers.get("original_max_position_embeddings", 128)}
    assert found.pop("attention_factor") == pytest.approx(factor, rel=1e-12)
    lists = {name: tuple(map(float, divisors)) for name, divisors in LISTS.items()}
    assert found == {**numbers, **lists}
    assert rope(scaling, original_max_position_embeddings=16).is_long(17)


def test_the_older_spelling_is_taken_alone():
    """As transformers has it: one of the two, and never a mixture."""
    both = {
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
        "rope_parameters": {"rope_type": "dynamic", "factor": 3.0},
    }
    assert read_config({**LLAMA, **both}).rope == Rope(8, 10000.0, "linear", (("factor", 2.0),))


@pytest.mark.parametrize("kind", ["llama3", "yarn"])
def test_the_length_beside_the_parameters_goes_first(kind):
    scaling = {"rope_type": kind, **(LLAMA3 if kind == "llama3" else {}), "original_max_position_embeddings": 64}
    assert dict(rope(scaling, original_max_position_embeddings=16).scaling)["original_max_position_embeddings"] == 16


def test_the_length_beside_other_parameters_changes_nothing():
    assert rope({"type": "linear", "factor": 2.0}, original_max_position_embeddings=16).scaling == (("factor", 2.0),)
    assert rope(original_max_position_embeddings=16) == Rope(8, 10000.0)


PART = {"model_type": "stablelm", "num_key_value_heads": 6}  # of a family in which a part of a head may be rotated


def test_the_base_and_the_part_may_stand_inside():
    inside = {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}
    assert rope(inside, "rope_parameters", **PART) == Rope(4, 500.0)
    assert rope(inside, "rope_parameters", **PART, rope_theta=500.0, partial_rotary_factor=0.5) == Rope(4, 500.0)
    assert rope(**PART, rope_theta=500.0, partial_rotary_factor=0.5) == Rope(4, 500.0)
    assert rope(**PART, partial_rotary_factor=0.26) == Rope(2, 10000.0)  # 2.08 entries
    assert rope(partial_rotary_factor=1.0) == Rope(8, 10000.0)


@pytest.mark.parametrize("beside", [True, False])
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_part_is_refused_where_transformers_rotates_whole_heads(family, beside):
    """Its model is asked: with the part and without it the frequencies are as many, or it rotates no positions."""
    name = next(name for name, (kind, _) in TINY.items() if kind == family)
    whole = json.loads(json.dumps(config_of(*TINY[name]).to_dict(), default=str))
    inner = whole.get("text_config", whole)
    parameters = inner.get("rope_parameters")
    if not isinstance(parameters, dict) or "rope_type" not in parameters or parameters["rope_theta"] is None:
        pytest.skip("the family has no rope, or several")
    said = {"partial_rotary_factor": 0.5, "rotary_pct": 0.5} if family == "gpt_neox" else {"partial_rotary_factor": 0.5}
    plain = {"rope_type": "default", "rope_theta": parameters["rope_theta"], "llama_4_scaling_beta": 0.1}
    has_beta = inner["model_type"] in ("ministral3", "mistral4")
    plain = plain if has_beta else {k: v for k, v in plain.items() if "llama_4" not in k}
    plain |= {"original_max_position_embeddings": 32} if has_beta else {}
    given = {**inner, "rope_parameters": plain if beside else plain | {"partial_rotary_factor": 0.5}}
    given |= said if beside else {}
    config = {**whole, "text_config": given} if "text_config" in whole else given
    theirs = AutoConfig.for_model(**copy.deepcopy(config))
    with torch.device("meta"):
        buffers = auto_class(theirs).from_config(theirs).named_buffers()
    rotated = (
        2
        * next(
            each
            for key, each in buffers
            if key.endswith(("rotary_emb.inv_freq", ".pos_emb.inv_freq")) and "vision" not in key
        ).numel()
    )
    head_dim = inner.get("head_dim") or inner["hidden_size"] // inner["num_attention_heads"]
    if rotated == head_dim or "qk_rope_head_dim" in inner:  # whose class cannot compute a part of these entries
        with pytest.raises(CheckpointError, match=r"partial_rotary_factor (is|=) 0\.5|no parameter"):
            read_config(config)
    else:
        assert read_config(config).rope.dim == rotated < head_dim


@pytest.mark.parametrize(
    ("scaling", "more", "message"),
    [
        ({"type": "su"}, {}, "'su' is not implemented: only default, linear, factors, dynamic, llama3, yarn, longrope"),
        ({"type": "linear"}, {}, "rope type 'linear' needs 'factor', which is missing"),
        ({"type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}, {}, "'llama3' needs 'high_freq_factor', which is"),
        ({"type": "linear", "factor": 2.0, "beta": 1}, {}, r"rope type 'linear' has no parameter 'beta' \(it is 1\)"),
        ({"type": "default", "factor": 2.0}, {}, r"rope type 'default' has no parameter 'factor' \(it is 2.0\)"),
        ({"rope_theta": 5.0}, {"rope_theta": 6.0}, "rope_theta is 6.0, and 5.0 in the rope parameters"),
        (
            {"type": "llama3", **LLAMA3, "low_freq_factor": 4.1},
            {},
            "low_freq_factor of rope type 'llama3' exceeds its",
        ),
        (None, {**PART, "partial_rotary_factor": 0.2}, "1 rotary entries of head_dim 8: an even number is needed"),
        (None, {**PART, "partial_rotary_factor": 0.4}, "3 rotary entries of head_dim 8: an even number is needed"),
        (None, {"partial_rotary_factor": 1.1}, "partial_rotary_factor"),
        (None, {"rope_theta": 0.5}, "rope_theta"),
        ({"type": "dynamic", "factor": 2.0}, {**PART, "partial_rotary_factor": 0.25}, "2 rotary entries of head_dim 8"),
        ({"type": "linear", "factor": 1e-7}, {}, "factor"),
        ({"type": "linear", "factor": 2e6}, {}, "factor"),
        ({"type": "yarn", "truncate": 1}, {}, "truncate"),
        ({"type": "longrope", **LISTS, "short_factor": [1.0]}, {}, "short_factor has 1 numbers, and 4 are needed"),
        ({"type": "longrope", **LISTS, "long_factor": [1.0, 2.0]}, {}, "long_factor has 2 numbers, and 4 are needed"),
        ({"type": "longrope", **LISTS, "long_factor": [1.0, 0.0, 1.0, 1.0]}, {}, "long_factor"),
        ({"type": "longrope", **LISTS, "long_factor": 2.0}, {}, "long_factor"),
        (
            {"type": "longrope", **LISTS, "original_max_position_embeddings": 1},
            {},
            "rope type 'longrope' was trained on more than a position",
        ),
    ],
)
def test_what_is_refused(scaling, more, message):
    with pytest.raises(CheckpointError, match=message):
        rope(scaling, **more)


def test_a_null_parameter_is_none():
    assert rope({"type": "linear", "factor": 2.0, "other": None}) == rope({"type": "linear", "factor": 2.0})


@pytest.mark.parametrize(
    ("given", "context"),
    [
        (None, 100),
        (Rope(4, 1e4), 100),
        (Rope(4, 1e4, "linear", (("factor", 2.5),)), 250),
        (Rope(4, 1e4, "dynamic", (("factor", 2.505),)), 250),
        (Rope(4, 1e4, "llama3", (("factor", 8.0),)), 100),
        (Rope(4, 1e4, "yarn", (("factor", 2.0), ("original_max_position_embeddings", 80))), 160),
        (Rope(4, 1e4, "yarn", (("factor", 2.0), ("original_max_position_embeddings", 40))), 100),
        (Rope(4, 1e4, "yarn", (("original_max_position_embeddings", 120),)), 120),
    ],
)
def test_the_longest_sequence(given, context):
    assert ModelConfig("llama", 211, 48, 2, 6, 2, 8, 80, 100, rope=given).context == context


SLIDING = {"model_type": "gemma3_text", "head_dim": 8, "sliding_window": 7, "num_key_value_heads": 2}
LINEAR = {"rope_type": "linear", "factor": 8.0}


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"rope_theta": 500.0, "rope_local_base_freq": 50.0},
        {"rope_scaling": LINEAR},
        {
            "rope_parameters": {
                "full_attention": {**LINEAR, "rope_theta": 500.0},
                "sliding_attention": {"rope_theta": 50},
            }
        },
        {"rope_parameters": {"full_attention": LINEAR}, "rope_local_base_freq": 50.0},
        {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 2.0}}, "rope_scaling": LINEAR},
    ],
    ids=str,
)
@pytest.mark.parametrize("family", ["gemma3_text", "olmo3"])
def test_ropes_by_kind_of_layer_are_those_of_transformers(family, said):
    given = {key: value for key, value in said.items() if family == "gemma3_text" or "rope_theta" not in key}
    given.pop("rope_local_base_freq" if family == "olmo3" else "", None)
    sizes = {**LLAMA, **SLIDING, "model_type": family, "layer_types": ["sliding_attention", "full_attention"]}
    theirs = AutoConfig.for_model(**copy.deepcopy({**sizes, **given})).rope_parameters
    for one, kind in zip(read_config({**sizes, **given}).ropes, sizes["layer_types"], strict=True):
        expected = {key: value for key, value in theirs[kind].items() if key != "type"}
        assert {"rope_theta": one.theta, "rope_type": one.kind, **dict(one.scaling)} == expected


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"rope_parameters": LINEAR}, "rope_parameters has keys that tokenmill does not know: factor = 8.0"),
        ({"rope_parameters": {"full_attention": [3]}}, "full_attention must be an object"),
        (
            {"rope_parameters": {"sliding_attention": {"rope_theta": 9.0}}, "rope_local_base_freq": 8.0},
            "rope_local_base_freq is 8.0, and 9.0 in the rope parameters",
        ),
    ],
)
def test_nested_ropes_that_are_refused(said, message):
    with pytest.raises(CheckpointError, match=message):
        read_config({**LLAMA, **SLIDING, **said})
