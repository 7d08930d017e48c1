"""Hunyuan of Tencent: Llama with Q and K normed after RoPE, whose theta is scaled by `alpha` (NTK).

The models with experts have one more in each layer, which every token takes. Hy3 norms Q and K before RoPE, and
chooses experts by sigmoid scores.
"""

from typing import Any

from tokenmill.model.config import ConfigReader, ModelConfig, QKNorm
from tokenmill.model.families import Family, sizes
from tokenmill.model.families.in_gguf import NAMES as STORED
from tokenmill.model.families.in_gguf import GGUFKeys, InGGUF, expert_metadata, has_bias, like_llama
from tokenmill.model.families.llama import NAMES, PACKED_EXPERTS
from tokenmill.model.families.qwen_moe import EXPERT_NAMES, mlp_names, sparse_layers
from tokenmill.model.families.sigmoid_experts import routed_and_shared

_NORMS = {
    "layers.{i}.self_attn.query_layernorm.weight": "layers.{i}.attention.q_norm.weight",
    "layers.{i}.self_attn.key_layernorm.weight": "layers.{i}.attention.k_norm.weight",
}
_NAMES = {**{name: target for name, target in NAMES.items() if target not in _NORMS.values()}, **_NORMS}
_MOE_NAMES = {
    **{name: target for name, target in EXPERT_NAMES.items() if "mlp.gate." not in name and name not in NAMES},
    **_NAMES,
    "layers.{i}.mlp.gate.wg.weight": "layers.{i}.mlp.router.weight",
    **mlp_names("shared_mlp", "shared"),
}
_ROUTER, _CORRECTION = "layers.{i}.mlp.router.weight", "layers.{i}.mlp.correction"
_HY3_NAMES = {
    **{name: target for name, target in EXPERT_NAMES.items() if "mlp.gate." not in name},
    "layers.{i}.mlp.router.gate.weight": _ROUTER,
    "layers.{i}.mlp.expert_bias": _CORRECTION,
    **mlp_names("shared_mlp", "shared"),
}
# Keys of the published files that transformers does not read.
_EXPECTED = {
    "add_classification_head": False,
    "group_limited_greedy": False,
    "mlp_bias": False,
    "moe_drop_tokens": False,
    "moe_layer_num_skipped": 0,
    "moe_random_routing_dropped_token": False,
    "norm_topk_prob": True,
    "norm_type": "rms",
    "position_embedding_xdrope": False,
    "routed_scaling_factor": 1.0,
    "use_cla": False,
    "use_mixed_mlp_moe": True,
    "use_mla": False,
    "use_qk_norm": True,
    "use_rotary_pos_emb": True,
}
# Tokens of pictures and of classes, the dtype of the head, a head that the model lacks, and the layers that share keys
# where use_cla says that layers do.
_HARMLESS = tuple(
    """cla_share_factor class_num dense_list enable_lm_head_fp32 eod_token_id im_end_id im_newline_id im_start_id
    image_token_id mask_init_id num_media_embeds org_vocab_size pad_id pool_type skip_cls_token text_end_id
    text_start_id video_end_id video_start_id""".split()
)


def _stretched(reader: ConfigReader, head_dim: int) -> None:
    """Replace a "dynamic" rope with `alpha`, which does not depend on the length, by a plain one with its base."""
    key = "rope_scaling" if reader.inside("rope_scaling").values else "rope_parameters"
    given = reader.inside(key)
    alpha = given.number("alpha", None, maximum=1e6)
    if alpha is None or given.text("rope_type", given.text("type", "default")) != "dynamic":
        return
    given.expect("factor", 1.0)
    if head_dim < 3:
        raise given.refuse("alpha", alpha, "one with heads of more than 2 entries")
    theta = given.number("rope_theta", reader.number("rope_theta"), 1.0) * alpha ** (head_dim / (head_dim - 2))
    reader.values = {**reader.values, key: {"rope_type": "default", "rope_theta": theta}, "rope_theta": None}


def _hunyuan(reader: ConfigReader) -> dict[str, Any]:
    reader.read.update(name for name in reader.values if name.startswith("vit_"))  # these models see no pictures
    head_dim = reader.head_dim()
    reader.expect("attention_head_dim", head_dim)
    _stretched(reader, head_dim)
    return {"head_dim": head_dim, **reader.attention_bias(), "qk_norm": QKNorm(after_rope=True)}


def _hunyuan_moe(reader: ConfigReader) -> dict[str, Any]:
    width = reader.count("intermediate_size")
    for key in ("num_experts", "moe_topk", "moe_intermediate_size", "num_shared_expert"):  # for each layer, or for all
        value = reader.take(key, None)
        if isinstance(value, list) and value and value.count(value[0]) == len(value):
            reader.values = {**reader.values, key: value[0]}
    reader.expect("moe_intermediate_size", width)
    reader.expect("num_shared_expert", 1)
    return {
        **_hunyuan(reader),
        "num_experts": reader.count("num_experts"),
        "num_experts_per_token": reader.count("moe_topk"),
        "shared_expert_size": width,
    }


