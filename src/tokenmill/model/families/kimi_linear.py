"""Kimi Linear of Moonshot AI: Kimi delta attention, and latent attention without positions in each fourth layer."""

from collections.abc import Mapping
from typing import Any

from tokenmill.model.config import ConfigReader
from tokenmill.model.families import Family, sizes
from tokenmill.model.families.deepseek import LATENT_NAMES, mixture_of_kinds, read_latents
from tokenmill.model.families.kimi_linear_gguf import IN_GGUF
from tokenmill.model.families.llama import NAMES, PACKED_EXPERTS
from tokenmill.model.families.sigmoid_experts import MOE_NAMES
from tokenmill.model.mixers.kda import kimi_delta
from tokenmill.value_reader import ValueReader

_FULL, _LINEAR = "full_attention", "linear_attention"
_FILE, _OURS = "layers.{i}.self_attn.", "layers.{i}.kda."


def _kimi_linear(reader: ConfigReader) -> dict[str, Any]:
    layers, hidden = reader.num_layers(), reader.count("hidden_size")
    given = reader.inside("linear_attn_config")
    default = _default_types(given, layers)
    sizes_of = {"head_dim": "linear_head_dim", "num_heads": "linear_num_heads"}
    head_dim, heads = (given.count(key, reader.count(outer)) for key, outer in sizes_of.items())
    taps = given.count("short_conv_kernel_size", reader.count("linear_conv_kernel_dim", minimum=2), minimum=2)
    given.refuse_unread(given.values)
    types = reader.layer_types(default, _FULL, _LINEAR)
    delta = kimi_delta(hidden, num_heads=heads, head_dim=head_dim, num_taps=taps, eps=reader.number("rms_norm_eps"))
    latents = read_latents(reader, pairs=False, rope=None)
    mixers = tuple(delta if kind == _LINEAR else latents["mixers"][0] for kind in types)
    return {**mixture_of_kinds(reader, reader.count("first_k_dense_replace", minimum=0)), **latents, "mixers": mixers}


def _default_types(given: ValueReader, layers: int) -> list[str]:
    """Read the kinds of layers, which a published config lists by numbers from 1 on."""
    lists = {kind: given.entries(key, int, []) for kind, key in ((_FULL, "full_attn_layers"), (_LINEAR, "kda_layers"))}
    if not any(lists.values()):
        return [_FULL if layer and layer % 4 == 0 else _LINEAR for layer in range(layers)]
    kinds: Mapping[int, str] = {number: kind for kind, numbers in lists.items() for number in numbers}
    if sorted(number for numbers in lists.values() for number in numbers) != list(range(1, layers + 1)):
        raise given.refuse("full_attn_layers", lists[_FULL], f"with kda_layers each of the layers 1 to {layers} once")
    return [kinds[number] for number in range(1, layers + 1)]


