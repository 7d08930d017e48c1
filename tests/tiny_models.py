"""Tiny random models, one per family, written by transformers: 2 layers, prime vocabulary, float32, seeded.

`save` gives a directory in Hugging Face layout; `reference` the transformers model that wrote it. The weights are drawn
wider than transformers' default, so that logits differ clearly and a greedy token never hangs on a rounding error.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import transformers

import tests.muse_glimmer_text  # noqa: F401  (a class for a config of text)

VOCABULARY = 211
CONTEXT = 128

_SHARED = {
    "vocab_size": VOCABULARY,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_LLAMA = _SHARED | {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
}
_GPT = {key: value for key, value in _SHARED.items() if key != "max_position_embeddings"} | {
    "n_positions": CONTEXT,
    "n_embd": 48,
    "n_layer": 2,
    "n_head": 6,
}
_NEOX = _LLAMA | {"rotary_pct": 0.25, "hidden_act": "gelu"}
del _NEOX["num_key_value_heads"]
_EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2}
_LOCAL = {"num_local_experts": 5, "num_experts_per_tok": 2}
_MIXTURE = _LLAMA | _EXPERTS | {"moe_intermediate_size": 40}
_SCALES = {"embedding_multiplier": 3.0, "residual_multiplier": 0.6, "logits_scaling": 2.0, "attention_multiplier": 0.2}
# Its class wants the numbers of Mamba layers to fit, where there are none, too.
_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 12, "mamba_d_state": 16}
_FALCON = _LLAMA | {"mamba_n_heads": 6, "mamba_d_head": 12, "mamba_d_ssm": 72, "mamba_d_state": 16}
_FALCON |= {
    "embedding_multiplier": 3.0,
    "lm_head_multiplier": 0.6,
    "key_multiplier": 0.7,
    "attention_in_multiplier": 1.2,
    "attention_out_multiplier": 0.8,
    "mlp_multipliers": [1.4, 0.7],
    "ssm_in_multiplier": 1.25,
    "ssm_out_multiplier": 0.6,
    "ssm_multipliers": [0.9, 1.5, 0.7, 1.3, 1.1],
}
_HYBRID = _LLAMA | _SCALES | _MAMBA | {"layer_types": ["full_attention"] * 2, "shared_intermediate_size": 24}
_GLM = _LLAMA | {"head_dim": 8}
_SIGMOID = {
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "n_shared_experts": 2,
    "n_group": 3,
    "topk_group": 2,
    "moe_intermediate_size": 40,
    "routed_scaling_factor": 1.5,
}
_LATENT = _LLAMA | {
    "num_key_value_heads": 6,
    "q_lora_rank": 20,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
}
_KIMI = _LATENT | {
    "q_lora_rank": None,
    "num_experts": 6,
    "num_experts_per_token": 2,
    "num_shared_experts": 1,
    "num_expert_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 40,
    "linear_head_dim": 12,
    "linear_num_heads": 6,
    "layer_types": ["linear_attention", "full_attention"],
}
_DEEPSEEK_YARN = {
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "original_max_position_embeddings": 16,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 0.707,
        "mscale_all_dim": 1.2,
    }
}
_LEVEL_YARN = {"rope_parameters": _DEEPSEEK_YARN["rope_parameters"] | {"mscale": 1.2}}
_OSS = _LLAMA | _LOCAL | {"head_dim": 12, "sliding_window": 5}
_OSS |= {
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 150000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 32,
        "truncate": False,
    }
}
_ERNIE_MOE = _LLAMA | {"moe_num_experts": 5, "moe_k": 2, "moe_intermediate_size": 40, "num_hidden_layers": 3}
_PLAIN_ROPE = {"rope_type": "default", "rope_theta": 10000.0}


def _rope(kind: str, **numbers: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **numbers}}


CORRECTIONS = ("e_score_correction_bias", "expert_bias", "layer_scalar")  # buffers that are weights
_AROUND_ONE = ("layer_scalar", "router.scale", "per_expert_scale", "correct_output_scale")
# Whose norms multiply by 1 + weight.
_LESS_ONE = ("nemotron", "gemma", "gemma2", "gemma3_text", "gemma3", "muse_glimmer_text", "muse_glimmer")

_GEMMA = _LLAMA | {"num_hidden_layers": 4, "head_dim": 12, "query_pre_attn_scalar": 9, "sliding_window": 7}
_GEMMA_ROPES = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
_MELLUM_ROPES = {
    "full_attention": {"rope_type": "yarn", "rope_theta": 5e5, "factor": 4.0, "original_max_position_embeddings": 32},
    "sliding_attention": {"rope_type": "default", "rope_theta": 5e5},
}
_LAGUNA_ROPES = {
    "full_attention": _MELLUM_ROPES["full_attention"] | {"partial_rotary_factor": 0.5},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0},
}
_MIMO = _LLAMA | {"num_attention_heads": 8, "head_dim": 12, "v_head_dim": 8, "sliding_window": 5}
_MIMO |= {"n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
_LLAMA4 = (
    _LLAMA
    | _LOCAL
    | {
        "head_dim": 12,
        "num_experts_per_tok": 1,
        "intermediate_size_mlp": 56,
        "attention_chunk_size": CONTEXT,
        "floor_scale": 16,
        "attn_scale": 0.3,
    }
)
_LLAMA4_VISION = {
    "hidden_size": 16,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
    "vision_output_dim": 16,
    "projector_input_dim": 16,
    "projector_output_dim": 16,
}
_PHIMOE_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.25, 1.5, 2.0],
    "long_factor": [1, 2.5, 7.5, 9],
    "short_mscale": 1.2,
    "long_mscale": 1.2,
    "original_max_position_embeddings": CONTEXT,
}
_MUSE = _LLAMA | {"head_dim": 12, "sliding_window": 5, "qk_scale_factor": 1.7, "output_multiplier": 0.6}
_MUSE_VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "pos_emb_height": 4,
    "pos_emb_width": 4,
}
_KEXAONE = _LLAMA | {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
_GEMMA4 = _LLAMA | {
    "num_hidden_layers": 4,
    "head_dim": 12,
    "global_head_dim": 16,
    "sliding_window": 7,
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": VOCABULARY,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "final_logit_softcapping": 20.0,
}
_FEW_KEYS = {"attention_k_eq_v": True, "num_global_key_value_heads": 1}
_SMALL_GEMMA4 = {"hidden_size_per_layer_input": 8, "num_kv_shared_layers": 2, "use_double_wide_mlp": True}
_GEMMA4_EXPERTS = {"enable_moe_block": True, "num_experts": 5, "top_k_experts": 2, "moe_intermediate_size": 24}
_GEMMA4_VISION = {
    "text_config": _GEMMA4 | _FEW_KEYS | {"pad_token_id": 0},
    "vision_config": {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 8,
    },
    "audio_config": None,
}
_GEMMA3N = _LLAMA | {
    "num_hidden_layers": 5,
    "head_dim": 12,
    "sliding_window": 7,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention", "sliding_attention"],
    "activation_sparsity_pattern": [0.95, 0.5, 0.0, 0.3, 0.0],
    "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": VOCABULARY,
    "laurel_rank": 6,
}
_GEMMA3N_DEPARTURES = {
    "layer_types": ["full_attention", "sliding_attention"] * 2 + ["full_attention"],
    "activation_sparsity_pattern": [0.0, 0.9, 0.9, 0.0, 0.95],
    "num_kv_shared_layers": 0,
    "vocab_size_per_layer_input": VOCABULARY - 20,
    "intermediate_size": [80, 48, 80, 64, 112],
    "altup_correct_scale": False,
    "tie_word_embeddings": False,
    "final_logit_softcapping": 5.0,
    "attention_bias": True,
    "rope_parameters": _GEMMA_ROPES,
}
_GEMMA3N_HEARING = {
    "hidden_size": 16,
    "conf_num_hidden_layers": 1,
    "conf_num_attention_heads": 2,
    "sscp_conv_channel_size": [4, 4],
    "input_feat_size": 16,
}
_GEMMA3N_WHOLE = {
    "text_config": _GEMMA3N | {"pad_token_id": 0},
    "vision_config": {"architecture": "resnet18", "hidden_size": 16, "num_classes": 0, "label_names": []},
    "audio_config": _GEMMA3N_HEARING,
}
_UNIFIED = {key: value for key, value in (_GEMMA4 | _FEW_KEYS).items() if "per_layer_input" not in key}
_GEMMA4_UNIFIED = {
    "text_config": _UNIFIED | {"pad_token_id": 0},
    "vision_config": {"patch_size": 2, "pooling_kernel_size": 2, "mm_embed_dim": 12, "mm_posemb_size": 10},
    "audio_config": {"audio_embed_dim": 8},
}
_GEMMA_VISION = {
    "text_config": _GEMMA | {"sliding_window_pattern": 2},
    "vision_config": {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    },
    "mm_tokens_per_image": 4,
}


def _longrope(original: int, **numbers: float) -> dict[str, Any]:
    """Of Phi-3, for heads of 8 of which all but a quarter is rotated. transformers takes the long list for prompts of
    more than `original` tokens."""
    lists = {"short_factor": [1.0, 1.25, 1.5], "long_factor": [1, 2.5, 7.5]}
    parameters = {"rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.75, **lists, **numbers}
    return {"rope_parameters": parameters, "original_max_position_embeddings": original}


_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
_GROWS = {"llama_4_scaling_beta": 0.3}
_QWEN_VISION = {
    "depth": 1,
    "embed_dim": 16,
    "hidden_size": 48,
    "intermediate_size": 16,
    "num_heads": 2,
    "out_hidden_size": 48,
    "fullatt_block_indexes": [0],
}
_QWEN3_VISION = {
    "depth": 2,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_heads": 2,
    "out_hidden_size": 48,
    "num_position_embeddings": 16,
    "deepstack_visual_indexes": [0],
}


def _sections(*widths: int, **numbers: Any) -> dict[str, Any]:
    """A rope whose three positions each turn so many entries of a head."""
    return {"rope_parameters": _PLAIN_ROPE | {"mrope_section": list(widths)} | numbers}


_ALPHA = {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "alpha": 50.0, "factor": 1.0}}

_LFM2 = _LLAMA | {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"]}
_MAMBA2 = {key: value for key, value in _SHARED.items() if key != "max_position_embeddings"} | {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_heads": 8,
    "head_dim": 12,
    "n_groups": 1,
    "state_size": 16,
}
_NEMOTRON_H = {key: value for key, value in _LLAMA.items() if key != "num_hidden_layers"} | {
    "layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention"],
    "head_dim": 12,
    "mamba_num_heads": 4,
    "mamba_head_dim": 8,
    "n_groups": 2,
    "ssm_state_size": 16,
}
_NEMOTRON_MOE = {
    "layers_block_type": ["moe", "linear_attention", "full_attention", "moe", "mlp"],
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 40,
    "moe_shared_expert_intermediate_size": 24,
    "routed_scaling_factor": 1.5,
}
_DELTA = _LLAMA | {
    "head_dim": 16,
    "num_hidden_layers": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
_DELTA_MOE = (
    {key: value for key, value in _DELTA.items() if key != "intermediate_size"}
    | _EXPERTS
    | {"moe_intermediate_size": 40, "shared_expert_intermediate_size": 24}
)
_NEXT = _DELTA_MOE | {"intermediate_size": 80}
_OLMO_HYBRID = _LLAMA | {
    "num_hidden_layers": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 32,
}
_DELTA_VISION = {key: _QWEN3_VISION[key] for key in _QWEN3_VISION if key != "deepstack_visual_indexes"}

# name → (model_type, config): every family, and every departure that a family's config can make.
TINY: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", _LLAMA),
    "llama-mha-tied": ("llama", _LLAMA | {"num_key_value_heads": 6, "tie_word_embeddings": True}),
    "llama-mqa": ("llama", _LLAMA | {"num_key_value_heads": 1}),
    "llama-bias": ("llama", _LLAMA | {"attention_bias": True, "mlp_bias": True}),
    "llama-head-dim": ("llama", _LLAMA | {"head_dim": 14}),
    "llama-linear": ("llama", _LLAMA | _rope("linear", factor=2.5)),
    "llama-dynamic": ("llama", _LLAMA | _rope("dynamic", factor=2.0)),
    "llama-llama3": (
        "llama",
        _LLAMA
        | _rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32),
    ),
    "llama-yarn": ("llama", _LLAMA | _rope("yarn", factor=4.0, original_max_position_embeddings=32)),
    "llama-yarn-stretched": (
        "llama",
        _LLAMA | {"max_position_embeddings": 32} | _rope("yarn", factor=4.0, original_max_position_embeddings=32),
    ),
    "mistral": ("mistral", _LLAMA | {"sliding_window": 7}),
    "mistral-long": ("mistral", _LLAMA | {"sliding_window": 8, "max_position_embeddings": 512}),
    "mistral-no-window": ("mistral", _LLAMA | {"sliding_window": None}),
    "mixtral": ("mixtral", _LLAMA | {"num_local_experts": 5, "num_experts_per_tok": 2}),
    "qwen2": ("qwen2", _LLAMA),
    "qwen2-window": ("qwen2", _LLAMA | {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}),
    "qwen3": ("qwen3", _LLAMA | {"head_dim": 12}),
    "gemma": ("gemma", _LLAMA | {"head_dim": 12}),
    "gemma2": ("gemma2", _GEMMA | {"attn_logit_softcapping": 3.0}),
    "gemma2-uncapped": ("gemma2", _GEMMA | {"attn_logit_softcapping": None, "final_logit_softcapping": None}),
    "gemma3_text": ("gemma3_text", _GEMMA | {"layer_types": ["sliding_attention", "full_attention"] * 2}),
    "gemma3_text-linear": ("gemma3_text", _GEMMA | {"rope_parameters": _GEMMA_ROPES, "attention_bias": True}),
    "gemma3": ("gemma3", _GEMMA_VISION),
    "gemma3n_text": ("gemma3n_text", _GEMMA3N),
    "gemma3n_text-departures": ("gemma3n_text", _GEMMA3N | _GEMMA3N_DEPARTURES),
    "gemma3n_text-plain": ("gemma3n_text", _GEMMA3N | {"activation_sparsity_pattern": None, "num_kv_shared_layers": 3}),
    "gemma3n": ("gemma3n", _GEMMA3N_WHOLE),
    "gemma4_text": ("gemma4_text", _GEMMA4 | _FEW_KEYS | _SMALL_GEMMA4 | _GEMMA4_EXPERTS),  # all departures at once
    "gemma4_text-plain": ("gemma4_text", _GEMMA4 | _FEW_KEYS),
    "gemma4_text-small": ("gemma4_text", _GEMMA4 | _SMALL_GEMMA4),
    "gemma4_text-experts": ("gemma4_text", _GEMMA4 | _FEW_KEYS | _GEMMA4_EXPERTS),
    "gemma4": ("gemma4", _GEMMA4_VISION),
    "gemma4_unified_text": ("gemma4_unified_text", _UNIFIED),
    "gemma4_unified_text-departures": (
        "gemma4_unified_text",
        _UNIFIED | {"num_kv_shared_layers": 2, "use_double_wide_mlp": True, "attention_k_eq_v": False},
    ),
    "gemma4_unified": ("gemma4_unified", _GEMMA4_UNIFIED),
    "gpt_neox": ("gpt_neox", _NEOX),
    "gpt_neox-serial": ("gpt_neox", _NEOX | {"use_parallel_residual": False, "attention_bias": False}),
    "gpt2": ("gpt2", _GPT),
    "gpt2-inner": ("gpt2", _GPT | {"n_inner": 100, "scale_attn_weights": False}),
    "gpt_bigcode": ("gpt_bigcode", _GPT | {"multi_query": True}),
    "gpt_bigcode-mha": ("gpt_bigcode", _GPT | {"multi_query": False}),
    "qwen2_moe": ("qwen2_moe", _MIXTURE | {"shared_expert_intermediate_size": 56}),
    "qwen2_moe-departures": (
        "qwen2_moe",
        _MIXTURE
        | {"num_hidden_layers": 4, "decoder_sparse_step": 2, "mlp_only_layers": [3], "norm_topk_prob": True}
        | {"shared_expert_intermediate_size": 24, "qkv_bias": False}
        | {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 3},
    ),
    "qwen3_moe": ("qwen3_moe", _MIXTURE | {"head_dim": 12, "norm_topk_prob": True}),
    "qwen3_moe-departures": (
        "qwen3_moe",
        _MIXTURE
        | {"num_hidden_layers": 3, "mlp_only_layers": [0], "attention_bias": True}
        | {"use_sliding_window": True, "sliding_window": 5},
    ),
    "olmo2": ("olmo2", _LLAMA),
    "olmo2-bias": ("olmo2", _LLAMA | {"attention_bias": True, "rms_norm_eps": 1e-3}),
    "olmo": ("olmo", _LLAMA),
    "olmo-bias": ("olmo", _LLAMA | {"attention_bias": True, "tie_word_embeddings": True}),
    "olmoe": ("olmoe", _LLAMA | _EXPERTS),
    "olmoe-departures": ("olmoe", _LLAMA | _EXPERTS | {"norm_topk_prob": True, "attention_bias": True}),
    "granite": ("granite", _LLAMA | _SCALES),
    "granite-bias": ("granite", _LLAMA | _SCALES | {"attention_bias": True, "mlp_bias": True, "head_dim": 14}),
    "granitemoe": ("granitemoe", _LLAMA | _SCALES | _LOCAL),
    "granitemoe-bias": ("granitemoe", _LLAMA | _SCALES | _LOCAL | {"attention_bias": True}),
    "granitemoeshared": ("granitemoeshared", _LLAMA | _SCALES | _LOCAL | {"shared_intermediate_size": 40}),
    "granitemoeshared-none": ("granitemoeshared", _LLAMA | _SCALES | _LOCAL),
    "granitemoehybrid": ("granitemoehybrid", _HYBRID | {"num_local_experts": 0, "position_embedding_type": "rope"}),
    "granitemoehybrid-experts": ("granitemoehybrid", _HYBRID | _LOCAL | {"attention_bias": True}),
    "granitemoehybrid-mamba": (
        "granitemoehybrid",
        _HYBRID | _LOCAL | {"layer_types": ["linear_attention", "full_attention"], "mamba_n_groups": 2},
    ),
    "granitemoehybrid-departures": (
        "granitemoehybrid",
        _HYBRID
        | {"num_local_experts": 0, "layer_types": ["full_attention", "linear_attention"], "mamba_d_conv": 3}
        | {"mamba_proj_bias": True, "mamba_conv_bias": False, "time_step_limit": [0.5, 0.9]}
        | {"mamba_d_head": 32, "mamba_n_heads": 3},
    ),
    "glm4": ("glm4", _GLM),
    "glm4-whole": ("glm4", _GLM | {"attention_bias": False, "partial_rotary_factor": 1.0}),
    "glm": ("glm", _GLM),
    "starcoder2": ("starcoder2", _LLAMA),
    "starcoder2-window": ("starcoder2", _LLAMA | {"sliding_window": 5, "use_bias": False}),
    "stablelm": ("stablelm", _LLAMA),
    "stablelm-parallel": (
        "stablelm",
        _LLAMA | {"use_parallel_residual": True, "qk_layernorm": True, "use_qkv_bias": True},
    ),
    "glm4_moe_lite": ("glm4_moe_lite", _LATENT | _SIGMOID | {"num_hidden_layers": 3}),
    "glm4_moe_lite-departures": (
        "glm4_moe_lite",
        _LATENT
        | _SIGMOID
        | {
            "attention_bias": True,
            "mlp_layer_types": ["sparse", "dense"],
            "norm_topk_prob": False,
            "rope_interleave": False,
            "n_group": 1,
            "topk_group": 1,
        },
    ),
    "deepseek_v2": (
        "deepseek_v2",
        _LATENT | _SIGMOID | _LEVEL_YARN | {"first_k_dense_replace": 1, "topk_method": "greedy", "n_group": None},
    ),
    "deepseek_v2-groups": ("deepseek_v2", _LATENT | _SIGMOID | {"topk_method": "group_limited_greedy"}),
    "deepseek_v2-departures": (
        "deepseek_v2",
        _LATENT | _SIGMOID | _DEEPSEEK_YARN | {"q_lora_rank": None, "topk_method": "greedy", "n_group": None},
    ),
    "deepseek_v3": ("deepseek_v3", _LATENT | _SIGMOID | _LEVEL_YARN | {"first_k_dense_replace": 1}),
    "deepseek_v3-departures": (
        "deepseek_v3",
        _LATENT | _SIGMOID | {"first_k_dense_replace": 0, "q_lora_rank": None, "rope_interleave": False},
    ),
    "kimi_linear": ("kimi_linear", _KIMI),
    "kimi_linear-departures": (
        "kimi_linear",
        _KIMI
        | {
            "q_lora_rank": 20,
            "layer_types": ["full_attention", "linear_attention"],
            "mlp_layer_types": ["sparse", "dense"],
            "moe_renormalize": False,
            "num_expert_group": 3,
            "topk_group": 2,
            "linear_num_heads": 3,
            "linear_head_dim": 20,
            "linear_conv_kernel_dim": 3,
        },
    ),
    "kimi_k25": (
        "kimi_k25",
        {
            "text_config": _LATENT | _SIGMOID | {"first_k_dense_replace": 1, "tie_word_embeddings": False},
            "vision_config": _GEMMA_VISION["vision_config"],
            "projection_hidden_size": 16,
            "tie_word_embeddings": False,
        },
    ),
    "mistral4": ("mistral4", _LATENT | _SIGMOID | {"first_k_dense_replace": 1}),
    "youtu": ("youtu", _LATENT),
    "youtu-departures": ("youtu", _LATENT | {"attention_bias": True, "rope_interleave": False}),
    "minicpm3": ("minicpm3", _LATENT | {"v_head_dim": None, "dim_model_base": 16}),
    "minicpm3-long": (
        "minicpm3",
        _LATENT
        | _rope(
            "longrope",
            short_factor=[1.0, 1.5, 2.0, 3.0],
            long_factor=[1.0, 2.0, 4.0, 8.0],
            original_max_position_embeddings=CONTEXT,
            factor=4.0,
        ),
    ),
    "glm4_moe": ("glm4_moe", _LLAMA | _SIGMOID | {"head_dim": 12, "num_hidden_layers": 3}),
    "glm4_moe-departures": (
        "glm4_moe",
        _LLAMA
        | _SIGMOID
        | {"use_qk_norm": True, "attention_bias": True, "first_k_dense_replace": 0, "norm_topk_prob": False},
    ),
    "gpt_oss": ("gpt_oss", _OSS),
    "gpt_oss-departures": (
        "gpt_oss",
        _OSS | {"attention_bias": False, "layer_types": ["full_attention"] * 2, "swiglu_limit": 0.5},
    ),
    "nemotron": ("nemotron", _LLAMA | {"head_dim": 12}),
    "nemotron-bias": ("nemotron", _LLAMA | {"attention_bias": True, "mlp_bias": True, "partial_rotary_factor": 1.0}),
    "arcee": ("arcee", _LLAMA),
    "arcee-bias": ("arcee", _LLAMA | {"attention_bias": True, "mlp_bias": True}),
    "apertus": ("apertus", _LLAMA),
    "apertus-bias": ("apertus", _LLAMA | {"attention_bias": True, "rope_parameters": _PLAIN_ROPE}),
    "seed_oss": ("seed_oss", _LLAMA | {"head_dim": 12}),
    "seed_oss-bias": (
        "seed_oss",
        _LLAMA | {"head_dim": 8, "attention_bias": False, "attention_out_bias": True, "mlp_bias": True},
    ),
    "ernie4_5": ("ernie4_5", _LLAMA | {"head_dim": 12}),
    "ernie4_5-bias": ("ernie4_5", _LLAMA | {"head_dim": 8, "use_bias": True, "tie_word_embeddings": False}),
    "ernie4_5_moe": ("ernie4_5_moe", _ERNIE_MOE),
    "ernie4_5_moe-departures": (
        "ernie4_5_moe",
        _ERNIE_MOE
        | {"num_hidden_layers": 4, "moe_layer_interval": 2, "moe_num_shared_experts": 0, "moe_layer_end_index": 2},
    ),
    "helium": ("helium", _LLAMA | {"head_dim": 8}),
    "helium-bias": ("helium", _LLAMA | {"head_dim": 8, "attention_bias": True, "mlp_bias": True}),
    "minimax_m2": ("minimax_m2", _LLAMA | _LOCAL | {"head_dim": 12, "rotary_dim": 6}),
    "smollm3": ("smollm3", _LLAMA | {"num_hidden_layers": 4}),
    "smollm3-departures": (
        "smollm3",
        _LLAMA
        | {"num_hidden_layers": 3, "no_rope_layer_interval": 2, "use_sliding_window": True, "sliding_window": 5}
        | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False},
    ),
    "phi3": ("phi3", _LLAMA),
    "phi3-window": ("phi3", _LLAMA | {"sliding_window": 5, "tie_word_embeddings": True}),
    "phi3-short": ("phi3", _LLAMA | _longrope(CONTEXT, factor=4.0)),
    "phi3-long": ("phi3", _LLAMA | _longrope(1, attention_factor=1.2)),
    "phi": ("phi", _LLAMA),
    "phi-departures": ("phi", _LLAMA | {"qk_layernorm": True, "partial_rotary_factor": 1.0, "num_hidden_layers": 3}),
    "cohere": ("cohere", _LLAMA | {"logit_scale": 0.8}),
    "cohere-departures": (
        "cohere",
        _LLAMA | {"use_qk_norm": True, "attention_bias": True, "tie_word_embeddings": False, "logit_scale": 0.7},
    ),
    "cohere2": ("cohere2", _LLAMA | {"num_hidden_layers": 4, "sliding_window": 5, "logit_scale": 0.8}),
    "cohere2-bias": (
        "cohere2",
        _LLAMA | {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 9, "attention_bias": True},
    ),
    "exaone4": ("exaone4", _LLAMA | {"num_hidden_layers": 4, "sliding_window": 5}),
    "exaone4-whole": (
        "exaone4",
        _LLAMA | {"sliding_window": None, "layer_types": ["full_attention"] * 2, "tie_word_embeddings": True},
    ),
    "ministral3": ("ministral3", _LLAMA | {"head_dim": 12, "rope_parameters": _PLAIN_ROPE | _YARN | _GROWS}),
    "ministral3-window": ("ministral3", _LLAMA | {"head_dim": 8, "sliding_window": 5}),
    "ministral3-level": (
        "ministral3",
        _LLAMA | {"rope_parameters": _PLAIN_ROPE | _YARN | {"llama_4_scaling_beta": 0.0, "mscale_all_dim": 0.0}},
    ),
    "hunyuan_v1_dense": ("hunyuan_v1_dense", _LLAMA | _ALPHA | {"head_dim": 12}),
    "hunyuan_v1_dense-bias": ("hunyuan_v1_dense", _LLAMA | {"head_dim": 8, "attention_bias": True}),
    "hunyuan_v1_moe": ("hunyuan_v1_moe", _LLAMA | _ALPHA | {"head_dim": 12, "num_experts": 5, "moe_topk": 2}),
    "olmo3": ("olmo3", _LLAMA | {"num_hidden_layers": 4, "sliding_window": 5}),
    "olmo3-yarn": (
        "olmo3",
        _LLAMA
        | {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 9, "attention_bias": True}
        | {"rope_parameters": {"full_attention": _YARN}},
    ),
    "mistral3": (
        "mistral3",
        {
            "text_config": _LLAMA
            | {"head_dim": 12, "model_type": "ministral3"}
            | {"rope_parameters": _PLAIN_ROPE | _YARN | _GROWS},
            "vision_config": _GEMMA_VISION["vision_config"],
            "tie_word_embeddings": False,
        },
    ),
    "mistral3-mistral": (
        "mistral3",
        {"text_config": _LLAMA | {"model_type": "mistral"}, "vision_config": _GEMMA_VISION["vision_config"]},
    ),
    "mistral3-mistral4": (
        "mistral3",
        {
            "text_config": _LATENT
            | _SIGMOID
            | {"model_type": "mistral4", "first_k_dense_replace": 1}
            | {"rope_parameters": _PLAIN_ROPE | _YARN | _GROWS | {"mscale": 1.0, "mscale_all_dim": 1.0}},
            "vision_config": _GEMMA_VISION["vision_config"],
            "tie_word_embeddings": False,
        },
    ),
    "qwen2_vl": ("qwen2_vl", {"text_config": _LLAMA | _sections(1, 1, 2), "vision_config": _QWEN_VISION}),
    "qwen2_vl-window": (
        "qwen2_vl",
        {
            "text_config": _LLAMA
            | _sections(2, 1, 1, **_YARN)
            | {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
            "vision_config": _QWEN_VISION,
            "tie_word_embeddings": True,
        },
    ),
    "qwen2_5_vl": ("qwen2_5_vl", {"text_config": _LLAMA | _sections(1, 1, 2), "vision_config": _QWEN_VISION}),
    "qwen3_vl": (
        "qwen3_vl",
        {"text_config": _LLAMA | _sections(2, 2, 2) | {"head_dim": 12}, "vision_config": _QWEN3_VISION},
    ),
    "qwen3_vl-bias": (
        "qwen3_vl",
        {
            "text_config": _LLAMA | _sections(3, 2, 1) | {"head_dim": 12, "attention_bias": True},
            "vision_config": _QWEN3_VISION,
            "tie_word_embeddings": True,
        },
    ),
    "qwen3_vl_moe": (
        "qwen3_vl_moe",
        {"text_config": _MIXTURE | _sections(2, 2, 2) | {"head_dim": 12}, "vision_config": _QWEN3_VISION},
    ),
    "mamba2": ("mamba2", _MAMBA2),
    "mamba2-departures": (
        "mamba2",
        _MAMBA2
        | {"n_groups": 2, "use_bias": True, "use_conv_bias": False, "tie_word_embeddings": True, "head_dim": 32}
        | {"num_heads": 3, "n_groups": 3, "time_step_limit": [0.5, 0.9]},
    ),
    "bamba": ("bamba", _LLAMA | _MAMBA | {"attn_layer_indices": [1], "num_hidden_layers": 3}),
    "bamba-departures": (
        "bamba",
        _LLAMA | _MAMBA | {"attn_layer_indices": [0], "mamba_n_groups": 2, "mamba_proj_bias": True, "mlp_bias": True},
    ),
    "falcon_h1": ("falcon_h1", _FALCON),
    "falcon_h1-departures": (
        "falcon_h1",
        _FALCON
        | {"mamba_rms_norm": True, "mamba_n_groups": 2, "mamba_d_conv": 3, "mamba_conv_bias": False, "head_dim": 12}
        | {"attention_in_multiplier": 1.0, "ssm_in_multiplier": 1.0, "attention_bias": True, "mlp_bias": True}
        | {"mamba_proj_bias": True, "projectors_bias": True, "tie_word_embeddings": True, "num_key_value_heads": 6},
    ),
    "falcon_h1-gate-first": (
        "falcon_h1",
        _FALCON
        | {"mamba_rms_norm": True, "mamba_norm_before_gate": False, "mamba_n_groups": 2, "mamba_d_ssm": None}
        | {"mamba_d_head": "auto", "time_step_limit": [0.5, 0.9], "projectors_bias": True},
    ),
    "nemotron_h": ("nemotron_h", _NEMOTRON_H | _NEMOTRON_MOE),
    "nemotron_h-departures": (
        "nemotron_h",
        _NEMOTRON_H
        | _NEMOTRON_MOE
        | {"moe_latent_size": 20, "n_group": 3, "topk_group": 2, "norm_topk_prob": False, "mlp_bias": True}
        | {"use_bias": True, "conv_kernel": 3, "n_groups": 1},
    ),
    "nemotron_h-dense": ("nemotron_h", _NEMOTRON_H | {"use_conv_bias": False, "tie_word_embeddings": False}),
    "lfm2": ("lfm2", _LFM2 | {"block_auto_adjust_ff_dim": False}),
    "lfm2-departures": (
        "lfm2",
        _LFM2
        | {"conv_bias": True, "conv_L_cache": 4, "tie_word_embeddings": False}
        | {"block_multiple_of": 32, "block_ffn_dim_multiplier": 1.5},
    ),
    "lfm2_moe": ("lfm2_moe", _LFM2 | _EXPERTS | {"moe_intermediate_size": 40, "num_dense_layers": 1}),
    "lfm2_moe-departures": (
        "lfm2_moe",
        _LFM2
        | _EXPERTS
        | {"moe_intermediate_size": 40, "num_dense_layers": 0, "use_expert_bias": False, "norm_topk_prob": False}
        | {"routed_scaling_factor": 1.5, "conv_L_cache": 2},
    ),
    "qwen3_5_text": ("qwen3_5_text", _DELTA),
    "qwen3_5_text-departures": (
        "qwen3_5_text",
        _DELTA
        | {"linear_value_head_dim": 32, "linear_num_value_heads": 2, "linear_conv_kernel_dim": 3}
        | {
            "attention_bias": True,
            "tie_word_embeddings": True,
            "layer_types": ["full_attention", "linear_attention"] * 2,
        },
    ),
    "qwen3_5_moe_text": ("qwen3_5_moe_text", _DELTA_MOE),
    "qwen3_next": ("qwen3_next", _NEXT),
    "qwen3_next-departures": (
        "qwen3_next",
        _NEXT
        | {
            "linear_value_head_dim": 32,
            "linear_num_value_heads": 6,
            "linear_conv_kernel_dim": 3,
            "attention_bias": True,
        }
        | {"mlp_only_layers": [1], "decoder_sparse_step": 2, "norm_topk_prob": False, "tie_word_embeddings": True}
        | {"layer_types": ["full_attention", "linear_attention"] * 2},
    ),
    "olmo_hybrid": ("olmo_hybrid", _OLMO_HYBRID | {"rope_parameters": {"rope_theta": None, "rope_type": "default"}}),
    "olmo_hybrid-departures": (
        "olmo_hybrid",
        _LLAMA
        | {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "attention_bias": True}
        | {"linear_allow_neg_eigval": False, "linear_conv_kernel_dim": 3, "tie_word_embeddings": True}
        | {"rope_parameters": _YARN, "layer_types": ["full_attention", "linear_attention"]},
    ),
    "qwen3_5": ("qwen3_5", {"text_config": _DELTA | _sections(1, 1, 0), "vision_config": _DELTA_VISION}),
    "qwen3_5_moe": ("qwen3_5_moe", {"text_config": _DELTA_MOE | _sections(1, 1, 0), "vision_config": _DELTA_VISION}),
    "solar_open": ("solar_open", _LLAMA | _SIGMOID | {"head_dim": 12}),
    "solar_open-departures": (
        "solar_open",
        _LLAMA
        | _SIGMOID
        | {"head_dim": 8, "n_group": 1, "topk_group": 1, "norm_topk_prob": False, "attention_bias": True}
        | {"n_shared_experts": 1, "rope_parameters": _PLAIN_ROPE | _YARN},
    ),
    "exaone_moe": ("exaone_moe", _KEXAONE | {"num_hidden_layers": 4, "sliding_window": 5}),
    "exaone_moe-departures": (
        "exaone_moe",
        _KEXAONE
        | {"layer_types": ["full_attention", "sliding_attention"], "mlp_layer_types": ["sparse", "dense"]}
        | {"sliding_window": 9, "n_group": 3, "topk_group": 2, "norm_topk_prob": False, "num_shared_experts": 2}
        | {"tie_word_embeddings": True, "head_dim": 12, "first_k_dense_replace": 0},
    ),
    "hy_v3": ("hy_v3", _MIXTURE | {"head_dim": 12, "num_hidden_layers": 3}),
    "hy_v3-departures": (
        "hy_v3",
        _MIXTURE
        | {"mlp_layer_types": ["sparse", "dense"], "num_shared_experts": 2, "attention_bias": True, "mlp_bias": True}
        | {"head_dim": 8, "router_scaling_factor": 1.5, "tie_word_embeddings": True},
    ),
    "afmoe": ("afmoe", _MIXTURE | {"head_dim": 12, "num_hidden_layers": 4, "sliding_window": 5, "mup_enabled": True}),
    "afmoe-departures": (
        "afmoe",
        _MIXTURE
        | {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 9, "num_dense_layers": 0}
        | {"head_dim": 8, "num_shared_experts": 1, "route_scale": 1.5, "tie_word_embeddings": True},
    ),
    "laguna": (
        "laguna",
        _MIXTURE
        | {"head_dim": 12, "num_hidden_layers": 3, "sliding_window": 5, "shared_expert_intermediate_size": 24}
        | {"layer_types": ["full_attention"] + ["sliding_attention"] * 2, "rope_parameters": _LAGUNA_ROPES}
        | {"num_attention_heads_per_layer": [6, 8, 4], "moe_routed_scaling_factor": 1.5},
    ),
    "laguna-departures": (
        "laguna",
        _MIXTURE
        | {"head_dim": 8, "gating": "per-element", "attention_bias": True, "mlp_layer_types": ["sparse", "dense"]}
        | {"shared_expert_intermediate_size": 40, "tie_word_embeddings": True},
    ),
    "mimo_v2_flash": (
        "mimo_v2_flash",
        _MIMO | {"layer_types": ["full_attention", "sliding_attention", "sliding_attention"], "num_hidden_layers": 3},
    ),
    "mimo_v2_flash-departures": (
        "mimo_v2_flash",
        _MIMO
        | {"head_dim": 12, "v_head_dim": 20, "attention_value_scale": None, "attention_bias": True, "n_group": 3}
        | {"topk_group": 2, "mlp_layer_types": ["sparse", "dense"], "norm_topk_prob": False}
        | {"routed_scaling_factor": 1.5, "sliding_window": 9, "tie_word_embeddings": True},
    ),
    "mellum": (
        "mellum",
        _MIXTURE
        | {"head_dim": 12, "num_hidden_layers": 4, "sliding_window": 5}
        | {"layer_types": (["sliding_attention"] * 3 + ["full_attention"]), "rope_parameters": _MELLUM_ROPES},
    ),
    "mellum-departures": (
        "mellum",
        _MIXTURE
        | {"head_dim": 8, "mlp_layer_types": ["dense", "sparse"], "norm_topk_prob": False, "attention_bias": True}
        | {"sliding_window": 9, "layer_types": ["full_attention", "sliding_attention"]},
    ),
    "llama4_text": ("llama4_text", _LLAMA4 | {"num_hidden_layers": 4, "interleave_moe_layer_step": 2}),
    "llama4_text-departures": (
        "llama4_text",
        _LLAMA4
        | {"use_qk_norm": False, "attn_temperature_tuning": False, "num_experts_per_tok": 2, "attention_bias": True}
        | {"attention_chunk_size": None, "no_rope_layers": [0, 1], "head_dim": 8, "tie_word_embeddings": True}
        | _rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=1.0, original_max_position_embeddings=32),
    ),
    "llama4": ("llama4", {"text_config": _LLAMA4, "vision_config": _LLAMA4_VISION}),
    "phimoe": ("phimoe", _LLAMA | _LOCAL),
    "phimoe-departures": (
        "phimoe",
        _LLAMA
        | _LOCAL
        | {"attention_bias": True, "lm_head_bias": True, "sliding_window": 5, "router_jitter_noise": 0.3}
        | {"rope_parameters": _PHIMOE_ROPE, "original_max_position_embeddings": CONTEXT},
    ),
    "muse_glimmer_text": ("muse_glimmer_text", _MUSE | {"num_hidden_layers": 5}),
    "muse_glimmer_text-departures": (
        "muse_glimmer_text",
        _MUSE
        | {"layer_types": ["full_attention", "sliding_attention"], "layer_rope_theta": [77.0, 0], "head_dim": 8}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 77.0}, "tie_word_embeddings": True},
    ),
    "muse_glimmer": ("muse_glimmer", {"text_config": _MUSE, "vision_config": _MUSE_VISION}),
    "nanochat": ("nanochat", _LLAMA | {"head_dim": 12}),
    "nanochat-departures": (
        "nanochat",
        _LLAMA | {"attention_bias": True, "final_logit_softcapping": None, "hidden_act": "gelu"},
    ),
    "olmo-clipped": ("olmo", _LLAMA | {"clip_qkv": 0.4, "attention_bias": True}),
    "internlm3": ("internlm3", _LLAMA | {"head_dim": 12}),
    "internlm3-bias": ("internlm3", _LLAMA | {"head_dim": 8, "attention_bias": True, "mlp_bias": True}),
    "dots1": ("dots1", _LLAMA | _SIGMOID | {"head_dim": 12, "norm_topk_prob": True}),
    "dots1-departures": (
        "dots1",
        _LLAMA
        | _SIGMOID
        | {"first_k_dense_replace": 1, "sliding_window": 5, "max_window_layers": 1, "attention_bias": True},
    ),
}

FAMILY_NAMES = [name for name in TINY if name in {kind for kind, _ in TINY.values()}]
KINDS = "llama mixtral gpt_neox gpt2 gemma3_text olmo2 granitemoeshared gpt_oss".split()
"""Families that between them have every kind of arithmetic without states: what does not depend on names is tested with
these."""

HYBRIDS = "lfm2 qwen3_5_text nemotron_h kimi_linear".split()
"""Families that between them have every kind of layer that keeps a state, and latent rows beside them."""

UNLIKE = ("laguna", "mimo_v2_flash")
"""Families whose attention no other has: query heads by layer with gates of a matrix of their own, and values of
another width than keys. The laws try them by default, as they try those of KINDS."""

_RARE = ("gemma4", "falcon_h1")
DIVISIBLE = [name for name, (kind, _) in TINY.items() if not kind.startswith(_RARE)]
"""The models that ranks of every program compute: eager divides neither several mixers nor one kv head of Gemma 4."""

RARE = ["gemma3n_text", "gemma4_text", "falcon_h1"]
"""Families that between them have all that few have."""


def auto_class(config: transformers.PreTrainedConfig) -> Any:
    """The class that makes models of text of such a config; of those that see pictures, too, some are apart."""
    auto = transformers.AutoModelForCausalLM
    return auto if type(config) in auto._model_mapping else transformers.AutoModelForImageTextToText


@cache
def reference(name: str) -> transformers.PreTrainedModel:
    """The transformers model, with attention written out so that every shape is allowed."""
    return build(*TINY[name])


def config_of(kind: str, numbers: dict[str, Any]) -> transformers.PreTrainedConfig:
    """The config of that model_type. transformers writes into what it is given, such as the parameters of a rope."""
    return transformers.AutoConfig.for_model(kind, **deepcopy(numbers))


@contextmanager
def without_timm() -> Iterator[None]:
    """Gemma 3n sees through a model of the package timm, which no text passes: nothing stands in its place."""
    from transformers.models.gemma3n import modeling_gemma3n

    made = modeling_gemma3n.AutoModel.from_config

    def make(config: transformers.PreTrainedConfig, **how: Any) -> Any:
        return torch.nn.Module() if config.model_type == "gemma3n_vision" else made(config, **how)

    with mock.patch.object(modeling_gemma3n.AutoModel, "from_config", make):
        yield


def build(kind: str, numbers: dict[str, Any]) -> transformers.PreTrainedModel:
    """A model of that model_type with random weights."""
    config = config_of(kind, numbers)
    with torch.random.fork_rng(), without_timm():
        torch.manual_seed(20)
        model = auto_class(config).from_config(config, attn_implementation="eager")
        corrections = [pair for pair in model.named_buffers() if pair[0].endswith(CORRECTIONS)]
        for label, parameter in [*model.named_parameters(), *corrections]:
            # Norm weights and biases too, so that none of them is a silent 1 or 0.
            is_norm = parameter.dim() == 1 and label.endswith("weight") and kind not in _LESS_ONE
            is_norm = is_norm or label.endswith(_AROUND_ONE)
            torch.nn.init.normal_(parameter, mean=1.0 if is_norm else 0.0, std=0.15)
    return model.float().eval()


_SAVED = tempfile.TemporaryDirectory(prefix="tiny-models-")


def save(name: str, directory: Path, **how: Any) -> Path:
    """The model's directory, written once. What transformers writes without being told how is copied."""
    path = directory / name
    if how and not path.exists():
        reference(name).save_pretrained(path, **how)
    if not path.exists():
        shutil.copytree(_saved(name), path)
    return path


@cache
def _saved(name: str) -> Path:
    path = Path(_SAVED.name, name)
    reference(name).save_pretrained(path)
    return path


def prompt(length: int, seed: int = 0) -> list[int]:
    """Token ids that look like nothing."""
    generator = torch.Generator().manual_seed(1000 * length + seed)
    return torch.randint(0, VOCABULARY, (length,), generator=generator).tolist()
