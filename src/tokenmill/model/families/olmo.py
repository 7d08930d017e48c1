"""OLMo, OLMo 2 and OLMoE of Ai2.

OLMo has a LayerNorm without weights. OLMo 2 has its norms behind attention and MLP, and norms of Q and K over all heads
of a token, as OLMoE has; OLMoE is otherwise a Llama with experts.
"""

from typing import Any

from tokenmill.model.config import ConfigReader, QKNorm
from tokenmill.model.families import Family
from tokenmill.model.families.llama import NAMES
from tokenmill.model.families.qwen_moe import EXPERT_NAMES

AFTER_NAMES = {
    **{name: target for name, target in NAMES.items() if "layernorm" not in name},
    "layers.{i}.post_attention_layernorm.weight": "layers.{i}.attention_after_norm.weight",
    "layers.{i}.post_feedforward_layernorm.weight": "layers.{i}.mlp_after_norm.weight",
}


def _biases(reader: ConfigReader) -> dict[str, Any]:
    return dict.fromkeys(("qkv_bias", "o_bias"), reader.flag("attention_bias", False))


def _olmo(reader: ConfigReader) -> dict[str, Any]:
    reader.expect("pretraining_tp", 1)
    reader.expect("clip_qkv", None)
    return {**_biases(reader), "norm": "layer", "norm_weight": False, "norm_eps": 1e-5}  # no key has its epsilon


def _olmo2(reader: ConfigReader) -> dict[str, Any]:
    return {**_biases(reader), "norm_placement": "after", "norm_rounds_last": True, "qk_norm": QKNorm("all")}


def _olmoe(reader: ConfigReader) -> dict[str, Any]:
    reader.expect("clip_qkv", None)
    return {
        **_biases(reader),
        "qk_norm": QKNorm("all"),
        "num_experts": reader.count("num_experts", 64),
        "num_experts_per_token": reader.count("num_experts_per_tok", 8),
        "norm_top_k": reader.flag("norm_topk_prob", False),
    }


OLMO = Family(NAMES, _olmo)
OLMO2 = Family(AFTER_NAMES, _olmo2, defaults={"rms_norm_eps": 1e-5})
OLMOE = Family(EXPERT_NAMES, _olmoe, defaults={"rms_norm_eps": 1e-5, "max_position_embeddings": 4096})
