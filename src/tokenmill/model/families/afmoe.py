"""AFMoE of Arcee, which is Trinity: attention with a gate on its output, norms on both sides of attention and MLP, and
experts that are chosen by sigmoid scores. Layers without a window have no rotary positions.
"""

from typing import Any

from tokenmill.model.config import MAX_LAYERS, ConfigReader, QKNorm
from tokenmill.model.families import Family, sizes
from tokenmill.model.families.in_gguf import NAMES as IN_GGUF
from tokenmill.model.families.in_gguf import GGUFKeys, InGGUF, layer_types, like_llama
from tokenmill.model.families.llama import PACKED_EXPERTS
from tokenmill.model.families.sigmoid_experts import MOE_NAMES, moe_metadata, read_moe_gguf, routed_and_shared
from tokenmill.model.rope_config import rope_of
from tokenmill.value_reader import MAX_POSITIONS

_QKV = "layers.{i}.attention.qkv.weight:"
GATES = {
    "layers.{i}.self_attn.gate_proj.weight": _QKV + "0/2 of q",
    "layers.{i}.self_attn.q_proj.weight": _QKV + "1/2 of q",
}
"""The gate of attention in a tensor of its own. It has no bias, so that Q has none either."""
GATES_IN_GGUF = {"blk.{i}.attn_gate.weight": _QKV + "0/2 of q", "blk.{i}.attn_q.weight": _QKV + "1/2 of q"}
_LAYER, _NORM = "layers.{i}.", "layernorm.weight"
_NAMES = {
    **{name: target for name, target in MOE_NAMES.items() if ".q_proj" not in name and "mlp.gate." not in name},
    **GATES,
    _LAYER + "mlp.router.gate.weight": _LAYER + "mlp.router.weight",
    _LAYER + "mlp.expert_bias": _LAYER + "mlp.correction",
    _LAYER + "post_attention_" + _NORM: _LAYER + "attention_after_norm.weight",
    _LAYER + "pre_mlp_" + _NORM: _LAYER + "mlp_norm.weight",
    _LAYER + "post_mlp_" + _NORM: _LAYER + "mlp_after_norm.weight",
}
_STORED = {**{name: target for name, target in IN_GGUF.items() if ".attn_q{p}" not in name}, **GATES_IN_GGUF}


def _afmoe(reader: ConfigReader) -> dict[str, Any]:
    reader.expect("attention_bias", False)
    layers, dense = range(reader.num_layers()), reader.count("num_dense_layers", minimum=0)
    window, rope, every, key = reader.window(), rope_of(reader), 1, "global_attn_every_n_layers"
    reader.read.add(key)  # counts where there are no layer_types
    if not reader.given("layer_types"):
        every = reader.count(key, maximum=MAX_LAYERS)
    windows = reader.windows(window or 1, ((layer + 1) % every != 0 for layer in layers))
    if window is None and any(windows):
        raise reader.refuse("sliding_window", None, "a number of tokens")
    return {
        **routed_and_shared(reader),
        "expert_layers": tuple(layer >= dense for layer in layers),
        "router_scale": reader.number("route_scale"),
        "attention_gate": True,
        "norm_placement": "both",
        "norm_rounds_last": True,
        "qk_norm": QKNorm(),
        "windows": windows,
        "rope": rope,
        "ropes": tuple(each and rope for each in windows),
        "embedding_multiplier": reader.count("hidden_size") ** 0.5 if reader.flag("mup_enabled") else 1.0,
    }


def _read_gguf(keys: GGUFKeys) -> dict[str, Any]:
    """Read AFMoE. llama.cpp multiplies embeddings in any case, and has no rope in every fourth layer."""
    if keys.take("expert_gating_func", 0) == 0:
        keys.values = {**keys.values, keys.name("expert_gating_func"): 2}  # as llama.cpp takes it
    keys.expect("expert_weights_norm", ..., True)
    for key in ("expert_group_count", "expert_group_used_count"):
        keys.expect(key, 1)
    config = read_moe_gguf(keys, like_llama(keys))
    for key in ("n_group", "topk_group", "norm_topk_prob"):
        del config[key]
    window = keys.count("attention.sliding_window", maximum=MAX_POSITIONS)
    types = keys.layer_types(layers := config["num_hidden_layers"], 4)
    if types != layer_types(layers, 4):
        raise keys.refuse("attention.sliding_window_pattern", types, "every fourth layer has no window in llama.cpp")
    config |= {"sliding_window": window, "layer_types": types}
    return {_IN_OWN_WORDS.get(key, key): value for key, value in config.items()} | {"mup_enabled": True}


_KEYS = {"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts"}
_IN_OWN_WORDS = {**_KEYS, "first_k_dense_replace": "num_dense_layers", "routed_scaling_factor": "route_scale"}
AFMOE = Family(
    _NAMES,
    _afmoe,
    keys=_KEYS,
    defaults={
        **sizes(200192, 2048, 6144, 32, 16, head_dim=128, context=16384),
        "eos_token_id": None,
        "global_attn_every_n_layers": 4,
        "moe_intermediate_size": 1408,
        "mup_enabled": False,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "num_dense_layers": 1,
        "num_experts_per_tok": 6,
        "rms_norm_eps": 1e-5,
        "route_scale": 1.0,
        "sliding_window": 1024,
    },
    nulls={"mup_enabled": False, "num_key_value_heads": None},
    expected={
        "n_group": 1,
        "topk_group": 1,
        "num_expert_groups": 1,
        "num_limited_groups": 1,
        "route_norm": True,
        "score_func": "sigmoid",
    },
    harmless=("use_grouped_mm", "load_balance_coeff"),  # how experts are multiplied; of training
    gguf=InGGUF(
        "afmoe",
        _STORED,
        _read_gguf,
        lambda model: moe_metadata(model, 4),
        windows=lambda _: True,
    ),
    also=PACKED_EXPERTS,
)
