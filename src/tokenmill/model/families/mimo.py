"""MiMo-V2-Flash of Xiaomi: values that are narrower than keys, in most layers a window with sinks and twice as many kv
heads, and experts that are chosen by sigmoid scores.
"""

from typing import Any

from tokenmill.model.blocks import Projection
from tokenmill.model.config import ConfigReader, ModelConfig, Rope
from tokenmill.model.families import Family, sizes
from tokenmill.model.families.described import described_attention
from tokenmill.model.families.gemma3n import of_layers
from tokenmill.model.families.in_gguf import FULL, SLIDING, GGUFKeys, InGGUF
from tokenmill.model.families.llama import PACKED_EXPERTS
from tokenmill.model.families.qwen_moe import sparse_layers
from tokenmill.model.families.sigmoid_experts import MOE_NAMES
from tokenmill.model.mixers.attention import AttentionBlock
from tokenmill.model.rope_config import Beside, default_rope
from tokenmill.model.ropes_by_kind import local_rope, read_ropes
from tokenmill.value_reader import MAX_POSITIONS

_TURNED = 0.334  # of each head
_ROPES = {FULL: Beside("rope_theta", 5e6, scaled=False), SLIDING: Beside("swa_rope_theta", 1e4, scaled=False)}
_SINKS = "layers.{i}.attention.sinks"


def _mimo(reader: ConfigReader) -> dict[str, Any]:
    layers, kv_heads = reader.num_layers(), reader.count("num_key_value_heads")
    usual = [FULL if layer == 0 or layer % 6 == 5 else SLIDING for layer in range(layers)]
    types = reader.layer_types(usual, FULL, SLIDING)
    sparse, window = sparse_layers(reader, 1), _window(reader)
    _expect_repeated(reader, types, sparse)
    ropes, heads = _ropes(reader), reader.count("num_attention_heads")
    if heads % (2 * kv_heads):
        raise reader.refuse("num_key_value_heads", kv_heads, f"a divisor of {heads} heads, and twice as many, too")
    attend = {
        FULL: _attention(reader, ropes[FULL], kv_heads=kv_heads),
        SLIDING: _attention(reader, ropes[SLIDING], kv_heads=2 * kv_heads, window=window, sinks=True),
    }
    groups, chosen = reader.count("n_group"), reader.count("topk_group")
    return {
        "qkv_bias": reader.flag("attention_bias"),
        "windows": tuple(window if kind == SLIDING else None for kind in types),
        "rope": ropes[FULL],
        "ropes": tuple(ropes[kind] for kind in types),
        "mixers": tuple(attend[kind] for kind in types),
        "num_experts": reader.count("n_routed_experts"),
        "num_experts_per_token": reader.count("num_experts_per_tok"),
        "expert_size": reader.count("moe_intermediate_size"),
        "expert_layers": sparse,
        "norm_top_k": reader.flag("norm_topk_prob"),
        "norm_top_k_eps": 1e-20,
        "router_scores": "sigmoid",
        "router_correction": True,
        "router_groups": (groups, chosen, 2) if groups > 1 else None,
        "router_scale": reader.number("routed_scaling_factor"),
    }


def _window(reader: ConfigReader) -> int:
    """Read how many past tokens a query sees. `sliding_window_size`, where it is given, leaves the query itself out."""
    own, others = reader.count("sliding_window", maximum=MAX_POSITIONS), reader.count("sliding_window_size", None)
    return own if others is None else others + 1


def _ropes(reader: ConfigReader) -> dict[str, Rope]:
    """Read the rope of each kind. Keys beside the rope parameters, which transformers does not read, repeat them."""
    reader.expect("rope_scaling", None)
    default_rope(
        reader,
        {kind: {"rope_theta": beside.default, "partial_rotary_factor": _TURNED} for kind, beside in _ROPES.items()},
    )
    return read_ropes(reader, _ROPES)


def _expect_repeated(reader: ConfigReader, types: list[str], sparse: tuple[bool, ...]) -> None:
    """Refuse other values of keys that repeat what transformers has in its class or reads from others."""
    same = {
        "hybrid_layer_pattern": [int(kind == SLIDING) for kind in types],
        "moe_layer_freq": [int(each) for each in sparse],
        "swa_num_attention_heads": reader.count("num_attention_heads"),
        "swa_num_key_value_heads": 2 * reader.count("num_key_value_heads"),
        "swa_head_dim": reader.head_dim(),
        "swa_v_head_dim": reader.count("v_head_dim"),
        "layernorm_epsilon": reader.number("rms_norm_eps", maximum=1.0),
    }
    for key, value in same.items():
        reader.expect(key, value)


def _attention(reader: ConfigReader, rope: Rope, **sizes: Any) -> AttentionBlock:
    heads, value_dim = reader.count("num_attention_heads"), reader.count("v_head_dim")
    scale = reader.number("attention_value_scale", None)
    block: AttentionBlock = described_attention(
        reader,
        rope,
        value_dim=value_dim,
        multipliers=() if scale is None else (1.0, 1.0, scale),
        out=Projection("out", heads * value_dim, (reader.count("hidden_size"),)),
        **sizes,
    )
    return block


