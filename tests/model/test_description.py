"""A description carries every departure: families that use them equal transformers, and programs refuse by name."""

from dataclasses import replace

import pytest
import torch

from tests.model.departures import MODELS
from tests.tiny_models import TINY, prompt, reference, save
from tokenmill import load
from tokenmill.errors import ConfigError
from tokenmill.measure.cost import cost_of
from tokenmill.model.config import ModelConfig, Rope
from tokenmill.model.description import count_parameters, describe
from tokenmill.quant.schemes import Scheme
from tokenmill.registry import FAMILIES
from tokenmill.settings.engine_config import FUSIBLE
from tokenmill.weights.load import empty_decoder

PLAIN = ModelConfig("llama", 211, 48, 2, 6, 2, 8, 80, 128, rope=Rope(8, 10000.0))


@pytest.fixture(scope="module", autouse=True)
def families():
    with pytest.MonkeyPatch.context() as patch:
        for name, (family, _, config) in MODELS.items():
            patch.setitem(FAMILIES, name, f"tests.model.departures:{family}")
            patch.setitem(TINY, name, (name, config))
        yield


def same(engine, name):
    """Bound: ten times assert_close's default for float32, because norms with weights near 2 magnify every rounding."""
    tokens = prompt(40)
    with torch.no_grad():
        expected = reference(name)(torch.tensor([tokens])).logits[0]
    torch.testing.assert_close(engine.logits(tokens), expected, rtol=1.3e-5, atol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_transformers(name, models):
    path = save(name, models)
    for how in ({}, {"scheme": "dense", "max_step_tokens": 1, "block_size": 3}, {"scheme": "dense", "fuse": "none"}):
        engine = load(path, dtype="float32", program="eager", max_length=64, **how)
        same(engine, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_padded_steps_say_the_same(name, models):
    path = save(name, models)
    for how in ({"compile": "no"}, {"compile": "fullgraph", "compile_backend": "eager"}):
        engine = load(path, dtype="float32", program="compiled", compile_phases="both", max_length=64, **how)
        same(engine, name)


@pytest.mark.parametrize("name", MODELS)
def test_counts_are_those_of_the_tensors(name, models):
    engine = load(save(name, models), dtype="float32", program="eager", max_length=64)
    assert sum(count_parameters(engine.model_config).values()) == sum(p.numel() for p in reference(name).parameters())
    assert cost_of(engine.core.loaded.resolved).weights_bytes == engine.memory["weights_bytes"]


@pytest.mark.parametrize("name", MODELS)
def test_the_native_program_refuses_by_name(name, models):
    with pytest.raises(ConfigError, match=f"native: has no {MODELS[name][1]}"):
        load(save(name, models), program="native")


def test_a_unit_offset_in_the_native_program(llama, monkeypatch):
    monkeypatch.setitem(FAMILIES, "llama", "tests.model.departures:UNIT_OFFSET")
    native, eager = (load(llama, dtype="float32", program=program, max_length=64) for program in ("native", "eager"))
    torch.testing.assert_close(native.logits(prompt(40)), eager.logits(prompt(40)), rtol=1.3e-5, atol=1e-4)
    monkeypatch.undo()
    without = load(llama, dtype="float32", program="native", max_length=64)
    assert not torch.allclose(native.logits(prompt(40)), without.logits(prompt(40)), atol=0.1)


@pytest.mark.parametrize(
    ("departures", "names"),
    [
        ({}, set()),
        ({"norm_placement": "both"}, {"norm after attention or MLP"}),
        ({"norm_placement": "after"}, {"norm after attention or MLP", "attention or MLP without a norm before it"}),
        ({"norm_unit_offset": True}, {"norm with unit offset"}),
        ({"ropes": (None, Rope(8, 1e6))}, {"rope that differs from layer to layer"}),
        ({"qk_norm": "head"}, set()),
        ({"qk_norm": "all"}, {"norm over all heads of q and k"}),
        ({"qk_norm": "head", "norm": "layer"}, {"LayerNorm of q and k"}),
        ({"logit_multiplier": 0.5}, {"logit multiplier"}),
        ({"residual_multiplier": 0.5}, {"residual multiplier"}),
        ({"attention_sinks": True}, {"attention sinks"}),
        ({"num_experts": 4, "num_experts_per_token": 2}, set()),
        ({"num_experts": 4, "num_experts_per_token": 2, "mlp_bias": True}, {"biases within a mixture of experts"}),
        ({"num_experts": 4, "num_experts_per_token": 2, "router_bias": True}, {"bias on a router"}),
        ({"num_experts": 4, "num_experts_per_token": 2, "router_scores": "sigmoid"}, {"sigmoid scores of experts"}),
    ],
)
def test_departures_have_names(departures, names):
    assert describe(replace(PLAIN, **departures)).departures == names


@pytest.mark.parametrize(
    "departures",
    [
        {"head_bias": True, "qkv_bias": True, "o_bias": True, "mlp_bias": True, "norm": "layer"},
        {"norm": "layer", "norm_bias": False, "norm_placement": "both", "tie_embeddings": True},
        {"qk_norm": "all", "norm_placement": "after", "attention_sinks": True, "positions": "learned"},
        {"qk_norm": "head", "gated_mlp": False, "activation": "relu"},
        {"num_experts": 4, "num_experts_per_token": 2, "router_bias": True, "mlp_bias": True},
        {"num_experts": 4, "num_experts_per_token": 2, "shared_expert_size": 56, "shared_expert_gate": True},
    ],
)
def test_every_parameter_that_is_counted_is_made(departures):
    config = replace(PLAIN, **departures)
    made = sum(parameter.numel() for parameter in empty_decoder(config, Scheme(), 1, FUSIBLE).parameters())
    assert sum(count_parameters(config).values()) == made


def test_equal_layers_have_equal_descriptions():
    """Compiled code is shared by them."""
    one, other = describe(PLAIN).layers
    assert one == other
    one, other = describe(replace(PLAIN, windows=(None, 5))).layers
    assert one != other
