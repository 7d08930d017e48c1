"""gpt-oss of OpenAI: experts in all layers, a sink for each head, a window on every other layer, and biases everywhere.

Its experts are stored [experts, inputs, outputs], with the rows of gate and up in turns.
"""

from typing import Any

from tokenmill.model.config import ConfigReader, ModelConfig
from tokenmill.model.families import Family, sizes
from tokenmill.model.families.in_gguf import GGUFKeys, InGGUF, like_llama, mlp_norm_after_attention, window_metadata
from tokenmill.model.families.llama import NAMES
from tokenmill.model.rope_config import default_rope

_EXPERTS, _OURS = "layers.{i}.mlp.experts.", "layers.{i}.mlp.experts.{e}."
_NAMES = {
    **{name: target for name, target in NAMES.items() if ".mlp." not in name},
    "layers.{i}.self_attn.sinks": "layers.{i}.attention.sinks",
    "layers.{i}.mlp.router{p}": "layers.{i}.mlp.router{p}",
    _EXPERTS + "gate_up_proj[{e}]": _OURS + "up.weight | transpose interleaved",
    _EXPERTS + "gate_up_proj_bias[{e}]": _OURS + "up.bias | interleaved",
    _EXPERTS + "down_proj[{e}]": _OURS + "down.weight | transpose",
    _EXPERTS + "down_proj_bias[{e}]": _OURS + "down.bias",
}
_ROPE = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


def _gpt_oss(reader: ConfigReader) -> dict[str, Any]:
    default_rope(reader, _ROPE)
    chosen = reader.count("num_experts_per_tok")
    reader.expect("experts_per_token", chosen)  # which repeats it in the published files
    return {
        **reader.attention_bias(),
        "windows": reader.windows(reader.window(), (layer % 2 == 0 for layer in range(reader.num_layers()))),
        "attention_sinks": True,
        "norm_rounds_last": True,
        "num_experts": reader.count("num_local_experts"),
        "num_experts_per_token": chosen,
        "router_bias": True,
        "expert_bias": True,
        "activation": reader.expect("hidden_act", "silu"),
        "swiglu": (reader.number("swiglu_alpha"), reader.number("swiglu_limit")),
    }


def _read_gguf(keys: GGUFKeys) -> dict[str, Any]:
    """Read gpt-oss. The bounds of YaRN's ramp are not rounded, as OpenAI has it; llama.cpp rounds them."""
    config = like_llama(keys)
    return config | {
        "sliding_window": keys.window(),
        "layer_types": keys.layer_types(config["num_hidden_layers"], 2),
        "attention_bias": keys.has("attn_q.bias"),
        **keys.experts(),
        "intermediate_size": keys.expert_width(),
        "rope_parameters": {"rope_type": "default", "rope_theta": config["rope_theta"]},
        "rope_scaling": {"truncate": False} if keys.take("rope.scaling.type", "none") == "yarn" else {},
    }


def _metadata(model: ModelConfig) -> dict[str, Any]:
    window = window_metadata(model.windows, 2)
    return {"expert_feed_forward_length": model.intermediate_size, **window}


GPT_OSS = Family(
    _NAMES,
    _gpt_oss,
    defaults={
        **sizes(201088, 2880, 2880, 36, 64, 8, head_dim=64, context=131072),
        "attention_bias": True,
        "eos_token_id": None,
        "num_experts_per_tok": 4,
        "num_local_experts": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 150000.0,
        "sliding_window": 128,
        "swiglu_alpha": 1.702,
        "swiglu_limit": 7.0,
    },
    aliases={"num_experts": "num_local_experts"},
    harmless=("initial_context_length",),  # it repeats a number of the rope parameters
    gguf=InGGUF(
        "gpt-oss",
        mlp_norm_after_attention(),
        _read_gguf,
        _metadata,
        needs=("biases", "own head"),
        windows=lambda _: True,
    ),
)
