"""Llama 1 to 3.x and what is built like it: SmolLM2, TinyLlama, Code Llama, Mistral and Mixtral.

Mixtral is Mistral with a mixture of experts.
"""

from dataclasses import replace
from typing import Any

from tokenmill.model.config import ConfigReader, ModelConfig
from tokenmill.model.families import Family, InGGUF

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
_IGNORED = ("layers.{i}.self_attn.rotary_emb.inv_freq",)  # stored by old conversions; the config says it already


def _llama(reader: ConfigReader) -> dict[str, Any]:
    reader.expect("pretraining_tp", 1)
    reader.expect("rope_interleaved", False)
    bias = reader.flag("attention_bias", False)
    return {"qkv_bias": bias, "o_bias": bias, "mlp_bias": reader.flag("mlp_bias", False)}


def _mixtral(reader: ConfigReader) -> dict[str, Any]:
    return {
        "windows": (reader.window(),),
        "num_experts": reader.count("num_local_experts", 8),
        "num_experts_per_token": reader.count("num_experts_per_tok", 2),
    }


def _metadata(model: ModelConfig) -> dict[str, Any]:
    return {} if model.windows[0] is None else {"attention.sliding_window": model.windows[0]}


_ROWS = {"attn_q": ("pairs", "num_attention_heads"), "attn_k": ("pairs", "num_key_value_heads")}
_GGUF = InGGUF("llama", _ROWS, _metadata)  # all three: a window is Mistral's, experts are Mixtral's
LLAMA = Family(NAMES, _llama, ignored=_IGNORED, gguf=_GGUF)
MISTRAL = replace(LLAMA, read=lambda reader: {"windows": (reader.window(4096),)})  # transformers' default
MIXTRAL = Family(_MIXTRAL_NAMES, _mixtral, defaults={"rope_theta": 1e6}, gguf=_GGUF)
