"""Nemotron-H and Nemotron 3 of NVIDIA: a layer is one mixer or one MLP, behind one norm. Mixers are Mamba 2, or
attention without rope; MLPs have relu² and no gate, alone or as experts.

transformers brings a head's step in Mamba 2 up to time_step_min where it computes several tokens at once on a CPU, and
not where it computes one. The kernels of training and llama.cpp have no such minimum, nor has tokenmill.
"""

from typing import Any

from tokenmill.errors import CheckpointError
from tokenmill.model.config import MAX_LAYERS, ConfigReader, ModelConfig
from tokenmill.model.families import Family, sizes
from tokenmill.model.families.hybrids import KV_HEADS, count_blocks, kv_heads
from tokenmill.model.families.in_gguf import PLAIN_MLP, QKV, GGUFKeys, InGGUF, expert_metadata
from tokenmill.model.families.mamba2 import IN_GGUF, mamba_names, read_ssm, ssm_metadata
from tokenmill.model.families.mixers_of import mixer_of
from tokenmill.model.mixers.absent import AbsentBlock
from tokenmill.model.mixers.mamba2 import Mamba2Block, mamba2
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
_STORED = {
    "token_embd.weight": "embedding.weight",
    "output_norm.weight": "norm.weight",
    "output.weight": "head.weight",
    "blk.{i}.attn_norm.weight": "layers.{i}.attention_norm.weight",
    "blk.{i}.attn_norm{p}": "layers.{i}.mlp_norm{p}",
    **IN_GGUF,
    **QKV,
    "blk.{i}.attn_output.weight": "layers.{i}.attention.out.weight",
    **PLAIN_MLP,
    "blk.{i}.ffn_gate_inp.weight": _OURS + "router.weight",
    "blk.{i}.exp_probs_b.bias": _OURS + "correction",
    "blk.{i}.ffn_latent_down.weight": _OURS + "latent_in.weight",
    "blk.{i}.ffn_latent_up.weight": _OURS + "latent_out.weight",
    "blk.{i}.ffn_up_exps.weight[{e}]": _OURS + "experts.{e}.up.weight",
    "blk.{i}.ffn_down_exps.weight[{e}]": _OURS + "experts.{e}.down.weight",
    "blk.{i}.ffn_up_shexp.weight": _OURS + "shared.up.weight",
    "blk.{i}.ffn_down_shexp.weight": _OURS + "shared.down.weight",
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
        num_taps=reader.count("conv_kernel", minimum=2),
        eps=eps,
        bias=reader.flag("use_bias"),
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
        "tie_embeddings": False,  # whatever a config says: its class ties nothing
        "mlp_bias": reader.flag("mlp_bias"),
    }
    fields |= _experts(reader, types) if _MOE in types else {}
    if _MLP not in types and _MOE in types:
        reader.read.add("intermediate_size")  # which no layer has
        fields["intermediate_size"] = fields["expert_size"]
    return fields


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
        "router_groups": (*groups, 2) if groups[0] > 1 else None,
        "router_scale": reader.number("routed_scaling_factor"),
        "norm_top_k": reader.flag("norm_topk_prob"),
        "norm_top_k_eps": 1e-20,
    }


_GROUPS = {"n_group": "expert_group_count", "topk_group": "expert_group_used_count"}


