"""LFM2 of Liquid AI: short gated convolutions in most layers, attention with norms of queries and keys in the others.

LFM2-MoE has experts in all layers except the first ones.
"""

from typing import Any

from tokenmill.model.config import MAX_LAYERS, ConfigReader, ModelConfig, QKNorm
from tokenmill.model.families import Family, sizes
from tokenmill.model.families.hybrids import KV_HEADS, kv_heads
from tokenmill.model.families.in_gguf import NAMES as IN_GGUF
from tokenmill.model.families.in_gguf import GGUFKeys, InGGUF, expert_metadata, like_llama
from tokenmill.model.families.mixers_of import mixer_of
from tokenmill.model.mixers.short_conv import ShortConvBlock, short_conv

_FULL, _CONV = "full_attention", "conv"
_LAYER, _FFN = "layers.{i}.", "layers.{i}.feed_forward."


def _mlp(file: str, ours: str) -> dict[str, str]:
    return {
        f"{file}w1.weight": f"layers.{{i}}.mlp.{ours}up.weight:gate",
        f"{file}w3.weight": f"layers.{{i}}.mlp.{ours}up.weight:up",
        f"{file}w2.weight": f"layers.{{i}}.mlp.{ours}down.weight",
    }


_NAMES = {
    "embed_tokens.weight": "embedding.weight",
    "embedding_norm.weight": "norm.weight",
    "lm_head.weight": "head.weight",
    _LAYER + "operator_norm.weight": _LAYER + "attention_norm.weight",
    _LAYER + "ffn_norm.weight": _LAYER + "mlp_norm.weight",
    **{f"{_LAYER}self_attn.{role}_proj.weight": f"{_LAYER}attention.qkv.weight:{role}" for role in "qkv"},
    _LAYER + "self_attn.q_layernorm.weight": _LAYER + "attention.q_norm.weight",
    _LAYER + "self_attn.k_layernorm.weight": _LAYER + "attention.k_norm.weight",
    _LAYER + "self_attn.out_proj.weight": _LAYER + "attention.out.weight",
    _LAYER + "conv.in_proj{p}": _LAYER + "short_conv.inner{p}",
    _LAYER + "conv.out_proj{p}": _LAYER + "short_conv.out{p}",
    _LAYER + "conv.conv.weight": _LAYER + "short_conv.conv | depthwise",
    _LAYER + "conv.conv.bias": _LAYER + "short_conv.conv_bias",
    **_mlp(_FFN, ""),
}
_MOE_NAMES = {
    **_NAMES,
    _FFN + "gate.weight": _LAYER + "mlp.router.weight",
    _FFN + "expert_bias": _LAYER + "mlp.correction",
    **_mlp(_FFN + "experts.{e}.", "experts.{e}."),
}
_MOE_ALSO = {
    _FFN + "experts.gate_up_proj[{e}]": _LAYER + "mlp.experts.{e}.up.weight",
    _FFN + "experts.down_proj[{e}]": _LAYER + "mlp.experts.{e}.down.weight",
}
_STORED = {
    **{name: target for name, target in IN_GGUF.items() if name != "output_norm{p}"},
    "token_embd_norm.weight": "norm.weight",  # behind the last layer, whatever its name says
    "blk.{i}.shortconv.in_proj.weight": _LAYER + "short_conv.inner.weight",
    "blk.{i}.shortconv.out_proj.weight": _LAYER + "short_conv.out.weight",
    "blk.{i}.shortconv.conv.weight": _LAYER + "short_conv.conv",
}


def _shared(reader: ConfigReader, default: list[str]) -> dict[str, Any]:
    conv = short_conv(reader.count("hidden_size"), reader.count("conv_L_cache", minimum=2), reader.flag("conv_bias"))
    types = reader.layer_types(default, _FULL, _CONV)
    return {"qk_norm": QKNorm(), "mixers": tuple(conv if kind == _CONV else None for kind in types)}


def _lfm2(reader: ConfigReader) -> dict[str, Any]:
    num_layers = reader.num_layers()
    attends = reader.entries("full_attn_idxs", int, list(range(num_layers)))
    default = [_FULL if layer in attends else _CONV for layer in range(num_layers)]
    return {**_shared(reader, default), "intermediate_size": _intermediate_size(reader)}