_NAMES = {
    **{name: target for name, target in NAMES.items() if ".self_attn." not in name},
    **{name: target for name, target in LATENT_NAMES.items() if not name.endswith(("q_proj.weight", "o_proj{p}"))},
    _FILE + "q_proj.weight": f"layers.{{i}}.latent.down.weight:q or {_OURS}qkv.weight:q",
    _FILE + "o_proj.weight": f"layers.{{i}}.latent.out.weight or {_OURS}out.weight",
    **{f"{_FILE}{role}_proj.weight": f"{_OURS}qkv.weight:{role}" for role in "kv"},
    **{f"{_FILE}{role}_conv1d.weight": f"{_OURS}conv:{role} | depthwise" for role in "qkv"},
    _FILE + "f_a_proj.weight": _OURS + "forget_in.weight",
    _FILE + "f_b_proj.weight": _OURS + "forget_out.weight",
    _FILE + "g_a_proj.weight": _OURS + "gate_in.weight",
    _FILE + "g_b_proj.weight": _OURS + "gate_out.weight",
    _FILE + "b_proj.weight": _OURS + "beta.weight",
    _FILE + "A_log": _OURS + "A_log | heads in the middle",
    _FILE + "dt_bias": _OURS + "dt_bias",
    _FILE + "o_norm.weight": _OURS + "norm.weight",
}
_SPARSE, _MIX = "layers.{i}.block_sparse_moe.", "layers.{i}.mlp."
_EXPERTS = {
    _SPARSE + "gate.weight": _MIX + "router.weight",
    _SPARSE + "gate.e_score_correction_bias": _MIX + "correction",
    _SPARSE + "experts.{e}.w1.weight": _MIX + "experts.{e}.up.weight:gate",
    _SPARSE + "experts.{e}.w3.weight": _MIX + "experts.{e}.up.weight:up",
    _SPARSE + "experts.{e}.w2.weight": _MIX + "experts.{e}.down.weight",
    **{f"{_SPARSE}shared_experts.{role}_proj.weight": f"{_MIX}shared.up.weight:{role}" for role in ("gate", "up")},
    _SPARSE + "shared_experts.down_proj.weight": _MIX + "shared.down.weight",
}
_GATE = _FILE + "forget_gate."
# transformers' modules, and its name for an MLP without experts where it writes the published names.
_ALSO = {
    **PACKED_EXPERTS,
    **{
        name: target for name, target in MOE_NAMES.items() if name.startswith((_MIX + "gate.", _MIX + "shared_experts"))
    },
    **{f"{_SPARSE}{role}_proj.weight": f"{_MIX}up.weight:{role}" for role in ("gate", "up")},
    _SPARSE + "down_proj.weight": _MIX + "down.weight",
    _GATE + "f_a_proj.weight": _OURS + "forget_in.weight",
    _GATE + "f_b_proj.weight": _OURS + "forget_out.weight",
    _GATE + "A_log": _OURS + "A_log | heads in the middle",
    _GATE + "dt_bias": _OURS + "dt_bias",
    _FILE + "conv1d.weight": _OURS + "conv | depthwise",
}
_KEYS = {
    "max_position_embeddings": "model_max_length",
    "norm_topk_prob": "moe_renormalize",
    "n_group": "num_expert_group",
    "n_routed_experts": "num_experts",
    "num_experts_per_tok": "num_experts_per_token",
    "n_shared_experts": "num_shared_experts",
}
KIMI_LINEAR = Family(
    {**_NAMES, **_EXPERTS},
    _kimi_linear,
    keys=_KEYS,
    defaults={
        **sizes(163840, 2304, 9216, 27, 32, 32, context=1048576),
        "eos_token_id": 163586,
        "first_k_dense_replace": 1,
        "head_dim": None,
        "kv_lora_rank": 512,
        "layer_types": None,
        "linear_attn_config": None,
        "linear_conv_kernel_dim": 4,
        "linear_head_dim": 128,
        "linear_num_heads": 32,
        "mlp_layer_types": None,
        "moe_intermediate_size": 1024,
        "n_group": 1,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_experts_per_tok": 8,
        "q_lora_rank": None,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "rms_norm_eps": 1e-5,
        "routed_scaling_factor": 2.446,
        "topk_group": 1,
        "v_head_dim": 128,
    },
    nulls={"norm_topk_prob": False, "num_key_value_heads": None, "q_lora_rank": None},
    aliases={**{key: key for key in _KEYS}, "num_local_experts": "n_routed_experts"},
    expected={
        "tie_word_embeddings": False,
        "moe_layer_freq": 1,
        "moe_router_activation_func": "sigmoid",
        "use_grouped_topk": True,
        "mla_use_nope": True,
    },
    harmless=("head_dim", "qk_head_dim", "num_nextn_predict_layers", "rope_theta", "rope_scaling"),
    further=("layers.{n}.",),
    gguf=IN_GGUF,
    also=_ALSO,
)
