"""GLM-4, GLM-4-0414 and GLM-4.5 to 4.7 of Z.ai; dots.llm1 and Solar Open, which have experts of the same kind.

The first two rotate neighbouring entries of half a head, which is folded into the rows of Q and K here. GLM-4-0414 has
norms on both sides of attention and MLP. The others rotate as Llama does, and have experts that are chosen by sigmoid
scores with a correction, after some dense layers.
"""

from typing import Any

from tokenmill.model.config import ConfigReader, QKNorm
from tokenmill.model.families import Family, sizes
from tokenmill.model.families.in_gguf import (
    GGUFKeys,
    InGGUF,
    has_bias,
    like_llama,
    mlp_norm_after_attention,
    paired,
    plain_mlp,
)
from tokenmill.model.families.llama import NAMES, PACKED_EXPERTS
from tokenmill.model.families.mtp import BEHIND_LAYERS
from tokenmill.model.families.sigmoid_experts import MOE_NAMES, mixture, moe_metadata, read_moe_gguf

PAIRED_NAMES = {
    **NAMES,
    "layers.{i}.self_attn.q_proj{p}": "layers.{i}.attention.qkv{p}:q | pairs_to_halves",
    "layers.{i}.self_attn.k_proj{p}": "layers.{i}.attention.qkv{p}:k | pairs_to_halves",
}
_GLM_NAMES = {
    **{name: target for name, target in PAIRED_NAMES.items() if "gate_proj" not in name and "up_proj" not in name},
    "layers.{i}.mlp.gate_up_proj.weight": "layers.{i}.mlp.up.weight",
}
_GLM4_NAMES = {
    **_GLM_NAMES,
    "layers.{i}.post_self_attn_layernorm.weight": "layers.{i}.attention_after_norm.weight",
    "layers.{i}.post_mlp_layernorm.weight": "layers.{i}.mlp_after_norm.weight",
}


def _glm(reader: ConfigReader) -> dict[str, Any]:
    return {"qkv_bias": reader.flag("attention_bias")}


def _glm4(reader: ConfigReader) -> dict[str, Any]:
    return {**_glm(reader), "norm_placement": "both"}


def _glm4_moe(reader: ConfigReader) -> dict[str, Any]:
    return {
        **mixture(reader),
        "qkv_bias": reader.flag("attention_bias"),
        "qk_norm": QKNorm() if reader.flag("use_qk_norm") else None,
    }


def _solar_open(reader: ConfigReader) -> dict[str, Any]:
    reader.expect("first_k_dense_replace", 0)
    experts = mixture(reader, [True] * reader.num_layers())
    # All layers have experts; published files have the width of an MLP that none has.
    return {**experts, "qkv_bias": reader.flag("attention_bias"), "intermediate_size": experts["expert_size"]}


def _dots1(reader: ConfigReader) -> dict[str, Any]:
    layers = range(reader.num_layers())
    window, lower = reader.window(), reader.count("max_window_layers", None, minimum=0)
    if lower is None:
        reader.entries("layer_types", str)  # required, then
    return {
        **mixture(reader),
        **reader.attention_bias(),
        "qk_norm": QKNorm(),
        "windows": reader.windows(window, (window is not None and layer >= (lower or 0) for layer in layers)),
    }


def _read_gguf(keys: GGUFKeys) -> dict[str, Any]:
    return like_llama(keys, rotates_all=False) | {"attention_bias": bool(has_bias(keys))}


def _read_glm4_moe_gguf(keys: GGUFKeys) -> dict[str, Any]:
    config = read_moe_gguf(keys, _read_gguf(keys))
    config["num_hidden_layers"] -= keys.count("nextn_predict_layers", 0, minimum=0)
    return config | has_bias(keys, "use_qk_norm", "attn_q_norm.weight")


