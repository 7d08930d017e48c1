"""Qwen1.5-MoE, Qwen2-MoE and Qwen3-MoE: Qwen with a mixture of experts in all layers or in some.

Qwen2-MoE has a shared expert beside them, behind a gate of its own. Mellum 2 of JetBrains is Qwen3-MoE with a rope for
each kind of layer.
"""

from functools import partial
from typing import Any

from tokenmill.model.config import ConfigReader, ModelConfig, QKNorm
from tokenmill.model.families import Family, sizes
from tokenmill.model.families.in_gguf import (
    FULL,
    SLIDING,
    GGUFKeys,
    InGGUF,
    expert_metadata,
    has_bias,
    like_llama,
    window_metadata,
)
from tokenmill.model.families.llama import NAMES, PACKED_EXPERTS
from tokenmill.model.rope_config import Beside, default_rope
from tokenmill.model.ropes_by_kind import local_rope, read_ropes

_MLP = "layers.{i}.mlp."


def mlp_names(file: str, ours: str) -> dict[str, str]:
    """Name the matrices of a gated MLP within a layer: of an expert, or of the one that is shared."""
    return {
        f"{_MLP}{file}.gate_proj{{p}}": f"{_MLP}{ours}.up{{p}}:gate",
        f"{_MLP}{file}.up_proj{{p}}": f"{_MLP}{ours}.up{{p}}:up",
        f"{_MLP}{file}.down_proj{{p}}": f"{_MLP}{ours}.down{{p}}",
    }


# Llama's names are of the layers that have no experts.
EXPERT_NAMES = {**NAMES, _MLP + "gate.weight": _MLP + "router.weight", **mlp_names("experts.{e}", "experts.{e}")}
_SHARED = {_MLP + "shared_expert_gate.weight": _MLP + "shared_gate.weight", **mlp_names("shared_expert", "shared")}


def mixture(reader: ConfigReader) -> dict[str, Any]:
    """Read the experts, and which layers have them."""
    step, dense = reader.count("decoder_sparse_step"), reader.entries("mlp_only_layers", int, [])
    layers = range(reader.num_layers())
    return {
        "num_experts": reader.count("num_experts"),
        "num_experts_per_token": reader.count("num_experts_per_tok"),
        "expert_size": reader.count("moe_intermediate_size"),
        "norm_top_k": reader.flag("norm_topk_prob"),
        "expert_layers": tuple((layer + 1) % step == 0 and layer not in dense for layer in layers),
    }


def _qwen2_moe(reader: ConfigReader) -> dict[str, Any]:
    window = reader.count("sliding_window", 0, minimum=0) or None
    upper = reader.count("max_window_layers", minimum=0)
    slides = (layer % 2 == 0 and layer < upper for layer in range(reader.num_layers()))
    return {
        **mixture(reader),
        "shared_expert_size": reader.count("shared_expert_intermediate_size"),
        "shared_expert_gate": True,
        "qkv_bias": reader.flag("qkv_bias"),
        "windows": reader.windows(window if reader.flag("use_sliding_window") else None, slides),
    }


def _qwen3_moe(reader: ConfigReader) -> dict[str, Any]:
    window = reader.window()
    return {
        **mixture(reader),
        **reader.attention_bias(),
        "qk_norm": QKNorm(),
        "windows": (window if reader.flag("use_sliding_window") else None,),
    }


def sparse_layers(reader: ConfigReader, num_dense: int) -> tuple[bool, ...]:
    """Read which layers have experts from `mlp_layer_types`; without it all do behind the first num_dense layers."""
    count = reader.num_layers()
    usual = ["dense" if layer < num_dense else "sparse" for layer in range(count)]
    types = reader.entries("mlp_layer_types", str, usual)
    if not set(types) <= {"dense", "sparse"} or len(types) != count:
        raise reader.refuse("mlp_layer_types", types, f"{count} of dense, sparse")
    return tuple(kind == "sparse" for kind in types)


def _mellum(reader: ConfigReader) -> dict[str, Any]:
    layers, window = reader.num_layers(), reader.window()
    types = reader.layer_types([FULL] * layers, FULL, SLIDING)
    if window is None and SLIDING in types:
        raise reader.refuse("sliding_window", None, "a number of tokens")
    reader.expect("original_max_position_embeddings", None)  # which transformers reads within rope parameters alone
    given = reader.inside("rope_parameters").values
    if FULL in given or not given:
        reader.expect("rope_scaling", None)  # which transformers does not read; GGUF has it alone for these layers
    default_rope(reader, {kind: {"rope_theta": beside.default} for kind, beside in _MELLUM_ROPES.items()})
    ropes = read_ropes(reader, _MELLUM_ROPES)
    return {
        **reader.attention_bias(),
        "qk_norm": QKNorm(),
        "num_experts": reader.count("num_experts"),
        "num_experts_per_token": reader.count("num_experts_per_tok"),
        "expert_size": reader.count("moe_intermediate_size"),
        "norm_top_k": reader.flag("norm_topk_prob"),
        "expert_layers": sparse_layers(reader, 0),
        "windows": tuple(window if kind == SLIDING else None for kind in types),
        "rope": ropes[FULL],
        "ropes": tuple(ropes[kind] for kind in types),
    }


