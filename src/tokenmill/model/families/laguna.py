"""Laguna of poolside: layers with different numbers of query heads, whose outputs are multiplied by softplus gates, and
experts that are chosen by sigmoid scores, with one that is shared.
"""

from collections.abc import Mapping
from typing import Any

from tokenmill.model.blocks import Norm, Projection
from tokenmill.model.config import MAX_LAYERS, ConfigReader, ModelConfig, Rope
from tokenmill.model.families import Family, sizes
from tokenmill.model.families.described import described_attention
from tokenmill.model.families.gemma3n import of_layers
from tokenmill.model.families.in_gguf import FULL, SLIDING, GGUFKeys, InGGUF, expert_metadata, like_llama
from tokenmill.model.families.in_gguf import NAMES as IN_GGUF
from tokenmill.model.families.llama import PACKED_EXPERTS
from tokenmill.model.families.qwen_moe import EXPERT_NAMES, mlp_names, sparse_layers
from tokenmill.model.mixers.gated_attention import GatedAttentionBlock
from tokenmill.model.rope_config import Beside, default_rope
from tokenmill.model.ropes_by_kind import local_rope, read_ropes

_MLP, _GATE = "layers.{i}.mlp.", "layers.{i}.gated_attention.gate.weight"
_ROPES = {FULL: Beside("rope_theta", 5e5, scaled=True), SLIDING: Beside("rope_theta", 1e4, scaled=False)}
_PER_HEAD, _PER_NUMBER = "per-head", "per-element"
_PART, _TRAINED = "partial_rotary_factor", "original_max_position_embeddings"


def gated(names: Mapping[str, str]) -> dict[str, str]:
    """Rename the parameters of attention: gated attention has names of its own."""
    return {name: goal.replace(".attention.", ".gated_attention.") for name, goal in names.items()}


def _laguna(reader: ConfigReader) -> dict[str, Any]:
    reader.expect("moe_apply_router_weight_on_input", False)
    reader.expect("moe_router_logit_softcapping", 0.0)
    layers, window = reader.num_layers(), reader.count("sliding_window", minimum=0)
    types = reader.layer_types([FULL] * layers, FULL, SLIDING)
    if SLIDING in types and not window:
        raise reader.refuse("sliding_window", window, "a number of tokens")
    ropes, sparse = _ropes(reader), sparse_layers(reader, 1)
    reader.expect("mlp_only_layers", [layer for layer in range(layers) if not sparse[layer]])  # repeats it
    heads, windows = _heads(reader), tuple(window if kind == SLIDING else None for kind in types)
    facts = zip(heads, windows, (ropes[kind] for kind in types), strict=True)
    return {
        **reader.attention_bias(),
        "num_heads": heads[0],
        "windows": windows,
        "rope": ropes[FULL],
        "ropes": tuple(ropes[kind] for kind in types),
        "mixers": tuple(_attention(reader, *each) for each in facts),
        "num_experts": reader.count("num_experts"),
        "num_experts_per_token": reader.count("num_experts_per_tok"),
        "expert_size": reader.count("moe_intermediate_size"),
        "shared_expert_size": reader.count("shared_expert_intermediate_size"),
        "expert_layers": sparse,
        "router_scores": "sigmoid",
        "router_correction": True,
        "router_scale": reader.number("moe_routed_scaling_factor"),
    }


def _ropes(reader: ConfigReader) -> dict[str, Rope]:
    """Read the rope of each kind. Numbers beside them, which transformers does not read, repeat the full layers'."""
    is_default = not reader.given("rope_parameters")
    default_rope(reader, {FULL: {"rope_theta": 5e5, _PART: 0.5}, SLIDING: {"rope_theta": 1e4}})
    nested = reader.inside("rope_parameters")
    full = nested.inside(FULL).values
    if is_default or "rope_type" in full:
        reader.expect("rope_scaling", None)  # which transformers does not read; GGUF has it for full layers
    for values, key in ((reader, _PART), (reader, "rope_theta"), (reader, _TRAINED), (nested, _TRAINED)):
        if key in values.values:
            values.expect(key, full.get(key))
    kept = {kind: nested.inside(kind).values for kind in _ROPES if kind in nested.values}
    nested.refuse_unread(nested.values)
    others = {key: value for key, value in reader.values.items() if key not in (_PART, "rope_theta")}
    reader.values = {**others, "rope_parameters": kept}
    return read_ropes(reader, _ROPES)


def _heads(reader: ConfigReader) -> list[int]:
    """Read the number of query heads of each layer."""
    layers, kv_heads, key = reader.num_layers(), reader.count("num_key_value_heads"), "num_attention_heads_per_layer"
    heads = reader.entries(key, int, [reader.count("num_attention_heads")] * layers)
    if len(heads) != layers or any(each < 1 or each % kv_heads for each in heads):
        raise reader.refuse(key, heads, f"a multiple of {kv_heads} for each of {layers} layers")
    return heads


