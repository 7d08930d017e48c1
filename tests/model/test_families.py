"""What the families read out of their config.json, and their defaults, which are those of transformers' classes."""

import math
from dataclasses import asdict

import pytest

from tokenmill.errors import CheckpointError
from tokenmill.model.config import ModelConfig, QKNorm, Rope
from tokenmill.model.families import FAMILIES, Family, find_family, read_config

LLAMA = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "vocab_size": 211,
    "max_position_embeddings": 2048,
    "eos_token_id": None,
}
WITHOUT_GROUPS = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
GPT = {"n_embd": 48, "n_layer": 2, "n_head": 6, "vocab_size": 211, "eos_token_id": None}
BIASES = {"qkv_bias": True, "o_bias": True, "mlp_bias": True}
GPT2 = {
    **BIASES,
    "intermediate_size": 192,
    "max_position_embeddings": 1024,
    "norm": "layer",
    "norm_eps": 1e-5,
    "gated_mlp": False,
    "positions": "learned",
    "rope": None,
    "tie_embeddings": True,
}
NEOX = {**BIASES, "norm": "layer", "norm_eps": 1e-5, "gated_mlp": False, "activation": "gelu", "rope": Rope(2, 10000.0)}


SMOLLM3 = {"tie_embeddings": True, "rope": Rope(8, 2e6)}
LISTS = {"short_factor": [1, 1, 1, 1.5], "long_factor": [1.0, 2, 3, 4]}


def expected(family, **departures):
    """Llama's, as a config of nothing but its sizes says it, with these departures."""
    sizes = {
        "num_layers": 2,
        "num_kv_heads": 6,
        "head_dim": 8,
        "intermediate_size": 80,
        "max_position_embeddings": 2048,
    }
    plain = {"norm_eps": 1e-6, "rope": Rope(8, 10000.0)}
    return ModelConfig(family, 211, 48, num_heads=6, **{**sizes, **plain, **departures})


