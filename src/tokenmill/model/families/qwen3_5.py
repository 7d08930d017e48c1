"""Qwen 3.5, 3.6 and 3.8, dense and with experts, and Qwen3-Next: three layers with a gated delta net, then one with
attention, whose output is multiplied by a gate of its own.

Qwen3-Next stores the matrices of a delta net by heads of k: of each head the rows of q and k, then of its heads of v,
then of their z; b and a likewise. Vision models are read for their text part. A token has three positions there, of
which each turns a section of a head (M-RoPE); the three are equal for text, so that the sections say nothing. Layers
that predict further tokens (MTP) are not computed.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tokenmill.errors import ConfigError
from tokenmill.model.config import ConfigReader, ModelConfig, QKNorm
from tokenmill.model.families import Family, InnerTextModel, sizes
from tokenmill.model.families.hybrids import count_blocks
from tokenmill.model.families.in_gguf import (
    GGUFKeys,
    InGGUF,
    expert_metadata,
    like_llama,
    mlp_norm_after_attention,
    norms_less_one,
)
from tokenmill.model.families.llama import NAMES, PACKED_EXPERTS
from tokenmill.model.families.mixers_of import mixer_of
from tokenmill.model.families.mtp import BESIDE_MODEL, NUM_MTP
from tokenmill.model.families.qwen_moe import mixture, mlp_names
from tokenmill.model.mixers.delta_net import DeltaNetBlock, delta_net

_FULL, _LINEAR = "full_attention", "linear_attention"
_FILE, _OURS = "layers.{i}.linear_attn.", "layers.{i}.delta_net."
_SECTIONS = ("mrope_section", "mrope_interleaved")
_SEEN = tuple(f"{name}_id" for name in "image_token video_token vision_start_token vision_end_token".split())

_ATTENTION = {
    **NAMES,
    "layers.{i}.self_attn.q_proj{p}": "layers.{i}.attention.qkv{p}:q | gate before query",
    _FILE + "conv1d.weight": _OURS + "conv | depthwise",
    _FILE + "A_log": _OURS + "A_log",
    _FILE + "dt_bias": _OURS + "dt_bias",
    _FILE + "norm.weight": _OURS + "norm.weight",
    _FILE + "out_proj.weight": _OURS + "out.weight",
}
_NAMES = {
    **_ATTENTION,
    _FILE + "in_proj_qkv.weight": _OURS + "qkvz.weight:qkv",
    _FILE + "in_proj_z.weight": _OURS + "qkvz.weight:z",
    _FILE + "in_proj_b.weight": _OURS + "gates.weight:b",
    _FILE + "in_proj_a.weight": _OURS + "gates.weight:a",
}
_BY_HEADS = {
    **_ATTENTION,
    _FILE + "in_proj_qkvz.weight": _OURS + "qkvz.weight | qkvz by k heads",
    _FILE + "in_proj_ba.weight": _OURS + "gates.weight | gates by k heads",
}
_ROUTED = {
    "layers.{i}.mlp.gate.weight": "layers.{i}.mlp.router.weight",
    "layers.{i}.mlp.shared_expert_gate.weight": "layers.{i}.mlp.shared_gate.weight",
    **mlp_names("shared_expert", "shared"),
}
# llama.cpp has the heads of v in another order wherever they stand: see "tiled" in weights/transforms.py.
_STORED = {
    **norms_less_one(mlp_norm_after_attention()),
    "blk.{i}.attn_q{p}": "layers.{i}.attention.qkv{p}:q | gate before query",
    "blk.{i}.attn_qkv.weight": _OURS + "qkvz.weight:qkv | tiled after keys",
    "blk.{i}.attn_gate.weight": _OURS + "qkvz.weight:z | tiled",
    "blk.{i}.ssm_beta.weight": _OURS + "gates.weight:b | tiled",
    "blk.{i}.ssm_alpha.weight": _OURS + "gates.weight:a | tiled",
    "blk.{i}.ssm_conv1d.weight": _OURS + "conv | tiled after keys",
    "blk.{i}.ssm_a": _OURS + "A_log | tiled log of minus",
    "blk.{i}.ssm_dt.bias": _OURS + "dt_bias | tiled",
    "blk.{i}.ssm_norm.weight": _OURS + "norm.weight",
    "blk.{i}.ssm_out.weight": _OURS + "out.weight | tiled columns",
}
_STORED_NEXT = {
    **{name: target for name, target in _STORED.items() if not name.endswith(("ssm_alpha.weight", "ssm_beta.weight"))},
    "blk.{i}.attn_qkv.weight": _OURS + "qkvz.weight:qkv",
    "blk.{i}.attn_gate.weight": _OURS + "qkvz.weight:z",
    "blk.{i}.ssm_ba.weight": _OURS + "gates.weight | gates by k heads",
    "blk.{i}.ssm_conv1d.weight": _OURS + "conv",
    "blk.{i}.ssm_a": _OURS + "A_log | log of minus",
    "blk.{i}.ssm_dt.bias": _OURS + "dt_bias",
    "blk.{i}.ssm_out.weight": _OURS + "out.weight",
}
_PER_EXPERT = mlp_names("experts.{e}", "experts.{e}")


def _mixed(reader: ConfigReader) -> dict[str, Any]:
    """Read what all of them have: the mixers of the layers, and attention with a gate."""
    _drop_sections(reader)
    num_layers, interval = reader.num_layers(), reader.count("full_attention_interval")
    default = _layer_types(num_layers, interval)
    block = delta_net(
        reader.count("hidden_size"),
        num_k_heads=reader.count("linear_num_key_heads"),
        num_v_heads=reader.count("linear_num_value_heads"),
        key_dim=reader.count("linear_key_head_dim"),
        value_dim=reader.count("linear_value_head_dim"),
        num_taps=reader.count("linear_conv_kernel_dim", minimum=2),
        eps=reader.number("rms_norm_eps", maximum=1.0),
    )
    if block.num_v_heads % block.num_k_heads:
        heads = f"a multiple of linear_num_key_heads, {block.num_k_heads}"
        raise reader.refuse("linear_num_value_heads", block.num_v_heads, heads)
    types = reader.layer_types(default, _FULL, _LINEAR)
    return {
        **reader.attention_bias(),
        "attention_gate": True,
        "mixers": tuple(block if kind == _LINEAR else None for kind in types),
        "norm_unit_offset": True,
        "qk_norm": QKNorm(),
    }


def _layer_types(num_layers: int, interval: int) -> list[str]:
    return [_LINEAR if layer % interval else _FULL for layer in range(1, num_layers + 1)]


def _drop_sections(reader: ConfigReader) -> None:
    """Remove the sections of a head from the parameters of the rope."""
    for key in ("rope_parameters", "rope_scaling"):
        given = reader.values.get(key)
        if isinstance(given, Mapping):
            plain = {name: value for name, value in given.items() if name not in _SECTIONS}
            plain |= {name: "default" for name in ("type", "rope_type") if plain.get(name) == "mrope"}
            reader.values = {**reader.values, key: plain}


def _experts(reader: ConfigReader) -> dict[str, Any]:
    return {
        "num_experts": reader.count("num_experts"),
        "num_experts_per_token": reader.count("num_experts_per_tok"),
        "expert_size": reader.count("moe_intermediate_size"),
        "shared_expert_size": reader.count("shared_expert_intermediate_size"),
        "shared_expert_gate": True,
    }


def _qwen3_5_moe(reader: ConfigReader) -> dict[str, Any]:
    fields = {**_mixed(reader), **_experts(reader)}
    return {**fields, "intermediate_size": fields["expert_size"]}


def _qwen3_next(reader: ConfigReader) -> dict[str, Any]:
    shared = {"shared_expert_size": reader.count("shared_expert_intermediate_size"), "shared_expert_gate": True}
    return {**_mixed(reader), **mixture(reader), **shared}


def _read_gguf(keys: GGUFKeys) -> dict[str, Any]:
    keys.read.add(keys.name("rope.dimension_sections"))
    config = like_llama(keys, rotates_all=False)
    num_layers, blocks = count_blocks(keys)
    types = _layer_types(num_layers, keys.count("full_attention_interval", 4))
    given = keys.by_layer("attention.recurrent_layers", blocks)
    if given is not None:
        types = [_LINEAR if each else _FULL for each in given[:num_layers]]
    heads, width = keys.count("ssm.time_step_rank"), keys.count("ssm.state_size")
    keys.expect("ssm.inner_size", heads * width)  # a key and a value have as many numbers there
    return config | {
        "num_hidden_layers": num_layers,
        "layer_types": types,
        "linear_num_key_heads": keys.count("ssm.group_count"),
        "linear_num_value_heads": heads,
        "linear_key_head_dim": width,
        "linear_value_head_dim": width,
        "linear_conv_kernel_dim": keys.count("ssm.conv_kernel"),
    }


def _read_moe_gguf(keys: GGUFKeys) -> dict[str, Any]:
    keys.softmax_routing(True)
    width = keys.expert_width()
    keys.values = {keys.name("feed_forward_length"): width, **keys.values}  # no layer is without experts
    config = _read_gguf(keys) | keys.experts("num_experts")
    del config["intermediate_size"]
    return config | {
        "moe_intermediate_size": width,
        "shared_expert_intermediate_size": keys.count("expert_shared_feed_forward_length"),
    }


def _read_next_gguf(keys: GGUFKeys) -> dict[str, Any]:
    config = _read_moe_gguf(keys)
    return config | {"intermediate_size": keys.count("feed_forward_length"), "norm_topk_prob": True}


def _metadata(model: ModelConfig) -> dict[str, Any]:
    block = mixer_of(model, DeltaNetBlock)
    if block is None:
        raise ConfigError("model", model.family, "for a GGUF file, one that has a delta net in some layer")
    types = [_FULL if mixer is None else _LINEAR for mixer in model.mixers]
    intervals = [number for number in range(2, len(types) + 2) if types == _layer_types(len(types), number)]
    pairs = model.head_dim // 2 if model.rope is None else model.rope.dim // 2
    return expert_metadata(model) | {
        # Of three positions, which are one for text; llama.cpp wants them. Published are 11, 11 and 10 of 32 pairs.
        "rope.dimension_sections": [(pairs + 2) // 3, (pairs + 1) // 3, pairs // 3, 0],
        "full_attention_interval": intervals[0] if intervals else 4,  # which the list overrules
        "attention.recurrent_layers": [kind == _LINEAR for kind in types],
        "ssm.group_count": block.num_k_heads,
        "ssm.time_step_rank": block.num_v_heads,
        "ssm.state_size": block.key_dim,
        "ssm.inner_size": block.out.inputs,
        "ssm.conv_kernel": block.num_taps,
    }


def _next_metadata(model: ModelConfig) -> dict[str, Any]:
    return {key: value for key, value in _metadata(model).items() if key != "rope.dimension_sections"}


_DELTA = {
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "full_attention_interval": 4,
    "partial_rotary_factor": 0.25,
    "eos_token_id": None,
}
_MOE = {
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts": 256,
    "num_experts_per_tok": 8,
}
_EXPECTED = {"attn_output_gate": True, "mlp_only_layers": [], "mamba_ssm_dtype": "float32"}
_HARMLESS = ("mtp_num_hidden_layers", "mtp_use_dedicated_embeddings")
_KEYS = {NUM_MTP: "mtp_num_hidden_layers"}
QWEN3_5_TEXT = Family(
    _NAMES,
    _mixed,
    defaults={**sizes(248320, 4096, 12288, 32, 16, 4, head_dim=256, context=32768), **_DELTA},
    keys=_KEYS,
    expected=_EXPECTED,
    harmless=_HARMLESS,
    further=("mtp.",),
    mtp=BESIDE_MODEL,
    gguf=InGGUF("qwen35", _STORED, _read_gguf, _metadata, needs=("no o_bias",), further=True),
)
QWEN3_5_MOE_TEXT = Family(
    {**_NAMES, **_ROUTED, **_PER_EXPERT},
    _qwen3_5_moe,
    defaults={**sizes(248320, 2048, None, 40, 16, 2, head_dim=256, context=32768), **_DELTA, **_MOE},
    keys=_KEYS,
    expected=_EXPECTED,
    harmless=_HARMLESS,
    further=("mtp.",),
    mtp=BESIDE_MODEL,
    gguf=InGGUF("qwen35moe", _STORED, _read_moe_gguf, _metadata, needs=("no o_bias",), further=True),
    also=PACKED_EXPERTS,
)
QWEN3_NEXT = Family(
    {**NAMES, **_BY_HEADS, **_ROUTED, **_PER_EXPERT},
    _qwen3_next,
    defaults={
        **sizes(151936, 2048, 5632, 48, 16, 2, head_dim=256, context=32768),
        **_DELTA,
        **_MOE,
        "decoder_sparse_step": 1,
        "norm_topk_prob": True,
        "num_experts": 512,
        "num_experts_per_tok": 10,
    },
    further=("mtp.",),
    mtp=BESIDE_MODEL,
    gguf=InGGUF(
        "qwen3next",
        _STORED_NEXT,
        _read_next_gguf,
        _next_metadata,
        needs=("no o_bias",),
        further=True,
        older={"blk.{i}.ssm_in.weight": _OURS + "qkvz.weight | qkvz by k heads"},
    ),
    also=PACKED_EXPERTS,
)
_TEXT = InnerTextModel(("qwen3_5_text",), ignored=("vision_config", *_SEEN), tied=False)
QWEN3_5 = replace(QWEN3_5_TEXT, text=_TEXT)
QWEN3_5_MOE = replace(QWEN3_5_MOE_TEXT, text=replace(_TEXT, families=("qwen3_5_moe_text",)))
