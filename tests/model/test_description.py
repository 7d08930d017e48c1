"""A description carries every departure: families that use them equal transformers in each program."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from tests.tiny_models import prompt, reference, save
from tokenmill import load
from tokenmill.measure.cost import cost_of, num_read, num_used
from tokenmill.model.config import ModelConfig, QKNorm, Rope
from tokenmill.model.counts import count_parameters
from tokenmill.model.description import describe
from tokenmill.model.features import features_of
from tokenmill.model.mixture import mixtures_of
from tokenmill.quant.schemes import Scheme
from tokenmill.settings.engine_config import FUSIBLE
from tokenmill.weights.load import empty_decoder

PLAIN = ModelConfig("llama", 211, 48, 2, 6, 2, 8, 80, 128, rope=Rope(8, 10000.0))


# Families that between them have the departures.
MODELS = """gemma2 gemma3_text olmo2 granite smollm3 qwen2_moe stablelm phi cohere gpt_oss glm4_moe apertus
ernie4_5_moe""".split()


TOKENS = prompt(40)


@cache
def expected(name):
    with torch.no_grad():
        return reference(name)(torch.tensor([TOKENS])).logits[0]


def same(engine, name):
    """Bound: ten times assert_close's default for float32, because norms with weights near 2 magnify every rounding."""
    torch.testing.assert_close(engine.logits(TOKENS), expected(name), rtol=1.3e-5, atol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_transformers(name, models):
    """In other ways than tests/laws/test_law_01_families.py computes them."""
    path = save(name, models)
    for how in ({"scheme": "dense", "max_step_tokens": 1, "block_size": 3}, {"scheme": "dense", "fuse": "none"}):
        engine = load(path, dtype="float32", program="eager", max_length=64, **how)
        same(engine, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gemma3_text", "olmo2", "qwen2_moe", "phi", "gpt_oss", "glm4_moe"])
def test_padded_steps_say_the_same(name, models):
    path = save(name, models)
    for how in ({"compile": "no"}, {"compile": "fullgraph", "compile_backend": "eager"}):
        engine = load(path, dtype="float32", program="compiled", compile_phases="both", max_length=64, **how)
        same(engine, name)


def parameters_of(name):
    model = reference(name)
    corrections = [buffer for label, buffer in model.named_buffers() if label.endswith("e_score_correction_bias")]
    return [*model.parameters(), *corrections]


@pytest.mark.parametrize("name", MODELS)
def test_counts_are_those_of_the_tensors(name, models):
    engine = load(save(name, models), dtype="float32", program="eager", max_length=64)
    assert sum(count_parameters(engine.model_config).values()) == sum(p.numel() for p in parameters_of(name))
    assert cost_of(engine.core.loaded.resolved).weights_bytes == engine.memory["weights_bytes"]


@pytest.mark.parametrize("name", MODELS)
def test_the_native_program_computes_them(name, models):
    path = save(name, models)
    for how in ({"max_step_tokens": 1, "block_size": 3}, {"threads": 3}):
        same(load(path, dtype="float32", program="native", max_length=64, **how), name)


EXPERTS = {"num_experts": 4, "num_experts_per_token": 2}
MIXTURE = {"mixture of experts"}


@pytest.mark.parametrize(
    ("departures", "names"),
    [
        ({}, set()),
        ({"norm_placement": "both"}, {"norm after attention or MLP"}),
        ({"norm_placement": "after"}, {"norm after attention or MLP", "attention or MLP without a norm before it"}),
        ({"norm_unit_offset": True}, {"norm with unit offset"}),
        ({"ropes": (None, Rope(8, 1e6))}, {"rope that differs from layer to layer"}),
        ({"qk_norm": QKNorm()}, {"norm of q and k"}),
        ({"qk_norm": QKNorm("all")}, {"norm of q and k", "norm over all heads of q and k"}),
        ({"qk_norm": QKNorm("own")}, {"norm of q and k", "norms of q and k with weights for each head"}),
        ({"qk_norm": QKNorm(weight=False)}, {"norm of q and k", "norm without a weight"}),
        ({"qk_norm": QKNorm(after_rope=True)}, {"norm of q and k", "norms of q and k after rope"}),
        ({"qk_norm": QKNorm(), "norm": "layer"}, {"norm of q and k", "LayerNorm of q and k"}),
        ({"norm_weight": False}, {"norm without a weight"}),
        ({"logit_multiplier": 0.5}, {"logit multiplier"}),
        ({"residual_multiplier": 0.5}, {"residual multiplier"}),
        ({"embedding_multiplier": 0.5}, {"embedding multiplier"}),
        ({"attention_sinks": True}, {"attention sinks"}),
        ({"attention_softcap": 3.0, "logit_softcap": 4.0}, {"attention softcap", "logit softcap"}),
        ({"attention_temperature": (0.1, 16)}, {"attention temperature by position"}),
        ({"windows": (None, 5)}, {"attention window"}),
        ({"rope": Rope(4, 1e4)}, {"part of each head rotated"}),
        ({"rope": None, "positions": "learned"}, {"learned positions"}),
        ({"residual": "parallel"}, {"parallel attention and MLP"}),
        ({"shared_norm": True}, set()),
        (
            {"residual": "parallel", "shared_norm": True},
            {"parallel attention and MLP", "one norm for attention and MLP"},
        ),
        ({"swiglu": (1.7, 7.0)}, {"clamped SwiGLU"}),
        ({"activation": "xielu", "gated_mlp": False}, {"learned activation"}),
        (EXPERTS, MIXTURE),
        ({**EXPERTS, "expert_layers": (False, True)}, {*MIXTURE, "experts in some layers only"}),
        ({**EXPERTS, "mlp_bias": True}, MIXTURE),
        ({**EXPERTS, "expert_bias": True}, {*MIXTURE, "biases within a mixture of experts"}),
        ({**EXPERTS, "router_bias": True}, {*MIXTURE, "bias on a router"}),
        ({**EXPERTS, "router_scores": "sigmoid"}, {*MIXTURE, "sigmoid scores of experts"}),
        ({**EXPERTS, "router_correction": True}, {*MIXTURE, "correction of a router's scores"}),
        ({**EXPERTS, "router_groups": (2, 1, 2)}, {*MIXTURE, "groups of experts"}),
        ({**EXPERTS, "router_scale": 2.5}, {*MIXTURE, "scaled weights of experts"}),
        ({**EXPERTS, "shared_expert_size": 8}, {*MIXTURE, "shared experts"}),
    ],
)
def test_departures_have_names(departures, names):
    assert features_of(describe(replace(PLAIN, **departures))) == names


DEPARTURES = [
    {"head_bias": True, "qkv_bias": True, "o_bias": True, "mlp_bias": True, "norm": "layer"},
    {"norm": "layer", "norm_bias": False, "norm_placement": "both", "tie_embeddings": True},
    {"qk_norm": QKNorm("all"), "norm_placement": "after", "attention_sinks": True, "positions": "learned"},
    {"qk_norm": QKNorm(), "gated_mlp": False, "activation": "relu"},
    {"num_experts": 4, "num_experts_per_token": 2, "router_bias": True, "expert_bias": True},
    {"num_experts": 4, "num_experts_per_token": 2, "shared_expert_size": 56, "shared_expert_gate": True},
]


@pytest.mark.parametrize("departures", DEPARTURES)
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


COUNTED = replace(PLAIN, num_layers=3, windows=(None,) * 3, num_heads=6, num_kv_heads=2)
QKV_OUT = (6 + 2 + 2) * 8 * 48 + 6 * 8 * 48


@pytest.mark.parametrize(
    ("departures", "counts"),
    [
        ({}, {}),
        ({"tie_embeddings": True, "head_bias": True}, {"head": 0}),
        ({"head_bias": True}, {"head": 211 * 49}),
        ({"positions": "learned"}, {"positions": 128 * 48}),
        ({"qkv_bias": True}, {"attention": 3 * (QKV_OUT + 80)}),
        ({"o_bias": True}, {"attention": 3 * (QKV_OUT + 48)}),
        ({"mlp_bias": True}, {"mlp": 3 * (2 * 80 * 49 + 48 * 81)}),
        ({"gated_mlp": False}, {"mlp": 3 * 2 * 48 * 80}),
        ({"attention_sinks": True}, {"attention": 3 * (QKV_OUT + 6)}),
        ({"qk_norm": QKNorm()}, {"attention": 3 * (QKV_OUT + 16)}),
        ({"qk_norm": QKNorm("all")}, {"attention": 3 * (QKV_OUT + 48 + 16)}),
        ({"norm": "layer"}, {"norms": 7 * 2 * 48}),
        ({"norm": "layer", "norm_bias": False}, {"norms": 7 * 48}),
        ({"norm_placement": "both"}, {"norms": 13 * 48}),
        ({"norm_placement": "after"}, {"norms": 7 * 48}),
        ({"num_experts": 5, "num_experts_per_token": 2}, {"mlp": 3 * (5 * 48 + 5 * 3 * 48 * 80)}),
        (
            {
                "num_experts": 5, "num_experts_per_token": 2, "router_bias": True,
                "shared_expert_size": 10, "shared_expert_gate": True,
            },
            {"mlp": 3 * (5 * 49 + 5 * 3 * 48 * 80 + 3 * 48 * 10 + 48)},
        ),
    ],
)  # fmt: skip
def test_parameters_by_part(departures, counts):
    """By hand: 211 tokens, 48 wide, 3 layers of 6 and 2 heads of 8, an MLP of 80."""
    plain = {"embedding": 211 * 48, "positions": 0, "inputs": 0, "attention": 3 * QKV_OUT, "mlp": 3 * 3 * 48 * 80}
    wanted = {**plain, "norms": 7 * 48, "head": 211 * 48, **counts}
    assert count_parameters(replace(COUNTED, **departures)) == wanted


def test_what_a_step_reads():
    all_but_mlp = 3 * QKV_OUT + 7 * 48 + 211 * 48
    assert num_read(COUNTED, 1) == num_read(COUNTED, 9) == all_but_mlp + 3 * 3 * 48 * 80
    assert num_read(replace(COUNTED, tie_embeddings=True), 1) == all_but_mlp + 3 * 3 * 48 * 80
    experts = replace(COUNTED, num_experts=5, num_experts_per_token=2)
    for num_tokens, read in ((1, 2), (2, 3.2), (3, 3.92), (100, 5)):  # 5 - 5 · 0.6 ** tokens
        assert num_read(experts, num_tokens) == all_but_mlp + round(3 * (5 * 48 + read * 3 * 48 * 80))
    assert num_used(experts) == num_read(experts, 100) and num_used(COUNTED) == num_read(COUNTED, 1)


def test_a_description_in_full():
    plain = describe(replace(COUNTED, ropes=(Rope(8, 1e4), None, Rope(8, 1e4)), windows=(None, 4, None)))
    assert plain.ropes == (Rope(8, 1e4),)
    assert sorted((shape.window or 0, shape.scale) for shape in plain.attention_shapes) == [(0, 8**-0.5), (4, 8**-0.5)]
    assert {matrix.role: (count, matrix.outputs, matrix.inputs) for matrix, count in plain.matrices.items()} == {
        "qkv": (3, 80, 48), "out": (3, 48, 48), "gate_up": (3, 160, 48), "down": (3, 48, 80), "head": (1, 211, 48),
    }  # fmt: skip
    assert {matrix.num_weights for matrix in plain.matrices} == {80 * 48, 48 * 48, 160 * 48, 211 * 48}
    assert mixtures_of(plain) == [] and not plain.layers[0].parallel and plain.layers[0].after is None
    assert describe(replace(COUNTED, residual="parallel", attention_scale=2.0)).layers[0].parallel
    assert {s.scale for s in describe(replace(COUNTED, attention_scale=2.0)).attention_shapes} == {2.0}
    capped = describe(replace(COUNTED, attention_softcap=3.0, attention_sinks=True)).layers[0].mixers[0].shape
    assert (capped.softcap, capped.sinks, capped.window) == (3.0, True, None)


def test_the_matrices_of_experts_are_counted():
    given = {"num_experts": 5, "num_experts_per_token": 2, "shared_expert_size": 10, "shared_expert_gate": True}
    block = mixtures_of(describe(replace(COUNTED, **given, norm_top_k=False, router_scores="sigmoid")))[0]
    assert (block.num, block.chosen, block.normalise, block.scores) == (5, 2, False, "sigmoid")
    assert {(matrix.role, matrix.outputs, matrix.inputs): count for matrix, count in block.matrices.items()} == {
        ("router", 5, 48): 1, ("shared_gate", 1, 48): 1, ("gate_up", 160, 48): 5, ("down", 48, 80): 5,
        ("gate_up", 20, 48): 1, ("down", 48, 10): 1,
    }  # fmt: skip