def _read_gguf(keys: GGUFKeys) -> dict[str, Any]:
    """Read MiMo-V2-Flash. llama.cpp divides the weights of the chosen experts by their sum, whatever a file says."""
    own, head_dim = keys.sizes(), keys.count("attention.key_length")
    stored, part = own["num_hidden_layers"], keys.rotated_part(head_dim)
    layers = stored - keys.count("nextn_predict_layers", 0, minimum=0, maximum=stored - 1)
    slides = keys.by_layer(key := "attention.sliding_window_pattern", stored)
    if slides is None:
        raise keys.refuse(key, None, "a list that says which layers have a window")
    types = [SLIDING if each else FULL for each in slides[:layers]]
    kv_heads = of_layers(keys, key := "attention.head_count_kv", stored)[:layers]
    few = kv_heads[types.index(FULL)] if FULL in types else kv_heads[0] // 2
    if kv_heads != [few if kind == FULL else 2 * few for kind in types]:
        raise keys.refuse(key, kv_heads, "twice as many in layers with a window as in the others")
    keys.expect("expert_gating_func", 2, 0)
    keys.expect("expert_weights_norm", True)
    keys.expect("expert_weights_scale", 1.0, 0.0)
    for key in ("expert_group_count", "expert_group_used_count"):
        keys.expect(key, 1)
    theta, scale = keys.positive("rope.freq_base"), keys.take("attention.value_scale", 0.0)
    thetas = {FULL: theta, SLIDING: keys.positive("rope.freq_base_swa", theta)}
    return {
        "model_type": keys.family,
        **own,
        "num_hidden_layers": layers,
        "num_key_value_heads": few,
        "head_dim": head_dim,
        "v_head_dim": keys.count("attention.value_length"),
        "rms_norm_eps": keys.positive("attention.layer_norm_rms_epsilon"),
        "sliding_window": keys.count("attention.sliding_window", maximum=MAX_POSITIONS),
        "layer_types": types,
        "mlp_layer_types": [
            "sparse" if f"blk.{layer}.ffn_gate_inp.weight" in keys.tensors else "dense" for layer in range(layers)
        ],
        **keys.experts("n_routed_experts"),
        "moe_intermediate_size": keys.expert_width(),
        "attention_value_scale": None if scale in (0, 1) else keys.positive("attention.value_scale"),
        "attention_bias": keys.has("attn_q.bias"),
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": each, "partial_rotary_factor": part}
            for kind, each in thetas.items()
        },
    }


def _metadata(model: ModelConfig) -> dict[str, Any]:
    block, slides = model.mixers[0], [window is not None for window in model.windows]
    local = local_rope(model) or model.rope
    assert local is not None, "every layer has a rope"
    return {
        "attention.head_count_kv": [each.num_kv_heads for each in model.mixers],
        "attention.value_length": block.value_dim,
        "attention.value_scale": block.qkv.multipliers[2] if block.qkv.is_scaled else 1.0,
        "attention.sliding_window": max((window or 0 for window in model.windows), default=0),
        "attention.sliding_window_pattern": slides,
        "rope.freq_base_swa": local.theta,
        "expert_feed_forward_length": model.expert_size,
        "expert_gating_func": 2,
        "expert_weights_norm": True,
    }


MIMO_V2_FLASH = Family(
    {
        **{name: target for name, target in MOE_NAMES.items() if "shared" not in name},
        "layers.{i}.self_attn.attention_sink_bias": _SINKS,
    },
    _mimo,
    defaults={
        **sizes(152576, 4096, 16384, 48, 64, 4, head_dim=192, context=131072),
        "attention_value_scale": 0.707,
        "eos_token_id": None,
        "moe_intermediate_size": 2048,
        "n_group": 1,
        "n_routed_experts": 256,
        "norm_topk_prob": True,
        "num_experts_per_tok": 8,
        "partial_rotary_factor": _TURNED,
        "rms_norm_eps": 1e-5,
        "routed_scaling_factor": 1.0,
        "sliding_window": 129,
        "topk_group": 1,
        "v_head_dim": 128,
    },
    nulls={"attention_value_scale": None, "routed_scaling_factor": 1.0},
    aliases={"num_local_experts": "n_routed_experts"},
    expected={
        "add_full_attention_sink_bias": False,
        "add_swa_attention_sink_bias": True,
        "n_shared_experts": None,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
    },
    harmless=("attention_chunk_size", "num_nextn_predict_layers"),  # it repeats the window; what GGUF has beside layers
    further=("mtp.",),
    gguf=InGGUF(
        "mimo2",
        read=_read_gguf,
        metadata=_metadata,
        needs=("own head",),
        windows=lambda _: True,
        further=True,
    ),
    also={**PACKED_EXPERTS, "layers.{i}.self_attn.sinks": _SINKS},
)