def _read_dots1_gguf(keys: GGUFKeys) -> dict[str, Any]:
    config = read_moe_gguf(keys, like_llama(keys) | has_bias(keys))
    window = keys.window()
    layers = config["num_hidden_layers"]
    types = keys.layer_types(layers, 0) if window else ["full_attention"] * layers
    return config | {"sliding_window": window, "layer_types": types}


_ENDS = [151329, 151336, 151338]
_GLM_DEFAULTS = {
    **sizes(151552, 4096, 13696, 40, 32, 2, head_dim=128, context=131072),
    "attention_bias": True,
    "eos_token_id": _ENDS,
    "partial_rotary_factor": 0.5,
    "rms_norm_eps": 0.00000015625,
}
_GLM_NULLS = {"eos_token_id": _ENDS, "partial_rotary_factor": 1.0}
_MIXTURE = {"eos_token_id": None, "moe_intermediate_size": 1408, "n_group": 1, "routed_scaling_factor": 1.0,
            "topk_group": 1}  # fmt: skip
_MOE_DEFAULTS = {
    **sizes(151552, 4096, 10944, 46, 96, 8, context=131072),
    **_MIXTURE,
    "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1e-5,
    "first_k_dense_replace": 1,
    "n_routed_experts": 128,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "use_qk_norm": False,
}
_STORED = paired(plain_mlp())
GLM = Family(
    _GLM_NAMES,
    _glm,
    defaults=_GLM_DEFAULTS,
    nulls=_GLM_NULLS,
    gguf=InGGUF("chatglm", _STORED, _read_gguf, needs=("square",)),
)
GLM4 = Family(_GLM4_NAMES, _glm4, defaults=_GLM_DEFAULTS, nulls=_GLM_NULLS, gguf=InGGUF("glm4", _STORED, _read_gguf))
GLM4_MOE = Family(
    MOE_NAMES,
    _glm4_moe,
    defaults=_MOE_DEFAULTS,
    nulls={"partial_rotary_factor": 1.0},
    aliases={"num_local_experts": "n_routed_experts", "num_mtp_layers": "num_nextn_predict_layers"},
    harmless=("num_nextn_predict_layers",),
    further=("layers.{n}.",),
    mtp=BEHIND_LAYERS,
    gguf=InGGUF("glm4moe", mlp_norm_after_attention(), _read_glm4_moe_gguf, moe_metadata, further=True),
    also=PACKED_EXPERTS,
)
DOTS1 = Family(
    MOE_NAMES,
    _dots1,
    defaults={
        **sizes(152064, 4608, 10944, 62, 32, 32),
        **_MIXTURE,
        "first_k_dense_replace": 0,
        "max_window_layers": 62,
        "norm_topk_prob": False,
        "sliding_window": 4096,
    },
    nulls={"max_window_layers": None, "norm_topk_prob": False, "num_key_value_heads": None},
    aliases={"num_local_experts": "n_routed_experts"},
    expected={"moe_layer_freq": 1, "scoring_func": "sigmoid"},
    gguf=InGGUF("dots1", read=_read_dots1_gguf, metadata=moe_metadata, needs=("own head", "no o_bias", "no groups")),
    also=PACKED_EXPERTS,
)
SOLAR_OPEN = Family(
    MOE_NAMES,
    _solar_open,
    defaults={
        **sizes(196608, 4096, None, 48, 64, 8, head_dim=128, context=131072),
        **_MIXTURE,
        "moe_intermediate_size": 1280,
        "n_routed_experts": 128,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_experts_per_tok": 8,
        "partial_rotary_factor": 1.0,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
    },
    nulls={"partial_rotary_factor": 1.0},
    aliases={"num_local_experts": "n_routed_experts"},
    expected={"use_qk_norm": False, "scoring_func": "sigmoid"},
    harmless=("intermediate_size",),
    gguf=InGGUF("glm4moe", mlp_norm_after_attention(), _read_glm4_moe_gguf, moe_metadata, further=True),
    also=PACKED_EXPERTS,
)