def _read_mellum_gguf(keys: GGUFKeys) -> dict[str, Any]:
    """Read Mellum 2. Layers with a window have a plain rope, of the same base in llama.cpp's code."""
    config, window = like_llama(keys) | has_bias(keys), keys.window()
    keys.softmax_routing(True)
    layers, theta = config["num_hidden_layers"], config["rope_theta"]
    if keys.positive("rope.freq_base_swa", theta) != theta:
        raise keys.refuse("rope.freq_base_swa", keys.take("rope.freq_base_swa"), f"only {theta}, as of the others")
    return config | {
        **keys.experts("num_experts"),
        "moe_intermediate_size": keys.expert_width(),
        "norm_topk_prob": True,
        "sliding_window": window,
        "layer_types": keys.layer_types(layers, 4) if window else [FULL] * layers,
        "rope_parameters": {SLIDING: {"rope_type": "default", "rope_theta": theta}},
    }


def _mellum_metadata(model: ModelConfig) -> dict[str, Any]:
    local = local_rope(model)
    pairs = {} if local is None else {"rope.freq_base_swa": local.theta}
    return expert_metadata(model) | pairs | window_metadata(model.windows)


def read_gguf(keys: GGUFKeys, is_qwen3: bool) -> dict[str, Any]:
    """Read either family. llama.cpp's code norms the weights of chosen experts of Qwen3, and not of Qwen2."""
    config = like_llama(keys) | {
        **keys.experts("num_experts"),
        "moe_intermediate_size": keys.expert_width(),
        "norm_topk_prob": is_qwen3,
    }
    keys.softmax_routing(is_qwen3)
    if is_qwen3:
        return config | has_bias(keys)
    stored = next((info.shape[0] for name, info in keys.tensors.items() if name.endswith("ffn_up_shexp.weight")), None)
    size = keys.count("expert_shared_feed_forward_length", stored)
    return config | {"qkv_bias": bool(has_bias(keys)), "shared_expert_intermediate_size": size}


_DEFAULTS = {
    "decoder_sparse_step": 1,
    "eos_token_id": None,
    "norm_topk_prob": False,
    "sliding_window": 4096,
    "use_sliding_window": False,
}
QWEN2_MOE = Family(
    {**EXPERT_NAMES, **_SHARED},
    _qwen2_moe,
    defaults={
        **sizes(151936, 2048, 5632, 24, 16, 16, context=32768),
        **_DEFAULTS,
        "max_window_layers": 28,
        "moe_intermediate_size": 1408,
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "qkv_bias": True,
        "shared_expert_intermediate_size": 5632,
    },
    gguf=InGGUF(
        "qwen2moe", read=partial(read_gguf, is_qwen3=False), metadata=expert_metadata, needs=("own head", "square")
    ),
    also=PACKED_EXPERTS,
)
QWEN3_MOE = Family(
    EXPERT_NAMES,
    _qwen3_moe,
    defaults={
        **sizes(151936, 2048, 6144, 24, 32, 4, context=32768),
        **_DEFAULTS,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
    },
    expected={"qkv_bias": False, "use_qk_norm": True, "shared_expert_intermediate_size": 0},
    aliases={"num_local_experts": "num_experts"},  # transformers 5 writes this name, everybody else the other one
    harmless=("max_window_layers",),  # Qwen's files have it, while all layers have one window
    gguf=InGGUF("qwen3moe", read=partial(read_gguf, is_qwen3=True), metadata=expert_metadata, needs=("no o_bias",)),
    also=PACKED_EXPERTS,
)
# The bases where a config has no rope parameters; one beside them is the default within them.
_MELLUM_ROPES = {FULL: Beside("rope_theta", 5e5, scaled=True), SLIDING: Beside("rope_theta", 1e4, scaled=False)}
MELLUM = Family(
    EXPERT_NAMES,
    _mellum,
    defaults={
        **sizes(98304, 2304, 7168, 28, 32, 4, head_dim=128, context=131072),
        "eos_token_id": None,
        "moe_intermediate_size": 896,
        "norm_topk_prob": True,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "partial_rotary_factor": 1.0,
        "sliding_window": 1024,
    },
    nulls={"partial_rotary_factor": 1.0},
    aliases={"num_local_experts": "num_experts"},
    expected={"use_sliding_window": True, "mlp_only_layers": [], "decoder_sparse_step": 1, "qkv_bias": False},
    # A number of windows that counts nowhere, and the layers that predict further tokens.
    harmless=(
        "max_window_layers",
        "num_mtp_layers",
        "num_nextn_predict_layers",
        "mtp_layer_types",
        "mtp_mlp_layer_types",
    ),
    further=("mtp.",),
    gguf=InGGUF(
        "mellum",
        read=_read_mellum_gguf,
        metadata=_mellum_metadata,
        needs=("own head", "no o_bias"),
        windows=lambda _: True,
    ),
    also=PACKED_EXPERTS,
)
