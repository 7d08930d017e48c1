"""Llama 1 to 3.x and the models that are built like it: SmolLM2, TinyLlama, Code Llama, InternLM 3, Mistral, Mixtral.

Mixtral is Mistral with a mixture of experts.
"""

from dataclasses import replace
from typing import Any

from tokenmill.model.config import ConfigReader, ModelConfig
from tokenmill.model.families import Family, sizes
from tokenmill.model.families.in_gguf import GGUFKeys, InGGUF, like_llama_with_biases, paired
from tokenmill.value_reader import MAX_POSITIONS

NAMES = {
    "embed_tokens.weight": "embedding.weight",
    "layers.{i}.input_layernorm.weight": "layers.{i}.attention_norm.weight",
    "layers.{i}.self_attn.q_proj{p}": "layers.{i}.attention.qkv{p}:q",
    "layers.{i}.self_attn.k_proj{p}": "layers.{i}.attention.qkv{p}:k",
    "layers.{i}.self_attn.v_proj{p}": "layers.{i}.attention.qkv{p}:v",
    "layers.{i}.self_attn.q_norm.weight": "layers.{i}.attention.q_norm.weight",
    "layers.{i}.self_attn.k_norm.weight": "layers.{i}.attention.k_norm.weight",
    "layers.{i}.self_attn.o_proj{p}": "layers.{i}.attention.out{p}",
    "layers.{i}.post_attention_layernorm.weight": "layers.{i}.mlp_norm.weight",
    "layers.{i}.mlp.gate_proj{p}": "layers.{i}.mlp.up{p}:gate",
    "layers.{i}.mlp.up_proj{p}": "layers.{i}.mlp.up{p}:up",
    "layers.{i}.mlp.down_proj{p}": "layers.{i}.mlp.down{p}",
    "norm.weight": "norm.weight",
    "lm_head.weight": "head.weight",
}
_EXPERT = "layers.{i}.block_sparse_moe.experts.{e}."
_MIXTRAL_NAMES = {
    **{name: target for name, target in NAMES.items() if ".mlp." not in name},
    "layers.{i}.block_sparse_moe.gate.weight": "layers.{i}.mlp.router.weight",
    _EXPERT + "w1.weight": "layers.{i}.mlp.experts.{e}.up.weight:gate",
    _EXPERT + "w3.weight": "layers.{i}.mlp.experts.{e}.up.weight:up",
    _EXPERT + "w2.weight": "layers.{i}.mlp.experts.{e}.down.weight",
}
# In transformers' own modules all experts of a layer are in one tensor, gate before up.
_PACKED = "layers.{i}.mlp.experts."
PACKED_EXPERTS = {
    _PACKED + "gate_up_proj[{e}]": _PACKED + "{e}.up.weight",
    _PACKED + "down_proj[{e}]": _PACKED + "{e}.down.weight",
}
_MIXTRAL_ALSO = {**PACKED_EXPERTS, "layers.{i}.mlp.gate.weight": "layers.{i}.mlp.router.weight"}
_IGNORED = ("layers.{i}.self_attn.rotary_emb.inv_freq",)  # stored by old conversions; the config says it already


def _llama(reader: ConfigReader) -> dict[str, Any]:
    reader.expect("rope_interleaved", False)
    return {**reader.attention_bias(), "mlp_bias": reader.flag("mlp_bias")}


def _mixtral(reader: ConfigReader) -> dict[str, Any]:
    return {
        "windows": (reader.window(),),
        "num_experts": reader.count("num_local_experts"),
        "num_experts_per_token": reader.count("num_experts_per_tok"),
    }


def _read_gguf(keys: GGUFKeys) -> dict[str, Any]:
    """Read Llama, or Mistral and Mixtral, which llama.cpp writes under its name: Mistral has a window, Mixtral
    experts.
    """
    config = like_llama_with_biases(keys)
    window = keys.count("attention.sliding_window", 0, minimum=0, maximum=MAX_POSITIONS) or None
    if keys.take("expert_count", 0):
        # llama.cpp reads none of these for this architecture, and writes 0 and false for them.
        keys.expect("expert_feed_forward_length", config["intermediate_size"], 0)
        keys.expect("expert_weights_norm", True, False)
        keys.expect("expert_weights_scale", 1.0, 0.0)
        keys.expect("expert_gating_func", 1, 0)  # softmax
        return config | {"model_type": "mixtral", **keys.experts(), "sliding_window": window}
    if window is not None:
        return config | {"model_type": "mistral", "sliding_window": window}
    keys.expect("expert_used_count", 0)
    return config | ({"mlp_bias": True} if "blk.0.ffn_up.bias" in keys.tensors else {})


def _metadata(model: ModelConfig) -> dict[str, Any]:
    return {} if model.windows[0] is None else {"attention.sliding_window": model.windows[0]}


_GGUF = InGGUF("llama", paired(), _read_gguf, _metadata)  # all three: a window is Mistral's, experts are Mixtral's
LLAMA = Family(NAMES, _llama, ignored=_IGNORED, gguf=_GGUF)
INTERNLM3 = replace(
    LLAMA,
    defaults={**sizes(128512, 4096, 10240, 48, 32, 2, head_dim=128, context=32768), "rms_norm_eps": 1e-5},
    nulls={"head_dim": None, "num_key_value_heads": None},
    aliases={"qkv_bias": "attention_bias", "bias": "mlp_bias"},
)
_SIZES = sizes(32000, 4096, 14336, 32, 32, 8, context=131072)
MISTRAL = replace(
    LLAMA, read=lambda reader: {"windows": (reader.window(),)}, defaults={**_SIZES, "sliding_window": 4096}
)
MIXTRAL = Family(
    _MIXTRAL_NAMES,
    _mixtral,
    defaults={**_SIZES, "rms_norm_eps": 1e-5, "rope_theta": 1e6, "num_local_experts": 8, "num_experts_per_tok": 2},
    aliases={"num_experts": "num_local_experts"},
    gguf=_GGUF,
    also=_MIXTRAL_ALSO,
)
