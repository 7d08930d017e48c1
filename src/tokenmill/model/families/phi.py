"""Phi of Microsoft. Phi-3 and Phi-4 are Llama with merged matrices, and LongRoPE where their context is long.
Phi-3.5-MoE has LayerNorm, and two experts for each token, each of which a softmax of its own weighs.

Phi-1 and Phi-2 have attention and MLP side by side, both reading one LayerNorm, and biases everywhere.
"""

from typing import Any

from tokenmill.model.blocks import Projection
from tokenmill.model.config import ConfigReader, ModelConfig, QKNorm
from tokenmill.model.families import Family, sizes
from tokenmill.model.families.described import gated_mlp
from tokenmill.model.families.in_gguf import GGUFKeys, InGGUF, fused_qkv, has_bias, like_llama, plain_mlp
from tokenmill.model.families.llama import MIXTRAL, NAMES
from tokenmill.model.families.long_rope_gguf import LISTS, long_rope_metadata, read_long_rope
from tokenmill.model.mixture import ExpertsBlock

_PHI3_NAMES = {
    **{name: target for name, target in NAMES.items() if ":" not in target and "_norm." not in name},
    "layers.{i}.self_attn.qkv_proj.weight": "layers.{i}.attention.qkv.weight",
    "layers.{i}.mlp.gate_up_proj.weight": "layers.{i}.mlp.up.weight",  # gate, then up
}
_MOE_NAMES = {
    **{name: target for name, target in MIXTRAL.names.items() if not name.endswith("norm.weight")},
    "layers.{i}.input_layernorm{p}": "layers.{i}.attention_norm{p}",
    "layers.{i}.post_attention_layernorm{p}": "layers.{i}.mlp_norm{p}",
    "norm{p}": "norm{p}",
    "lm_head.weight": "head.weight",
    "lm_head.bias": "head.bias",
}
_PHI_NAMES = {
    "embed_tokens.weight": "embedding.weight",
    "layers.{i}.input_layernorm{p}": "layers.{i}.attention_norm{p}",
    **{name: target for name, target in NAMES.items() if "attention.qkv" in target},
    "layers.{i}.self_attn.q_layernorm{p}": "layers.{i}.attention.q_norm{p}",
    "layers.{i}.self_attn.k_layernorm{p}": "layers.{i}.attention.k_norm{p}",
    "layers.{i}.self_attn.dense{p}": "layers.{i}.attention.out{p}",
    "layers.{i}.mlp.fc1{p}": "layers.{i}.mlp.up{p}",
    "layers.{i}.mlp.fc2{p}": "layers.{i}.mlp.down{p}",
    "final_layernorm{p}": "norm{p}",
    "lm_head.weight": "head.weight",
    "lm_head.bias": "head.bias",
}


def _phi3(reader: ConfigReader) -> dict[str, Any]:
    older = reader.take("rope_scaling", None)
    if isinstance(older, dict) and older.get("rope_type", older.get("type")) in ("su", "yarn"):  # its first names
        reader.values = {**reader.values, "rope_scaling": {**older, "rope_type": "longrope", "type": "longrope"}}
    return {"windows": (reader.window(),)}


def _phi(reader: ConfigReader) -> dict[str, Any]:
    if reader.count("rotary_dim", None) is not None:  # of the first releases; transformers reads the factor alone
        reader.expect("rotary_dim", int(reader.split_hidden() * reader.number("partial_rotary_factor", maximum=1.0)))
    return {
        "norm": "layer",
        "residual": "parallel",
        "shared_norm": True,
        "gated_mlp": False,
        "qk_norm": QKNorm(bias=True) if reader.flag("qk_layernorm") else None,
        **dict.fromkeys(("qkv_bias", "o_bias", "mlp_bias", "head_bias"), True),
    }


def _read_phi3_gguf(keys: GGUFKeys) -> dict[str, Any]:
    """Read Phi-3: 0 means no window."""
    config = like_llama(keys, rotates_all=False) | {"sliding_window": keys.window()}
    rope, context = read_long_rope(keys, config), config["max_position_embeddings"]
    if rope:
        config["rope_parameters"] = {**rope, "partial_rotary_factor": config["partial_rotary_factor"]}
    return config | {"original_max_position_embeddings": rope.pop("original_max_position_embeddings", context)}