def _hy_v3(reader: ConfigReader) -> dict[str, Any]:
    layers = sparse_layers(reader, 1)
    dense = layers.index(True) if True in layers else len(layers)
    reader.expect("first_k_dense_replace", dense)  # which repeats it in published files
    reader.expect("expert_hidden_dim", reader.count("moe_intermediate_size"))  # likewise
    return {
        **routed_and_shared(reader),
        **reader.attention_bias(),
        "expert_layers": layers,
        "mlp_bias": reader.flag("mlp_bias"),
        "router_scale": reader.number("router_scaling_factor"),
        "qk_norm": QKNorm(),
    }


def _read_hy_v3_gguf(keys: GGUFKeys) -> dict[str, Any]:
    """Read Hy3, of which the tensors tell the layers with experts."""
    config, width = like_llama(keys) | has_bias(keys), keys.expert_width()
    layers = config["num_hidden_layers"] - keys.count("nextn_predict_layers", 0, minimum=0)
    shared = keys.count("expert_shared_feed_forward_length", width)
    if shared % width:
        raise keys.refuse("expert_shared_feed_forward_length", shared, f"a multiple of {width}, an expert's width")
    keys.expect("expert_gating_func", 2, 0)
    keys.expect("expert_weights_norm", ..., True)
    keys.expect("expert_shared_count", shared // width, 0)
    routed = [f"blk.{layer}.ffn_gate_inp.weight" in keys.tensors for layer in range(layers)]
    keys.expect("leading_dense_block_count", routed.index(True) if True in routed else 0, 0)
    return config | {
        **keys.experts("num_experts"),
        "num_hidden_layers": layers,
        "mlp_layer_types": ["sparse" if each else "dense" for each in routed],
        "moe_intermediate_size": width,
        "num_shared_experts": shared // width,
        "router_scaling_factor": keys.scale("expert_weights_scale"),
    }


def _hy_v3_metadata(model: ModelConfig) -> dict[str, Any]:
    pairs = {"expert_weights_norm": True, "expert_weights_scale": model.router_scale, "expert_gating_func": 2}
    return expert_metadata(model) | pairs


def _read_moe_gguf(keys: GGUFKeys) -> dict[str, Any]:
    config, width = like_llama(keys) | has_bias(keys), keys.expert_width()
    keys.softmax_routing(True)
    keys.expect("expert_shared_count", 1, 0)  # which llama.cpp does not read
    keys.expect("expert_shared_feed_forward_length", width)
    return config | {**keys.experts("num_experts", "moe_topk"), "intermediate_size": width}


def _metadata(model: ModelConfig) -> dict[str, Any]:
    return {**expert_metadata(model), "expert_feed_forward_length": model.intermediate_size, "expert_shared_count": 1}


_DEFAULTS = {**sizes(290943, 4096, 11008, 32, 32), "rms_norm_eps": 1e-5}
HUNYUAN_DENSE = Family(
    _NAMES,
    _hunyuan,
    defaults=_DEFAULTS,
    expected={**_EXPECTED, "num_experts": 1},
    harmless=_HARMLESS,
    gguf=InGGUF("hunyuan-dense", needs=("no o_bias",)),
)
HUNYUAN_MOE = Family(
    _MOE_NAMES,
    _hunyuan_moe,
    defaults={**_DEFAULTS, "moe_topk": 1, "num_experts": 1},
    aliases={"num_experts_per_tok": "moe_topk", "num_local_experts": "num_experts"},
    expected=_EXPECTED,
    harmless=_HARMLESS,
    gguf=InGGUF("hunyuan-moe", read=_read_moe_gguf, metadata=_metadata),
    also=PACKED_EXPERTS,
)
# The converter writes the correction without a suffix.
_HY3_STORED = {name.removesuffix(".bias") if "exp_probs" in name else name: target for name, target in STORED.items()}
HY_V3 = Family(
    _HY3_NAMES,
    _hy_v3,
    keys={"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts"},
    defaults={
        **sizes(120832, 4096, 13312, 80, 64, 8, head_dim=128, context=131072),
        "eos_token_id": None,
        "moe_intermediate_size": 1536,
        "n_routed_experts": 192,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "rms_norm_eps": 1e-5,
        "rope_theta": 11158840.0,
        "router_scaling_factor": 2.826,
    },
    aliases={"num_local_experts": "num_experts"},
    expected={
        "moe_router_enable_expert_bias": True,
        "moe_router_use_sigmoid": True,
        "qk_norm": True,
        "route_norm": True,
    },
    # Precisions of sums, and the number of layers that predict further tokens.
    harmless=(
        "enable_moe_fp32_combine",
        "enable_lm_head_fp32",
        "enable_attention_fp32_softmax",
        "num_nextn_predict_layers",
    ),
    further=("layers.{n}.",),
    gguf=InGGUF("hy_v3", _HY3_STORED, _read_hy_v3_gguf, _hy_v3_metadata, ("no o_bias", "no mlp_bias"), further=True),
    also={
        **PACKED_EXPERTS,
        **mlp_names("shared_experts", "shared"),
        "layers.{i}.mlp.gate.weight": _ROUTER,
        "layers.{i}.mlp.e_score_correction_bias": _CORRECTION,
    },
)
