"""Nemotron-H and Nemotron 3 of NVIDIA: a layer is one mixer or one MLP, behind one norm. Mixers are Mamba 2, or
attention without rope; MLPs have relu² and no gate, alone or as experts.

transformers brings a head's step in Mamba 2 up to time_step_min where it computes several tokens at once on a CPU, and
not where it computes one. The kernels of training and llama.cpp have no such minimum, nor has tokenmill.
"""

from typing import Any

from tokenmill.errors import CheckpointError
from tokenmill.model.config import MAX_LAYERS, ConfigReader
from tokenmill.model.families import Family, sizes
from tokenmill.model.families.mamba2 import mamba_names
from tokenmill.model.mixers.absent import AbsentBlock
from tokenmill.model.mixers.mamba2 import mamba2
from tokenmill.value_reader import brief

_MAMBA, _FULL, _MOE, _MLP = "linear_attention", "full_attention", "moe", "mlp"
_LETTERS = {"M": _MAMBA, "*": _FULL, "E": _MOE, "-": _MLP}
_OLDER = {"mamba": _MAMBA, "attention": _FULL}
_MIXER, _OURS = "layers.{i}.mixer.", "layers.{i}.mlp."

_NAMES = {
    "embeddings.weight": "embedding.weight",
    "norm_f.weight": "norm.weight",
    "lm_head.weight": "head.weight",
    # One of the two targets is there.
    "layers.{i}.norm.weight": "layers.{i}.attention_norm.weight",
    "layers.{i}.norm{p}": "layers.{i}.mlp_norm{p}",
    **mamba_names(_MIXER),
    **{f"{_MIXER}{role}_proj{{p}}": f"layers.{{i}}.attention.qkv{{p}}:{role}" for role in "qkv"},
    _MIXER + "o_proj{p}": "layers.{i}.attention.out{p}",
    _MIXER + "up_proj{p}": _OURS + "up{p}",
    _MIXER + "down_proj{p}": _OURS + "down{p}",
    _MIXER + "gate.weight": _OURS + "router.weight",
    _MIXER + "gate.e_score_correction_bias": _OURS + "correction",
    _MIXER + "fc1_latent_proj{p}": _OURS + "latent_in{p}",
    _MIXER + "fc2_latent_proj{p}": _OURS + "latent_out{p}",
    _MIXER + "shared_experts.up_proj{p}": _OURS + "shared.up{p}",
    _MIXER + "shared_experts.down_proj{p}": _OURS + "shared.down{p}",
    _MIXER + "experts.{e}.up_proj.weight": _OURS + "experts.{e}.up.weight",
    _MIXER + "experts.{e}.down_proj.weight": _OURS + "experts.{e}.down.weight",
}
_ALSO = {
    _MIXER + "experts.up_proj[{e}]": _OURS + "experts.{e}.up.weight",
    _MIXER + "experts.down_proj[{e}]": _OURS + "experts.{e}.down.weight",
}


def _layer_types(reader: ConfigReader) -> list[str]:
    """Read the kind of each layer, from a list or from a pattern of letters."""
    reader.read.update(("num_hidden_layers", "hybrid_override_pattern"))  # which a list goes before, in its class
    if reader.given("layers_block_type"):
        names = [_OLDER.get(name, name) for name in reader.entries("layers_block_type", str)]
        wrong = [name for name in names if name not in _LETTERS.values()]
        allowed, key = ", ".join(_LETTERS.values()), "layers_block_type"
    else:
        pattern = reader.text("hybrid_override_pattern", "ME*-", longest=MAX_LAYERS)
        names = [_LETTERS.get(letter, letter) for letter in pattern]
        wrong = [name for name in names if name not in _LETTERS.values()]
        allowed, key = ", ".join(_LETTERS), "hybrid_override_pattern"
    if wrong or not 0 < len(names) <= MAX_LAYERS:
        raise CheckpointError(f"{reader.where}: {key} has {brief(wrong or len(names))}: only {allowed} are implemented")
    return names