@pytest.mark.parametrize(
    ("family", "config", "departures"),
    [
        ("llama", LLAMA, {}),
        ("llama", {**LLAMA, "attention_bias": True}, {"qkv_bias": True, "o_bias": True}),
        ("llama", {**LLAMA, "mlp_bias": True}, {"mlp_bias": True}),
        ("llama", {**LLAMA, "num_key_value_heads": 3, "head_dim": 16},
         {"num_kv_heads": 3, "head_dim": 16, "rope": Rope(16, 10000.0)}),
        ("llama", {**LLAMA, "rms_norm_eps": 1e-5, "hidden_act": "gelu", "tie_word_embeddings": True},
         {"norm_eps": 1e-5, "activation": "gelu", "tie_embeddings": True}),
        ("llama", {**LLAMA, "eos_token_id": [7, 9], "torch_dtype": "bfloat16"},
         {"eos_token_ids": (7, 9), "dtype": "bfloat16"}),
        ("llama", {**LLAMA, "dtype": "torch.float16", "torch_dtype": "float32"}, {"dtype": "float16"}),
        ("llama", {**LLAMA, "stored_as_codes": True}, {"codes": True}),
        ("llama", {**LLAMA, "stored_as_codes": 4.5, "embedding_as_codes": 8.5},
         {"codes": True, "code_bits": 4.5, "embedding_bits": 8.5}),
        ("llama", {**LLAMA, "rope_theta": 5e5, "partial_rotary_factor": 1.0}, {"rope": Rope(8, 5e5)}),
        ("glm", {**LLAMA, "head_dim": 8, "rope_theta": 5e5, "partial_rotary_factor": 0.25},
         {"norm_eps": 1.5625e-07, "qkv_bias": True, "rope": Rope(2, 5e5), "eos_token_ids": (151329, 151336, 151338)}),
        ("mistral", LLAMA, {"windows": (4096,)}),
        ("mistral", {**LLAMA, "sliding_window": None}, {}),
        ("mistral", {**LLAMA, "sliding_window": 7}, {"windows": (7,)}),
        ("mixtral", LLAMA, {"norm_eps": 1e-5, "num_experts": 8, "num_experts_per_token": 2, "rope": Rope(8, 1e6)}),
        ("mixtral", {**LLAMA, "num_local_experts": 5, "num_experts_per_tok": 3, "sliding_window": 9},
         {"norm_eps": 1e-5, "num_experts": 5, "num_experts_per_token": 3, "rope": Rope(8, 1e6), "windows": (9,)}),
        ("qwen2", LLAMA, {"qkv_bias": True}),
        ("qwen2", {**LLAMA, "use_sliding_window": True, "max_window_layers": 1},
         {"qkv_bias": True, "windows": (None, 4096)}),
        ("qwen2", {**LLAMA, "use_sliding_window": True, "max_window_layers": 0, "sliding_window": 5},
         {"qkv_bias": True, "windows": (5, 5)}),
        ("qwen2", {**LLAMA, "use_sliding_window": True, "num_hidden_layers": 29},
         {"qkv_bias": True, "num_layers": 29, "windows": (*[None] * 28, 4096)}),
        ("qwen2", {**LLAMA, "sliding_window": 5, "max_window_layers": 0}, {"qkv_bias": True}),
        ("qwen2", {**LLAMA, "use_sliding_window": True, "layer_types": ["sliding_attention", "full_attention"]},
         {"qkv_bias": True, "windows": (4096, None)}),
        ("qwen3", LLAMA, {"qk_norm": QKNorm(), "head_dim": 128, "rope": Rope(128, 10000.0)}),
        ("qwen3", {**LLAMA, "head_dim": 12, "attention_bias": True},
         {"qk_norm": QKNorm(), "head_dim": 12, "rope": Rope(12, 10000.0), "qkv_bias": True, "o_bias": True}),
        ("gpt2", GPT, {**GPT2, "activation": "gelu_new"}),
        ("gpt2", {**GPT, "n_inner": 100, "n_positions": 64, "scale_attn_weights": False, "n_ctx": 64},
         {**GPT2, "activation": "gelu_new", "intermediate_size": 100, "max_position_embeddings": 64,
          "attention_scale": 1.0}),
        ("gpt2", {**GPT, "reorder_and_upcast_attn": True, "scale_attn_by_inverse_layer_idx": False},
         {**GPT2, "activation": "gelu_new"}),
        ("gpt_bigcode", GPT, {**GPT2, "num_kv_heads": 1, "activation": "gelu_pytorch_tanh"}),
        ("gpt_bigcode", {**GPT, "multi_query": False, "attention_softmax_in_fp32": False, "num_key_value_heads": 6,
                         "validate_runner_input": True}, {**GPT2, "activation": "gelu_pytorch_tanh"}),
        ("gpt_neox", WITHOUT_GROUPS, {**NEOX, "residual": "parallel"}),
        ("gpt_neox", {**WITHOUT_GROUPS, "use_parallel_residual": False, "attention_bias": False, "rotary_pct": 1.0,
                      "rotary_emb_base": 500, "rope_theta": 10000},
         {**NEOX, "residual": "serial", "qkv_bias": False, "o_bias": False, "rope": Rope(8, 500.0)}),
        ("smollm3", {**LLAMA, "no_rope_layers": [0, 1, 1], "use_sliding_window": True, "sliding_window": 5},
         {**SMOLLM3, "ropes": (None, Rope(8, 2e6)), "windows": (5, None)}),
        ("smollm3", {**LLAMA, "no_rope_layer_interval": 1, "pretraining_tp": 2, "max_window_layers": 28},
         {**SMOLLM3, "ropes": (None, None)}),
        ("phi3", {**LLAMA, "rope_scaling": {"type": "su", **LISTS}, "max_position_embeddings": 8192},
         {"norm_eps": 1e-5, "max_position_embeddings": 8192, "rope": Rope(8, 10000.0, "longrope", (
             ("attention_factor", math.sqrt(1 + math.log(2) / math.log(4096))), ("long_factor", (1.0, 2.0, 3.0, 4.0)),
             ("original_max_position_embeddings", 4096), ("short_factor", (1.0, 1.0, 1.0, 1.5))))}),
        ("exaone4", {**LLAMA, "sliding_window": None, "sliding_window_pattern": None},
         {"norm_eps": 1e-5, "norm_placement": "after", "qk_norm": QKNorm()}),
        ("hunyuan_v1_dense",
         {**LLAMA, "rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 1.0, "beta_fast": 32, "mscale": 0.0}},
         {"norm_eps": 1e-5, "qk_norm": QKNorm(after_rope=True), "rope": Rope(8, 10000.0 * 1000.0 ** (8 / 6))}),
        ("olmo3", {**LLAMA, "rope_theta": 500000, "rope_scaling": {"rope_type": "linear", "factor": 2.0},
                   "layer_types": ["full_attention", "sliding_attention"]},
         {"norm_eps": 1e-5, "norm_placement": "after", "norm_rounds_last": True, "qk_norm": QKNorm("all"),
          "windows": (None, 4096), "rope": Rope(8, 5e5, "linear", (("factor", 2.0),)),
          "ropes": (Rope(8, 5e5, "linear", (("factor", 2.0),)), Rope(8, 5e5))}),
    ],
)  # fmt: skip
def test_what_a_config_means(family, config, departures):
    assert asdict(read_config({"model_type": family, **config})) == asdict(expected(family, **departures))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_found_by_its_name(name):
    family = find_family({"model_type": name})
    assert isinstance(family, Family)
    assert set(family.names.values()) >= {"embedding.weight", "head.weight"}


@pytest.mark.parametrize(
    ("family", "change", "message"),
    [
        ("phi", {"rotary_dim": 8}, "rotary_dim = 8 is not implemented: only 4"),
        ("llama", {"rope_interleaved": True}, "rope_interleaved"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
        ("gpt2", {"num_key_value_heads": 6}, "num_key_value_heads"),
        ("mistral", {"attention_bias": True}, "attention_bias"),
        ("qwen2", {"layer_types": ["full_attention"]}, "layer_types = .* is not allowed: 2 of full_attention, sliding"),
        ("qwen2", {"layer_types": ["full_attention", "linear"]}, "layer_types"),
        ("llama", {"stored_as_codes": 65.0}, "stored_as_codes"),
        ("llama", {"embedding_as_codes": 65.0}, "embedding_as_codes"),
        ("llama", {"rms_norm_eps": 1.5}, "rms_norm_eps"),
        (
            "llama",
            {"rms_norm_eps": None},
            "rms_norm_eps = None is not allowed: .* left out, it is 1e-06",
        ),
        (
            "mixtral",
            {"num_experts": 5, "num_local_experts": 4},
            "num_local_experts is 4, and num_experts, another",
        ),
        ("mistral3", {"tie_word_embeddings": None}, "tie_word_embeddings = None is not allowed: true or false"),
        ("mixtral", {"num_experts_per_tok": 9}, "config asks for 9 experts per token of 8"),
        ("llama", {"num_key_value_heads": 4}, "num_heads 6 is no multiple of num_kv_heads 4"),
        ("llama", {"num_hidden_layers": 2049}, "num_hidden_layers"),
        ("smollm3", {"no_rope_layers": [1]}, "no_rope_layers = .* a number for each of 2 layers, 0 or 1"),
        ("phi3", {"rope_scaling": {"type": "yarn", "factor": 2.0}}, "rope type 'longrope' needs 'short_factor'"),
        ("phi3", {"full_attn_mod": 2}, "full_attn_mod"),
        ("cohere2", {"head_dim": 16}, "head_dim = 16 is not implemented: only 8"),
        ("cohere2", {"layer_switch": 3}, "layer_switch = 3 is not implemented: only 4"),
        ("exaone4", {"sliding_window": None, "layer_types": ["sliding_attention"] * 2}, "2 of full_attention"),
        ("exaone4", {"sliding_window_pattern": "LLLG"}, "sliding_window_pattern"),
        ("ministral3", {"rope_parameters": {"rope_type": "default"}}, "no 'llama_4_scaling_beta', which is required"),
        ("hunyuan_v1_dense", {"rope_scaling": {"type": "dynamic", "alpha": 9.0, "factor": 2.0}}, "factor = 2.0 is not"),
        ("hunyuan_v1_moe", {"moe_topk": [1, 2]}, "moe_topk"),
        ("hunyuan_v1_moe", {"moe_intermediate_size": [80, 40]}, "moe_intermediate_size"),
        ("olmo3", {"rope_theta": 1e6}, "rope_theta"),
        ("olmo3", {"rope_parameters": {"rope_type": "default"}}, "does not know: rope_type"),
        ("llama", {"torch_dtype": "float64"}, "dtype 'float64' is not implemented: only"),
        ("olmo", {"clip_qkv": 0.0}, "clip_qkv = 0.0 is not allowed: a number above 0"),
        ("olmoe", {"clip_qkv": 8.0}, "clip_qkv = 8.0 is not implemented: only None"),
        ("llama4_text", {"attention_chunk_size": None, "layer_types": ["chunked_attention"] * 2}, "chunk_size = None"),
        ("llama4_text", {"no_rope_layers": [2, 0, 1, 1]}, "no_rope_layers = .* is not allowed: 1, or 0 for no RoPE"),
        ("phimoe", {"num_experts_per_tok": 3}, "num_experts_per_tok = 3 is not implemented: only 2"),
        (
            "phimoe",
            {"rope_parameters": {"rope_type": "longrope", "short_mscale": 1.0, "long_mscale": 1.2}},
            "long_mscale = 1.2 is not allowed: the same as short_mscale, 1.0",
        ),
        ("afmoe", {"attention_bias": True}, "attention_bias = True is not implemented: only False"),
        ("afmoe", {"route_norm": False}, "route_norm = False is not implemented: only True"),
        ("afmoe", {"sliding_window": None}, "sliding_window = None is not allowed: a number of tokens"),
        ("laguna", {"num_attention_heads_per_layer": [6, 8]}, "num_attention_heads_per_layer = .* a multiple of 6 for"),
        ("laguna", {"gating": False}, "gating = False is not implemented: only True, 'per-head', 'per-element'"),
        ("laguna", {"gating_types": ["per_head", "per_element"]}, "gating_types = .* the kind that gating says"),
        ("laguna", {"moe_router_logit_softcapping": 5.0}, "moe_router_logit_softcapping = 5.0 is not implemented"),
        (
            "laguna",
            {"layer_types": ["sliding_attention"] * 2, "sliding_window": 0},
            "sliding_window = 0 is not allowed",
        ),
        ("laguna", {"mlp_only_layers": [1]}, r"mlp_only_layers = \[1\] is not implemented: only \[0\]"),
        ("laguna", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling = .* is not implemented"),
        (
            "laguna",
            {"partial_rotary_factor": 0.25, "rope_parameters": {"full_attention": {"partial_rotary_factor": 0.5}}},
            "partial_rotary_factor = 0.25 is not implemented: only 0.5",
        ),
        ("mimo_v2_flash", {}, "num_key_value_heads = 6 is not allowed: a divisor of 6 heads, and twice as many, too"),
        (
            "mimo_v2_flash",
            {"hybrid_layer_pattern": [1, 1]},
            r"hybrid_layer_pattern = \[1, 1\] is not .*: only \[0, 1\]",
        ),
        ("mimo_v2_flash", {"swa_num_key_value_heads": 6}, "swa_num_key_value_heads = 6 is not implemented: only 12"),
        ("mimo_v2_flash", {"swa_rope_theta": 1e5}, "swa_rope_theta is 100000.0, and 10000.0 in the rope parameters"),
        ("mimo_v2_flash", {"add_full_attention_sink_bias": True}, "add_full_attention_sink_bias = True is not"),
        ("hy_v3", {"first_k_dense_replace": 2}, "first_k_dense_replace = 2 is not implemented: only 1"),
        ("hy_v3", {"mlp_layer_types": ["moe"] * 2}, "mlp_layer_types = .* is not allowed: 2 of dense, sparse"),
        ("exaone_moe", {"is_moe_layer": [True] * 4}, "is_moe_layer = .* is not allowed: the layers of mlp_layer_types"),
        (
            "mellum",
            {"rope_scaling": {"type": "linear", "factor": 2.0}},
            "rope_scaling = .* is not implemented: only None",
        ),
        ("muse_glimmer_text", {"layer_rope_theta": [1e4, 77.0]}, "layer_rope_theta = .* 0 for none"),
        ("muse_glimmer_text", {"attention_bias": True}, "attention_bias = True is not implemented: only False"),
        ("granitemoehybrid", {}, "128 Mamba heads of 'auto' are not as wide as mamba_expand"),
        ("falcon_h1", {"ssm_multipliers": [1.0] * 4}, "ssm_multipliers = .* is not allowed: 5 numbers"),
        (
            "falcon_h1",
            {"mlp_multipliers": [1.0, "1"]},
            "mlp_multipliers = .* is not allowed: a list of numbers above 0",
        ),
        (
            "falcon_h1",
            {"attention_bias": True, "attention_in_multiplier": 1.2},
            "1.2 is not allowed: 1.0 where attention_b",
        ),
        (
            "falcon_h1",
            {"mamba_proj_bias": True, "ssm_in_multiplier": 1.2},
            "1.2 is not allowed: 1.0 where mamba_proj_b",
        ),
        ("falcon_h1", {"mamba_d_ssm": 80}, "128 Mamba heads of 'auto' are not as wide as mamba_d_ssm, 80"),
        ("bamba", {"attn_rotary_emb": 128}, "attn_rotary_emb = 128 is not implemented: only 4"),
        ("gpt_oss", {"num_experts_per_tok": 4, "experts_per_token": 2}, "experts_per_token = 2"),
        ("minimax_m2", {"attn_type_list": [1, 0]}, "attn_type_list = .1, 0. is not allowed: only 1"),
        ("minimax_m2", {"scoring_func": "softmax"}, "scoring_func"),
        ("glm4_moe", {"n_group": 3}, "config asks for 8 experts of 1 among 3 groups of 128 experts"),
        ("apertus", {"post_norm": True}, "post_norm"),
        ("ernie4_5_moe", {"moe_norm_min": 1.5}, "moe_norm_min = 1.5 is not allowed: a number above 0, at most 1e-06"),
        ("qwen3_moe", {"shared_expert_intermediate_size": 64}, "shared_expert_intermediate_size"),
        (
            "llama",
            {"quantization_config": {"quant_method": "exl2"}},
            "quant_method 'exl2' .* is not implemented: give the model",
        ),
    ],
)
def test_what_is_refused(family, change, message):
    sizes = GPT if family == "gpt2" else LLAMA
    with pytest.raises(CheckpointError, match=message):
        read_config({"model_type": family, **sizes, **change})