def _intermediate_size(reader: ConfigReader) -> int:
    """Compute the width of the MLP as its class does, from the width that the config gives."""
    width, unit = reader.count("intermediate_size"), reader.count("block_multiple_of")
    by = reader.number("block_ffn_dim_multiplier", None)
    if not reader.flag("block_auto_adjust_ff_dim"):
        return width
    width = 2 * width // 3
    return width if by is None else -(-int(by * width) // unit) * unit


def _lfm2_moe(reader: ConfigReader) -> dict[str, Any]:
    num_layers, dense = reader.num_layers(), reader.count("num_dense_layers", minimum=0)
    return {
        **_shared(reader, [_FULL] * num_layers),
        "num_experts": reader.count("num_experts"),
        "num_experts_per_token": reader.count("num_experts_per_tok"),
        "expert_layers": tuple(layer >= dense for layer in range(num_layers)),
        "expert_size": reader.count("moe_intermediate_size"),
        "router_scores": "sigmoid",
        "router_correction": reader.flag("use_expert_bias"),
        "router_scale": reader.number("routed_scaling_factor"),
        "norm_top_k": reader.flag("norm_topk_prob"),
        "norm_top_k_eps": 1e-6,
    }


def _read_gguf(keys: GGUFKeys) -> dict[str, Any]:
    num_layers = keys.count("block_count", maximum=MAX_LAYERS)
    types = [_FULL if attends else _CONV for attends in keys.layers_with(KV_HEADS, num_layers)]
    config = like_llama(keys) | {"conv_L_cache": keys.count("shortconv.l_cache"), "layer_types": types}
    return config | {"norm_eps": config.pop("rms_norm_eps"), "block_auto_adjust_ff_dim": False}


def _read_moe_gguf(keys: GGUFKeys) -> dict[str, Any]:
    keys.expect("expert_gating_func", ..., 2)  # sigmoid
    keys.expect("expert_weights_norm", True, False)  # llama.cpp norms them, whatever these two keys say
    keys.expect("expert_weights_scale", 1.0, 0.0)
    config = _read_gguf(keys) | keys.experts("num_experts")
    del config["block_auto_adjust_ff_dim"]
    return config | {
        "moe_intermediate_size": keys.expert_width(),
        "num_dense_layers": keys.count("leading_dense_block_count", 0, minimum=0),
    }


def _metadata(model: ModelConfig) -> dict[str, Any]:
    block = mixer_of(model, ShortConvBlock)
    return kv_heads(model) | {"shortconv.l_cache": 0 if block is None else block.num_taps}


def _moe_metadata(model: ModelConfig) -> dict[str, Any]:
    dense = model.expert_layers.index(True) if True in model.expert_layers else model.num_layers
    return _metadata(model) | expert_metadata(model) | {"leading_dense_block_count": dense, "expert_gating_func": 2}


_DEFAULTS = {
    "conv_bias": False,
    "conv_L_cache": 3,
    "rope_theta": 1e6,
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-5,
}
_KEYS = {"rms_norm_eps": "norm_eps"}
_EXPECTED = {"hidden_act": "silu"}  # which its class does not read
_TIED = {"tie_embedding": "tie_word_embeddings"}
LFM2 = Family(
    _NAMES,
    _lfm2,
    keys=_KEYS,
    expected=_EXPECTED,
    defaults={
        **sizes(65536, 2560, 12288, 32, 32, 8, context=128_000),
        **_DEFAULTS,
        "block_auto_adjust_ff_dim": True,
        "block_ffn_dim_multiplier": 1.0,
        "block_multiple_of": 256,
    },
    aliases={**_TIED, "block_ff_dim": "intermediate_size"},
    gguf=InGGUF("lfm2", _STORED, _read_gguf, _metadata, needs=("no state bias", "square")),
)
LFM2_MOE = Family(
    _MOE_NAMES,
    _lfm2_moe,
    keys=_KEYS,
    expected=_EXPECTED,
    defaults={
        **sizes(65536, 2048, 7168, 32, 32, 8, context=128_000),
        **_DEFAULTS,
        "moe_intermediate_size": 1792,
        "norm_topk_prob": True,
        "num_dense_layers": 2,
        "num_experts": 32,
        "num_experts_per_tok": 4,
        "routed_scaling_factor": 1.0,
        "use_expert_bias": True,
    },
    aliases=_TIED,
    gguf=InGGUF("lfm2moe", _STORED, _read_moe_gguf, _moe_metadata, needs=("no state bias", "square")),
    also=_MOE_ALSO,
)