def _read_gguf(keys: GGUFKeys) -> dict[str, Any]:
    keys.read.update(key for key in keys.values if key.startswith(keys.name("rope.")))  # which its attention lacks
    num_layers, blocks = count_blocks(keys)
    transforms, attends = (keys.layers_with(key, blocks) for key in ("feed_forward_length", KV_HEADS))
    experts = _read_experts(keys) if keys.take("expert_count", 0) else {}
    mlp = _MOE if experts else _MLP
    types = [mlp if has else _FULL if attends[layer] else _MAMBA for layer, has in enumerate(transforms)]
    sizes, ssm = keys.sizes(), read_ssm(keys)
    return experts | {
        "model_type": keys.family,
        **sizes,
        "num_hidden_layers": num_layers,
        "layers_block_type": types[:num_layers],
        "num_key_value_heads": keys.count(KV_HEADS),
        "head_dim": keys.head_dim(sizes["hidden_size"] // sizes["num_attention_heads"]),
        "layer_norm_epsilon": keys.positive(
            "attention.layer_norm_rms_epsilon", keys.positive("attention.layer_norm_epsilon")
        ),
        "mamba_num_heads": ssm["num_heads"],
        "mamba_head_dim": ssm["head_dim"],
        "n_groups": ssm["num_groups"],
        "ssm_state_size": ssm["state_dim"],
        "conv_kernel": ssm["num_taps"],
        "use_conv_bias": keys.has("ssm_conv1d.bias"),
        "mlp_bias": keys.has("ffn_up.bias"),
    }


def _read_experts(keys: GGUFKeys) -> dict[str, Any]:
    keys.expect("expert_gating_func", 2, 0)  # llama.cpp computes a sigmoid, whatever this key says
    keys.take("expert_shared_count", None)  # whose width is told together
    return {
        **keys.experts("n_routed_experts"),
        "moe_intermediate_size": keys.expert_width(),
        "moe_latent_size": keys.count("moe_latent_size", 0, minimum=0) or None,
        "moe_shared_expert_intermediate_size": keys.count("expert_shared_feed_forward_length"),
        "norm_topk_prob": keys.flag("expert_weights_norm", False),
        "routed_scaling_factor": keys.scale("expert_weights_scale"),
        **{name: keys.count(key, 1, minimum=0) or 1 for name, key in _GROUPS.items()},
    }


def _metadata(model: ModelConfig) -> dict[str, Any]:
    width = model.expert_size or model.intermediate_size
    block = mixer_of(model, Mamba2Block)
    pairs = {
        "feed_forward_length": [width if has else 0 for has in model.mlp_layers],
        **kv_heads(model),
        "attention.layer_norm_epsilon": model.norm_eps,  # llama.cpp wants both
        "rope.scaling.finetuned": False,
        **(ssm_metadata(block) if block else {}),
    }
    if not model.num_experts:
        return pairs
    groups = dict(zip(_GROUPS.values(), model.router_groups or (1, 1), strict=False))
    latent = {"moe_latent_size": model.expert_latent_size} if model.expert_latent_size else {}
    return {
        **pairs,
        **expert_metadata(model),
        **groups,
        **latent,
        "general.architecture": "nemotron_h_moe",
        "expert_gating_func": 2,  # sigmoid
        "expert_shared_count": 1,
        "expert_weights_norm": model.norm_top_k,
        "expert_weights_scale": model.router_scale,
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
        "tie_word_embeddings",  # its class has no tied weights
        *("rope_theta", "partial_rotary_factor", "rope_parameters", "sliding_window"),  # which its attention lacks
        *("n_shared_experts", "moe_shared_expert_overlap", "num_logits_to_keep", "use_mamba_kernels", "chunk_size"),
        *("expand", "mamba_expand", "mamba_proj_bias", "mamba_chunk_size", "norm_eps", "residual_in_fp32"),
        *("time_step_min", "time_step_max", "time_step_floor", "time_step_limit", "rescale_prenorm_residual"),
        *("mamba_dt_min", "mamba_dt_max", "mamba_dt_limit", "mamba_dt_init_floor"),
        *("num_nextn_predict_layers", "mtp_layers_block_type", "mtp_hybrid_override_pattern", "hidden_dropout"),
    ),
    prefix="backbone.",
    further=("mtp.",),
    gguf=InGGUF(
        "nemotron_h",
        _STORED,
        _read_gguf,
        _metadata,
        needs=("no state bias", "conv bias", "no expert bias"),
        further=True,
        with_experts="nemotron_h_moe",
    ),
    also=_ALSO,
)
