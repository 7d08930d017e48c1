"""The models of tiny_models.py that llama.cpp can hold, some with what it cannot say or its converter lacks changed."""

from typing import Any

from tests.tiny_models import TINY

# Windows that llama.cpp does not compute are longer than the text, its own patterns of layers are kept, and its
# converter finds the keys that it wants. None leaves a key out.
_WIDE = {"sliding_window": 512}
_GEMMA3 = {"query_pre_attn_scalar": 12, "layer_types": None, "sliding_window_pattern": 6, "num_hidden_layers": 7}
_MSCALE = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}
_MSCALE |= {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.3, "beta_fast": 32.0, "beta_slow": 1.0}
_LISTS = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 1024}
_LISTS |= {"short_factor": [1.0, 1.5, 2.0, 3.0], "long_factor": [1.0, 2.0, 4.0, 8.0]}
_LONG = {"original_max_position_embeddings": 1024, "max_position_embeddings": 4096}
_SQUARE = {"linear_value_head_dim": 8}  # states with as many numbers for a value as for a key
_SIGMOID = {"scoring_func": "sigmoid"}
_KIMI = {"first_k_dense_replace": 0, "mlp_layer_types": None, "moe_router_activation_func": "sigmoid"}
_KIMI |= {
    "linear_attn_config": {"full_attn_layers": [2], "kda_layers": [1], "head_dim": 12, "short_conv_kernel_size": 4}
}
_THETA = {"rope_type": "default", "rope_theta": 777.0}
_LLAMA4 = {"attention_chunk_size": 8192, "floor_scale": 8192, "attn_scale": 0.1}
_HEADS = {"mamba_head_dim": 16}  # which are 64 wide together
CHANGES: dict[str, dict[str, Any]] = {
    "starcoder2-window": {"use_bias": True, **_WIDE},
    **dict.fromkeys(("mistral", "phi3-window", "ministral3-window", "mistral3-mistral"), _WIDE),
    "gemma2": {"query_pre_attn_scalar": 12},
    "gemma3_text": _GEMMA3,
    "gemma3_text-linear": {"query_pre_attn_scalar": 12},
    "gemma3": _GEMMA3,
    "olmoe": {"num_key_value_heads": 6},
    "ministral3": {"rope_parameters": _MSCALE},
    "mistral3": {"rope_parameters": _MSCALE},
    "minicpm3": {"dim_model_base": 256},
    "minicpm3-long": {"max_position_embeddings": 1024, "rope_parameters": _LISTS, "v_head_dim": 8},
    "mistral4": {"rope_parameters": _MSCALE},
    "mistral3-mistral4": {
        "rope_parameters": {**_MSCALE, "llama_4_scaling_beta": 0.0}
    },  # which its converter leaves out
    "olmo3-yarn": {"attention_bias": False},
    "phi": {"num_key_value_heads": 6},
    "glm": {"hidden_size": 96, "head_dim": 16, "rms_norm_eps": 1e-5, "eos_token_id": 0},
    "glm4": {"eos_token_id": 0},
    "glm4-whole": {"eos_token_id": 0},
    "glm4_moe": {"num_nextn_predict_layers": 0},
    "glm4_moe-departures": {"num_nextn_predict_layers": 0},
    "cohere2": {"rotary_pct": 1.0},
    "exaone4": {"num_hidden_layers": 64},
    "hunyuan_v1_dense": {"max_position_embeddings": 32768},
    "hunyuan_v1_moe": {
        "rope_parameters": None,
        "moe_topk": [2, 2],
        "moe_intermediate_size": [80, 80],
        "num_shared_expert": [1, 1],
    },
    "nemotron": {"head_dim": 8},
    "ernie4_5_moe": {"moe_num_shared_experts": 1},
    "phi3-short": _LONG,
    **dict.fromkeys(("minimax_m2", "deepseek_v3"), _SIGMOID),
    **dict.fromkeys(("qwen3_5_text", "qwen3_5_moe_text", "qwen3_5", "qwen3_5_moe", "qwen3_next"), _SQUARE),
    "glm4_moe_lite": {**_SIGMOID, "first_k_dense_replace": 1},
    "kimi_linear": _KIMI,
    "qwen3_next-departures": {
        **_SQUARE,
        "attention_bias": False,
        "mlp_only_layers": [],
        "decoder_sparse_step": 1,
        "norm_topk_prob": True,
    },
    "qwen3_5_text-departures": {**_SQUARE, "attention_bias": False},
    "granitemoehybrid-mamba": {"layer_types": ["mamba", "attention"]},
    "granitemoehybrid-departures": {
        "layer_types": ["attention", "mamba"],
        "mamba_proj_bias": False,
        "time_step_limit": None,
        "mamba_conv_bias": True,
        "shared_intermediate_size": 80,
        "num_experts_per_tok": 0,
    },
    "bamba": {"attn_rotary_emb": 4},
    "bamba-departures": {"attn_rotary_emb": 4, "mamba_proj_bias": False},
    "falcon_h1": {"head_dim": 8},
    "falcon_h1-departures": {
        "mamba_proj_bias": False,
        "projectors_bias": False,
        "attention_bias": False,
        "mamba_conv_bias": True,
        "mamba_norm_before_gate": False,
        "tie_word_embeddings": False,
    },
    "falcon_h1-gate-first": {
        "head_dim": 8,
        "mamba_d_ssm": 96,
        "mamba_d_head": 16,
        "projectors_bias": False,
        "time_step_limit": None,
    },
    "nemotron_h": {**_HEADS, "layers_block_type": ["moe", "linear_attention", "full_attention", "moe"]},
    "nemotron_h-departures": {
        **_HEADS,
        "layers_block_type": ["linear_attention", "full_attention", "moe"],
        "mlp_bias": False,
        "use_bias": False,
    },
    "nemotron_h-dense": {**_HEADS, "use_conv_bias": True, "mlp_bias": True},
    "mamba2-departures": {"use_bias": False, "use_conv_bias": True, "time_step_limit": None},
    "lfm2-departures": {"conv_bias": False},
    "lfm2_moe-departures": {"use_expert_bias": True, "norm_topk_prob": True, "routed_scaling_factor": 1.0},
    "solar_open": {"partial_rotary_factor": 1.0},
    "solar_open-departures": {"partial_rotary_factor": 1.0},
    "exaone_moe": {"scoring_func": "sigmoid"},
    "exaone_moe-departures": {
        "scoring_func": "sigmoid",
        "tie_word_embeddings": False,
        "mlp_layer_types": ["sparse", "sparse"],
    },
    "hy_v3-departures": {"attention_bias": False, "mlp_bias": False},
    "afmoe": {"route_norm": True, "score_func": "sigmoid"},
    "afmoe-departures": {
        "route_norm": True,
        "score_func": "sigmoid",
        "layer_types": None,
        "num_hidden_layers": 4,
        "mup_enabled": True,
    },
    "laguna-departures": {
        "attention_bias": False,
        "mlp_layer_types": ["dense", "sparse"],
        "sliding_window": 0,
    },
    "mimo_v2_flash-departures": {
        "attention_bias": False,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
        "tie_word_embeddings": False,
    },
    "mellum-departures": {
        "attention_bias": False,
        "mlp_layer_types": ["sparse", "sparse"],
        "norm_topk_prob": True,
        "rope_parameters": {"full_attention": _THETA, "sliding_attention": _THETA},
    },
    "llama4_text": _LLAMA4,
    "llama4_text-departures": {
        **_LLAMA4,
        "attention_bias": False,
        "attn_temperature_tuning": True,
        "no_rope_layers": None,
        "num_hidden_layers": 4,
        "use_qk_norm": True,
    },
    "llama4": {**_LLAMA4, "num_hidden_layers": 4},  # where all layers rotate, llama.cpp's graph lacks an input
    "muse_glimmer_text-departures": {"layer_rope_theta": [0, 77.0], "tie_word_embeddings": False},
    "olmo-clipped": {"attention_bias": False},
    "dots1": {"num_key_value_heads": 6, "scoring_func": "sigmoid"},
}


def numbers_of(name: str, **more: Any) -> tuple[str, dict[str, Any]]:
    """The model_type, and the numbers of the config."""
    kind, numbers = TINY[name]
    more = {**CHANGES.get(name, {}), **more}
    if "vocab_size_per_layer_input" in numbers and "vocab_size" in more:
        more["vocab_size_per_layer_input"] = more["vocab_size"]
    inner = {**numbers.get("text_config", numbers), **more}
    inner = {key: value for key, value in inner.items() if key not in more or value is not None}
    return kind, {**numbers, "text_config": inner} if "text_config" in numbers else inner
