"""ERNIE 4.5 of Baidu and Helium of Kyutai: Llama that rotates neighbouring entries of a head, which is folded into the
rows of Q and K here. ERNIE has models with experts, whose scores are corrected where experts are chosen.
"""

from typing import Any

from tokenmill.model.config import MAX_LAYERS, ConfigReader
from tokenmill.model.families import Family
from tokenmill.model.families.glm import PAIRED_NAMES
from tokenmill.model.families.qwen_moe import EXPERT_NAMES, mlp_names

_MOE_NAMES = {
    **EXPERT_NAMES,
    **PAIRED_NAMES,
    "layers.{i}.mlp.moe_statics.e_score_correction_bias": "layers.{i}.mlp.correction | one row",
    **mlp_names("shared_experts", "shared"),
}
_BIASES = ("qkv_bias", "o_bias", "mlp_bias")


def _ernie(reader: ConfigReader) -> dict[str, Any]:
    return {"head_dim": reader.count("head_dim", 128), **dict.fromkeys(_BIASES, reader.flag("use_bias", False))}


def _ernie_moe(reader: ConfigReader) -> dict[str, Any]:
    reader.expect("moe_use_aux_free", True)
    reader.number("moe_norm_min", 1e-12, maximum=1e-6)  # a guard against 0 / 0: no sum of scores is so small
    num_layers, bias = reader.count("num_hidden_layers", maximum=MAX_LAYERS), reader.flag("use_bias", False)
    first, last = reader.count("moe_layer_start_index", 1, 0), reader.count("moe_layer_end_index", -1, -1)
    interval, width = reader.count("moe_layer_interval", 1), reader.count("moe_intermediate_size", 1536)
    end = num_layers if last == -1 else last + 1
    return {
        "num_experts": reader.count("moe_num_experts", 64),
        "num_experts_per_token": reader.count("moe_k", 6),
        "expert_layers": tuple((n + 1) % interval == 0 and first <= n < end for n in range(num_layers)),
        "expert_size": width,
        "shared_expert_size": width * reader.count("moe_num_shared_experts", 2, 0),
        "router_correction": True,
        **dict.fromkeys(_BIASES, bias),
    }


def _helium(reader: ConfigReader) -> dict[str, Any]:
    return {
        "qkv_bias": reader.flag("attention_bias", False),
        "mlp_bias": reader.flag("mlp_bias", False),
        "head_dim": reader.count("head_dim", 128),
        "norm_rounds_last": True,
    }


_DEFAULTS = {
    "rms_norm_eps": 1e-5,
    "rope_theta": 5e5,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
}
ERNIE = Family(PAIRED_NAMES, _ernie, defaults=_DEFAULTS)
ERNIE_MOE = Family(
    _MOE_NAMES,
    _ernie_moe,
    defaults=_DEFAULTS,
    harmless=("num_nextn_predict_layers",),
    further=("mtp_",),
)
HELIUM = Family(
    PAIRED_NAMES, _helium, defaults={"rms_norm_eps": 1e-8, "rope_theta": 1e5, "max_position_embeddings": 4096}
)
