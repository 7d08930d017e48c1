"""Nemotron and Minitron of NVIDIA, AFM of Arcee, and Apertus: Llama with an MLP of one matrix in and one out.

Nemotron has LayerNorm whose weights are stored less 1, and rotates a part of each head. Apertus has a learned
activation, and norms of Q and K.
"""

import math
from typing import Any

from tokenmill.errors import CheckpointError
from tokenmill.model.config import ConfigReader, ModelConfig, QKNorm
from tokenmill.model.families import Family, sizes
from tokenmill.model.families.in_gguf import GGUFKeys, InGGUF, has_bias, like_llama, norms_less_one, paired, plain_mlp
from tokenmill.model.families.llama import NAMES
from tokenmill.model.rope_config import default_rope
from tokenmill.value_reader import brief

_PLAIN_MLP = {
    **{name: target for name, target in NAMES.items() if ".mlp." not in name},
    "layers.{i}.mlp.up_proj{p}": "layers.{i}.mlp.up{p}",
    "layers.{i}.mlp.down_proj{p}": "layers.{i}.mlp.down{p}",
}
_NEMOTRON_NAMES = {
    **{name: target for name, target in _PLAIN_MLP.items() if "norm" not in name},
    "layers.{i}.input_layernorm{p}": "layers.{i}.attention_norm{p}",
    "layers.{i}.post_attention_layernorm{p}": "layers.{i}.mlp_norm{p}",
    "norm{p}": "norm{p}",
}
_APERTUS_NAMES = {
    **{name: target for name, target in _PLAIN_MLP.items() if "layernorm" not in name},
    "layers.{i}.attention_layernorm.weight": "layers.{i}.attention_norm.weight",
    "layers.{i}.feedforward_layernorm.weight": "layers.{i}.mlp_norm.weight",
    "layers.{i}.mlp.act_fn.alpha_p": "layers.{i}.mlp.act.alpha_p",
    "layers.{i}.mlp.act_fn.alpha_n": "layers.{i}.mlp.act.alpha_n",
}
_APERTUS_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 12e6,
    "factor": 8.0,
    "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}


def _arcee(reader: ConfigReader) -> dict[str, Any]:
    return {"gated_mlp": False, **reader.attention_bias(), "mlp_bias": reader.flag("mlp_bias")}


def _nemotron(reader: ConfigReader) -> dict[str, Any]:
    return {**_arcee(reader), "norm": "layer", "norm_unit_offset": True}


def _apertus(reader: ConfigReader) -> dict[str, Any]:
    default_rope(reader, _APERTUS_ROPE)
    return {**_arcee(reader), "qk_norm": QKNorm()}


def _read_arcee_gguf(keys: GGUFKeys) -> dict[str, Any]:
    config = like_llama(keys) | has_bias(keys) | has_bias(keys, "mlp_bias", "ffn_up.bias")
    return config | {"hidden_act": "relu2"}


def _read_nemotron_gguf(keys: GGUFKeys) -> dict[str, Any]:
    keys.take("attention.layer_norm_rms_epsilon", None)  # written beside the epsilon that counts
    config = like_llama(keys, rotates_all=False, eps="layer_norm_eps")
    config["norm_eps"] = config.pop("layer_norm_eps")
    return config | has_bias(keys) | has_bias(keys, "mlp_bias", "ffn_up.bias") | {"hidden_act": "relu2"}


NEMOTRON = Family(
    _NEMOTRON_NAMES,
    _nemotron,
    keys={"rms_norm_eps": "norm_eps"},
    defaults={
        **sizes(256000, 6144, 24576, 32, 48, context=4096),
        "eos_token_id": 3,
        "hidden_act": "relu2",
        "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1e-5,
    },
    harmless=("kv_channels",),  # NVIDIA's name of head_dim, which transformers does not read
    gguf=InGGUF("nemotron", norms_less_one(plain_mlp()), _read_nemotron_gguf, needs=("own head", "square")),
)
ARCEE = Family(
    _PLAIN_MLP,
    _arcee,
    defaults={
        **sizes(32000, 2560, 18432, 32, 32, context=4096),
        "eos_token_id": 128001,
        "hidden_act": "relu2",
        "rms_norm_eps": 1e-5,
    },
    gguf=InGGUF("arcee", paired(plain_mlp()), _read_arcee_gguf, needs=("no o_bias", "no mlp_bias")),
)


def _read_apertus_gguf(keys: GGUFKeys) -> dict[str, Any]:
    """Read Apertus. Numbers of the activation stand in the metadata; learned numbers are read as tensors."""
    config = like_llama(keys) | has_bias(keys)
    for name, value in _XIELU.items():
        given = keys.values.get(name, [value])
        if not isinstance(given, list) or not all(_is_close(entry, value) for entry in given):
            raise CheckpointError(f"{keys.where}: {name} = {brief(given)} is not implemented: only {value}")
    rope = {
        "rope_type": "default",
        "rope_theta": config["rope_theta"],
    }  # transformers takes another rope where a config has none
    return config | {"hidden_act": "xielu", "rope_parameters": rope}


def _is_close(entry: object, value: float) -> bool:
    """Tell whether an entry is that number, as a bfloat16 has it."""
    return isinstance(entry, int | float) and math.isclose(entry, value, rel_tol=0.01)


def _apertus_metadata(model: ModelConfig) -> dict[str, Any]:
    return {name: [value] * model.num_layers for name, value in _XIELU.items()}


_XIELU = {"xielu.beta": 0.5, "xielu.eps": -1e-6}
_APERTUS_STORED = {
    **plain_mlp(),
    "xielu.alpha_p[{i}]": "layers.{i}.mlp.act.alpha_p",
    "xielu.alpha_n[{i}]": "layers.{i}.mlp.act.alpha_n",
}
APERTUS = Family(
    _APERTUS_NAMES,
    _apertus,
    defaults={
        **sizes(131072, 4096, 14336, 32, 32, context=65536),
        "hidden_act": "xielu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 12e6,
    },
    gguf=InGGUF("apertus", _APERTUS_STORED, _read_apertus_gguf, _apertus_metadata, needs=("own head",)),
    expected={"mlp_bias": False, "post_norm": False, "qk_norm": True},
    # Numbers of the activation that are not learned.
    ignored=("layers.{i}.mlp.act_fn.beta", "layers.{i}.mlp.act_fn.eps"),
    constants={"alpha_p": {name.removeprefix("xielu."): value for name, value in _XIELU.items()}},
)