def _attention(reader: ConfigReader, heads: int, window: int | None, rope: Rope) -> GatedAttentionBlock:
    head_dim, gating = reader.head_dim(), reader.expect("gating", True, _PER_HEAD, _PER_NUMBER)
    norm = Norm(head_dim, "rms", reader.number("rms_norm_eps", maximum=1.0))
    gates = heads * (head_dim if gating == _PER_NUMBER else 1)
    kinds = {kind.replace("_", "-") for kind in reader.entries("gating_types", str, [])}
    if kinds - {_PER_NUMBER if gating == _PER_NUMBER else _PER_HEAD}:
        raise reader.refuse("gating_types", reader.values["gating_types"], "the kind that gating says, for all layers")
    block: GatedAttentionBlock = described_attention(
        reader,
        rope,
        kind=GatedAttentionBlock,
        heads=heads,
        window=window,
        qk_norms=(norm, norm),
        gate=Projection("gate", reader.count("hidden_size"), (gates,)),
        activation="softplus",
    )
    return block


def _read_gguf(keys: GGUFKeys) -> dict[str, Any]:
    """Read Laguna. llama.cpp has one shared expert, and tells the kind of gates by the rows of a tensor."""
    layers = keys.count("block_count", maximum=MAX_LAYERS)
    heads, key = of_layers(keys, "attention.head_count", layers), keys.name("attention.head_count")
    keys.values = {**keys.values, key: heads[0]}
    config = like_llama(keys, rotates_all=False)
    keys.expect("expert_gating_func", 2, 0)
    keys.expect("expert_weights_norm", ..., True)
    keys.expect("expert_shared_count", 1)
    head_dim, window = config["head_dim"], keys.window()
    types = _types(keys, layers) if window else [FULL] * layers
    theta = config.pop("rope_theta")
    turned = keys.count("rope.dimension_count_swa", head_dim, maximum=head_dim)
    slides = {"rope_theta": keys.positive("rope.freq_base_swa", theta), _PART: keys.rotated_part(head_dim, turned)}
    full = {"rope_theta": theta, _PART: config.pop(_PART)}
    dense, gates = keys.count("leading_dense_block_count", minimum=0), keys.rows("blk.0.attn_gate.weight")
    return config | {
        **keys.experts("num_experts"),
        "moe_intermediate_size": keys.expert_width(),
        "shared_expert_intermediate_size": keys.count("expert_shared_feed_forward_length"),
        "moe_routed_scaling_factor": keys.scale("expert_weights_scale"),
        "mlp_layer_types": ["dense" if layer < dense else "sparse" for layer in range(layers)],
        "num_attention_heads_per_layer": heads,
        "gating": _PER_HEAD if gates == heads[0] else _PER_NUMBER,
        "attention_bias": keys.has("attn_q.bias"),
        "layer_types": types,
        "rope_parameters": {FULL: full, SLIDING: slides},
        **({"sliding_window": window} if window else {}),
    }


def _types(keys: GGUFKeys, layers: int) -> list[str]:
    """Read which layers have a window: all except each first of four, unless a key says otherwise."""
    given = keys.by_layer(key := "attention.sliding_window_pattern", layers)
    if given is None:
        period = keys.count(key, 4, minimum=0, maximum=MAX_LAYERS)
        given = [period == 0 or layer % period > 0 for layer in range(layers)]
    return [SLIDING if each else FULL for each in given]


def _metadata(model: ModelConfig) -> dict[str, Any]:
    slides = [window is not None for window in model.windows]
    pairs: dict[str, Any] = {
        "attention.head_count": [block.num_heads for block in model.mixers],
        "leading_dense_block_count": model.expert_layers.index(True)
        if True in model.expert_layers
        else model.num_layers,
        "expert_weights_scale": model.router_scale,
        "expert_weights_norm": True,
        "expert_gating_func": 2,
        **expert_metadata(model),
    }
    local = local_rope(model)
    if local is None:
        return pairs
    window = max(window or 0 for window in model.windows)
    pairs |= {"attention.sliding_window": window, "attention.sliding_window_pattern": slides}
    return pairs | {"rope.freq_base_swa": local.theta, "rope.dimension_count_swa": local.dim}


LAGUNA = Family(
    {
        **gated(EXPERT_NAMES),
        "layers.{i}.self_attn.g_proj.weight": _GATE,
        _MLP + "experts.e_score_correction_bias": _MLP + "correction",
        **mlp_names("shared_expert", "shared"),
    },
    _laguna,
    defaults={
        **sizes(100352, 2048, 8192, 40, 48, 8, head_dim=128, context=131072),
        "eos_token_id": None,
        "gating": True,
        "moe_intermediate_size": 512,
        "moe_routed_scaling_factor": 1.0,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "partial_rotary_factor": 1.0,
        "shared_expert_intermediate_size": 512,
        "sliding_window": 512,
    },
    expected={"decoder_sparse_step": 1, "norm_topk_prob": True},
    gguf=InGGUF(
        "laguna",
        {**gated(IN_GGUF), "blk.{i}.attn_gate.weight": _GATE},
        _read_gguf,
        _metadata,
        needs=("no o_bias",),
        windows=lambda _: True,
    ),
    also={
        **PACKED_EXPERTS,
        _MLP + "gate.e_score_correction_bias": _MLP + "correction",
        **mlp_names("shared_experts", "shared"),
    },
)