def _phi3_metadata(model: ModelConfig) -> dict[str, Any]:
    return long_rope_metadata(model) | {"attention.sliding_window": model.windows[0] or 0}


def _phimoe(reader: ConfigReader) -> dict[str, Any]:
    reader.expect("num_experts_per_tok", 2)  # whatever it says, there are two in the code of the model
    hidden, num, layers = reader.count("hidden_size"), reader.count("num_local_experts"), reader.num_layers()
    expert = gated_mlp(hidden, reader.count("intermediate_size"), reader.text("hidden_act"))
    margin, router = reader.number("router_jitter_noise", maximum=1.0), Projection("router", hidden, (num,))
    _read_scale(reader)
    return {
        **reader.attention_bias(),
        "norm": "layer",
        "head_bias": reader.flag("lm_head_bias"),
        "windows": (reader.window(),),
        "num_experts": num,
        "num_experts_per_token": 2,
        "mlps": (ExpertsBlock(router, expert, num, 2, normalise=False, margin=margin),) * layers,
    }


def _read_scale(reader: ConfigReader) -> None:
    """Read the factors of a LongRoPE on cosines and sines, for short and for long texts, which must be equal.

    A long text has its own list of divisors, as in Microsoft's code; transformers 5.24 divides by the short one.
    """
    key = "rope_scaling" if reader.inside("rope_scaling").values else "rope_parameters"
    given = reader.inside(key)
    short, long = (given.number(f"{length}_mscale", None) for length in ("short", "long"))
    if short != long:
        raise given.refuse("long_mscale", long, f"the same as short_mscale, {short}")
    if short is not None:
        given.expect("rope_type" if "rope_type" in given.values else "type", "longrope")
        others = {name: value for name, value in given.values.items() if not name.endswith("_mscale")}
        reader.values = {**reader.values, key: {**others, "attention_factor": short}}


def _read_phi_gguf(keys: GGUFKeys) -> dict[str, Any]:
    config = like_llama(keys, rotates_all=False, eps="layer_norm_eps")
    # llama.cpp's converter writes four times the width, whatever it is.
    config |= {"hidden_act": "gelu_new", "intermediate_size": keys.rows("blk.0.ffn_up.weight")}
    return config | has_bias(keys, "qk_layernorm", "attn_q_norm.weight")


PHI3 = Family(
    _PHI3_NAMES,
    _phi3,
    defaults={
        **sizes(32064, 3072, 8192, 32, 32, context=4096),
        "eos_token_id": 32000,
        "original_max_position_embeddings": 4096,
        "partial_rotary_factor": 1.0,
        "rms_norm_eps": 1e-5,
    },
    expected={
        "attention_bias": False,
        "full_attn_mod": 1,
        "interpolate_factor": 1,
        "lm_head_bias": False,
        "mlp_bias": False,
    },
    gguf=InGGUF(
        "phi3",
        fused_qkv(plain_mlp()),
        _read_phi3_gguf,
        _phi3_metadata,
        needs=("square",),
        ignored=LISTS,
    ),
)
PHI = Family(
    _PHI_NAMES,
    _phi,
    keys={"rms_norm_eps": "layer_norm_eps"},
    defaults={
        **sizes(51200, 2048, 8192, 24, 32),
        "hidden_act": "gelu_new",
        "partial_rotary_factor": 0.5,
        "qk_layernorm": False,
        "rms_norm_eps": 1e-5,
    },
    harmless=("attention_bias",),  # its matrices have biases in any case
    gguf=InGGUF("phi2", plain_mlp(), _read_phi_gguf, needs=("own head", "no qk_norm", "square")),
)
PHIMOE = Family(
    _MOE_NAMES,
    _phimoe,
    defaults={
        **sizes(32064, 4096, 6400, 32, 32, 8, context=131072),
        "lm_head_bias": False,
        "num_experts_per_tok": 2,
        "num_local_experts": 16,
        "original_max_position_embeddings": None,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "router_jitter_noise": 0.01,
    },
    nulls={"num_key_value_heads": None},
    harmless=("input_jitter_noise",),  # of training
    also={**MIXTRAL.also, "layers.{i}.mlp.router.weight": "layers.{i}.mlp.router.weight"},
)