def _nemotron_h(reader: ConfigReader) -> dict[str, Any]:
    types, eps = _layer_types(reader), reader.number("rms_norm_eps", maximum=1.0)
    mamba = mamba2(
        reader.count("hidden_size"),
        num_heads=reader.count("mamba_num_heads"),
        head_dim=reader.count("mamba_head_dim"),
        num_groups=reader.count("n_groups"),
        state_dim=reader.count("ssm_state_size"),
        num_taps=reader.count("conv_kernel"),
        eps=eps,
        bias=reader.flag("use_bias"),
        out_bias=reader.flag("use_bias"),
        conv_bias=reader.flag("use_conv_bias"),
    )
    if mamba.num_heads % mamba.num_groups:
        raise reader.refuse("mamba_num_heads", mamba.num_heads, f"a multiple of n_groups, {mamba.num_groups}")
    mixers = {_MAMBA: mamba, _FULL: None}
    fields = {
        "num_layers": len(types),
        "norm_eps": eps,
        "rope": None,
        "ropes": (None,) * len(types),
        "mixers": tuple(mixers.get(kind, AbsentBlock()) for kind in types),
        "mlp_layers": tuple(kind not in mixers for kind in types),
        "gated_mlp": False,
        "mlp_bias": reader.flag("mlp_bias"),
    }
    return {**fields, **_experts(reader, types)} if _MOE in types else fields


def _experts(reader: ConfigReader, types: list[str]) -> dict[str, Any]:
    groups = (reader.count("n_group"), reader.count("topk_group"))
    return {
        "num_experts": reader.count("n_routed_experts"),
        "num_experts_per_token": reader.count("num_experts_per_tok"),
        "expert_layers": tuple(kind == _MOE for kind in types),
        "expert_size": reader.count("moe_intermediate_size"),
        "expert_latent_size": reader.count("moe_latent_size", None) or 0,
        "shared_expert_size": reader.count("moe_shared_expert_intermediate_size"),
        "router_scores": "sigmoid",
        "router_correction": True,
        "router_groups": groups if groups[0] > 1 else None,
        "router_scale": reader.number("routed_scaling_factor"),
        "norm_top_k": reader.flag("norm_topk_prob"),
        "norm_top_k_eps": 1e-20,
    }


_OF_EXPERTS = (
    *("n_group", "topk_group", "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", "moe_latent_size"),
    *("moe_shared_expert_intermediate_size", "routed_scaling_factor", "norm_topk_prob"),
)  # which say nothing in a model without experts
NEMOTRON_H = Family(
    _NAMES,
    _nemotron_h,
    keys={"rms_norm_eps": "layer_norm_epsilon", "hidden_act": "mlp_hidden_act"},
    defaults={
        **sizes(131072, 4096, 21504, 4, 32, 8, head_dim=128, context=4096),
        "conv_kernel": 4,
        "hidden_act": "relu2",
        "layers_block_type": None,
        "mamba_head_dim": 64,
        "mamba_num_heads": 128,
        "moe_intermediate_size": 7688,
        "moe_latent_size": None,
        "moe_shared_expert_intermediate_size": 7688,
        "n_group": 1,
        "n_groups": 8,
        "n_routed_experts": 8,
        "norm_topk_prob": True,
        "num_experts_per_tok": 2,
        "rms_norm_eps": 1e-5,
        "routed_scaling_factor": 1.0,
        "ssm_state_size": 128,
        "topk_group": 1,
        "use_bias": False,
        "use_conv_bias": True,
    },
    nulls={"num_key_value_heads": None},
    aliases={
        "layer_types": "layers_block_type",
        "num_local_experts": "n_routed_experts",
        "mamba_n_groups": "n_groups",
        "mamba_d_conv": "conv_kernel",
        "mamba_conv_bias": "use_conv_bias",
    },
    expected={"mamba_hidden_act": "silu", "attention_bias": False, "mamba_ssm_cache_dtype": "float32"},
    harmless=(
        *_OF_EXPERTS,
        *("rope_theta", "partial_rotary_factor", "rope_parameters", "sliding_window"),  # which its attention lacks
        *("n_shared_experts", "moe_shared_expert_overlap", "num_logits_to_keep", "use_mamba_kernels", "chunk_size"),
        *("expand", "mamba_expand", "mamba_proj_bias", "mamba_chunk_size", "norm_eps", "residual_in_fp32"),
        *("time_step_min", "time_step_max", "time_step_floor", "time_step_limit", "rescale_prenorm_residual"),
        *("mamba_dt_min", "mamba_dt_max", "mamba_dt_limit", "mamba_dt_init_floor"),
        *("num_nextn_predict_layers", "mtp_layers_block_type", "mtp_hybrid_override_pattern", "hidden_dropout"),
    ),
    prefix="backbone.",
    further=("mtp.",),
    also=_ALSO,
)
