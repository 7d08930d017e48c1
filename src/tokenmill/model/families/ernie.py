"""ERNIE 4.5 of Baidu and Helium of Kyutai: Llama that rotates neighbouring entries of a head, which is folded into the
rows of Q and K here. ERNIE has models with experts, whose scores are corrected where experts are chosen.
"""

from typing import Any

from tokenmill.model.config import ConfigReader, ModelConfig
from tokenmill.model.families import Family, sizes
from tokenmill.model.families.glm import PAIRED_NAMES
from tokenmill.model.families.in_gguf import GGUFKeys, InGGUF, expert_metadata, has_bias, like_llama, paired
from tokenmill.model.families.llama import PACKED_EXPERTS
from tokenmill.model.families.qwen_moe import EXPERT_NAMES, mlp_names

_MOE_NAMES = {
    **EXPERT_NAMES,
    **PAIRED_NAMES,
    "layers.{i}.mlp.moe_statics.e_score_correction_bias": "layers.{i}.mlp.correction | one row",
    **mlp_names("shared_experts", "shared"),
}
_MOE_ALSO = {
    **PACKED_EXPERTS,
    "layers.{i}.mlp.gate.moe_statics.e_score_correction_bias": "layers.{i}.mlp.correction | one row",
}
_BIASES = ("qkv_bias", "o_bias", "mlp_bias")


def _ernie(reader: ConfigReader) -> dict[str, Any]:
    return dict.fromkeys(_BIASES, reader.flag("use_bias"))


def _ernie_moe(reader: ConfigReader) -> dict[str, Any]:
    reader.expect("moe_use_aux_free", True)
    reader.number("moe_norm_min", maximum=1e-6)  # a guard against 0 / 0: no sum of scores is so small
    num_layers, bias = reader.num_layers(), reader.flag("use_bias")
    first, last = reader.count("moe_layer_start_index", minimum=0), reader.count("moe_layer_end_index", minimum=-1)
    interval, width = reader.count("moe_layer_interval"), reader.count("moe_intermediate_size")
    end = num_layers if last == -1 else last + 1
    return {
        "num_experts": reader.count("moe_num_experts"),
        "num_experts_per_token": reader.count("moe_k"),
        "expert_layers": tuple((n + 1) % interval == 0 and first <= n < end for n in range(num_layers)),
        "expert_size": width,
        "shared_expert_size": width * reader.count("moe_num_shared_experts", minimum=0),
        "router_correction": True,
        **dict.fromkeys(_BIASES, bias),
    }


def _helium(reader: ConfigReader) -> dict[str, Any]:
    return {"qkv_bias": reader.flag("attention_bias"), "mlp_bias": reader.flag("mlp_bias"), "norm_rounds_last": True}


def _read_gguf(keys: GGUFKeys) -> dict[str, Any]:
    return like_llama(keys) | has_bias(keys, "use_bias")


def _read_moe_gguf(keys: GGUFKeys) -> dict[str, Any]:
    config, width = _read_gguf(keys), keys.expert_width()
    keys.softmax_routing(True)
    shared = keys.count("expert_shared_feed_forward_length", 0, minimum=0)
    keys.expect("expert_shared_feed_forward_length", shared // width * width)
    keys.expect("expert_shared_count", shared // width, 0)
    return config | {
        **keys.experts("moe_num_experts", "moe_k"),
        "moe_intermediate_size": width,
        "moe_num_shared_experts": shared // width,
        "moe_layer_interval": keys.count("interleave_moe_layer_step", 1),
        "moe_layer_start_index": keys.count("leading_dense_block_count", 0, minimum=0),
    }


def _metadata(model: ModelConfig) -> dict[str, Any]:
    layers = [layer for layer, has_experts in enumerate(model.expert_layers) if has_experts]
    first, step = layers[0] if layers else model.num_layers, layers[1] - layers[0] if len(layers) > 1 else 1
    return expert_metadata(model) | {
        "expert_shared_count": model.shared_expert_size // (model.expert_size or 1),
        "interleave_moe_layer_step": step,
        "leading_dense_block_count": first,
    }


_DEFAULTS = {"rms_norm_eps": 1e-5, "rope_theta": 5e5, "tie_word_embeddings": True, "use_bias": False}
_MOE_DEFAULTS = {
    **sizes(103424, 2560, 12288, 28, 20, 4, context=131072),
    "moe_intermediate_size": 1536,
    "moe_k": 6,
    "moe_layer_end_index": -1,
    "moe_layer_interval": 1,
    "moe_layer_start_index": 1,
    "moe_norm_min": 1e-12,
    "moe_num_experts": 64,
    "moe_num_shared_experts": 2,
}
ERNIE = Family(
    PAIRED_NAMES,
    _ernie,
    defaults={**_DEFAULTS, **sizes(103424, 1024, 3072, 18, 16, 2, head_dim=128, context=131072)},
    nulls={"head_dim": None, "num_key_value_heads": None, "use_bias": False},
    gguf=InGGUF("ernie4_5", paired(), _read_gguf, needs=("no mlp_bias",)),
)
ERNIE_MOE = Family(
    _MOE_NAMES,
    _ernie_moe,
    defaults={**_DEFAULTS, **_MOE_DEFAULTS},
    nulls={"moe_layer_end_index": -1, "use_bias": False},  # the first of these in Baidu's own class
    aliases={"num_experts": "moe_num_experts", "num_experts_per_tok": "moe_k"},
    harmless=("num_nextn_predict_layers",),
    further=("mtp_",),
    gguf=InGGUF("ernie4_5-moe", paired(), _read_moe_gguf, _metadata, needs=("no mlp_bias",)),
    also=_MOE_ALSO,
)
HELIUM = Family(
    PAIRED_NAMES,
    _helium,
    defaults={
        **sizes(48000, 2560, 7040, 24, 20, 20, head_dim=128, context=4096),
        "rms_norm_eps": 1e-8,
        "rope_theta": 1e5,
    },
)
