"""Muse Glimmer of Meta: Gemma's norms on both sides of attention and MLP, a norm behind the embedding, and a gate on
the output of attention. Layers without a window have no rotary positions. It sees, too; its text part is read.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from tokenmill.errors import CheckpointError
from tokenmill.model.blocks import Norm
from tokenmill.model.config import ConfigReader, ModelConfig, QKNorm
from tokenmill.model.families import Family, InnerTextModel, sizes
from tokenmill.model.families.afmoe import GATES, GATES_IN_GGUF
from tokenmill.model.families.in_gguf import (
    FULL,
    SLIDING,
    GGUFKeys,
    InGGUF,
    like_llama,
    paired,
    window_metadata,
)
from tokenmill.model.families.in_gguf import NAMES as IN_GGUF
from tokenmill.model.families.llama import NAMES
from tokenmill.model.rope_config import rope_of
from tokenmill.value_reader import MAX_POSITIONS

_LAYER = "layers.{i}."
_NAMES = {
    **{name: target for name, target in NAMES.items() if ".q_proj" not in name and "_norm.w" not in name},
    **GATES,
    _LAYER + "post_attention_layernorm.weight": _LAYER + "attention_after_norm.weight",
    _LAYER + "pre_feedforward_layernorm.weight": _LAYER + "mlp_norm.weight",
    _LAYER + "post_feedforward_layernorm.weight": _LAYER + "mlp_after_norm.weight",
}


def _muse_glimmer(reader: ConfigReader) -> dict[str, Any]:
    reader.expect("attention_bias", False)
    layers, head_dim, window = reader.num_layers(), reader.head_dim(), reader.window()
    is_fourth = [(layers - 1 - layer) % 4 == 0 for layer in range(layers)]  # counted from the last one
    types = reader.layer_types([FULL if each else SLIDING for each in is_fourth], FULL, SLIDING)
    if window is None and SLIDING in types:
        raise reader.refuse("sliding_window", None, "a number of tokens")
    hidden, rope = reader.count("hidden_size"), rope_of(reader)
    epsilons = (reader.number("rms_norm_eps", maximum=1.0), reader.number("post_norm_eps", maximum=1.0))
    return {
        "attention_gate": True,
        "attention_scale": reader.number("qk_scale_factor") * head_dim**-0.5,
        "embedding_norm": "plain",
        "layer_norms": tuple(Norm(hidden, "rms", eps, unit_offset=True) for eps in epsilons),
        "logit_multiplier": reader.number("output_multiplier"),
        "logit_softcap": reader.number("final_logit_softcapping"),
        "norm_placement": "both",
        "norm_rounds_last": True,
        "qk_norm": QKNorm(weight=False),
        "rope": rope,
        "ropes": tuple(rope if each else None for each in _rotated(reader, rope.theta, is_fourth)),
        "windows": tuple(window if kind == SLIDING else None for kind in types),
    }


def _rotated(reader: ConfigReader, theta: float, is_fourth: list[bool]) -> list[bool]:
    """Read which layers have rotary positions. transformers rotates all of them by the one base of the model."""
    bases = reader.take("layer_rope_theta", [0.0 if each else theta for each in is_fourth])
    if not isinstance(bases, list) or len(bases) != len(is_fourth) or any(base not in (0, theta) for base in bases):
        raise reader.refuse("layer_rope_theta", bases, f"{theta:g}, or 0 for none, for each of {len(is_fourth)} layers")
    return [base != 0 for base in bases]


def _read_gguf(keys: GGUFKeys) -> dict[str, Any]:
    """Read Muse Glimmer. Norms of Q and K have weights in files alone: `qk_scale_factor` for Q, and 1 for K."""
    config, window = like_llama(keys), keys.count("attention.sliding_window", maximum=MAX_POSITIONS)
    layers, theta = config["num_hidden_layers"], config["rope_theta"]
    weights = {
        letter: {each for layer in range(layers) for each in keys.rope_lists.get(_NORM.format(layer, letter), [0.0])}
        for letter in "qk"
    }
    if len(weights["q"]) != 1 or not min(weights["q"]) > 0 or weights["k"] != {1.0}:
        raise CheckpointError(
            f"{keys.where}: the norms of Q must have one number for all weights, and the norms of K 1"
        )
    types = keys.layer_types(layers, 4)
    return config | {
        "hidden_activation": config.pop("hidden_act"),
        "final_logit_softcapping": keys.positive("final_logit_softcapping"),
        "layer_rope_theta": [theta if kind == SLIDING else 0 for kind in types],
        "layer_types": types,
        "output_multiplier": keys.positive("logit_scale"),
        "post_norm_eps": 1e-8,  # in llama.cpp's code
        "qk_scale_factor": float(str(np.float32(weights["q"].pop()))),
        "sliding_window": window,
    }


def _metadata(model: ModelConfig) -> dict[str, Any]:
    pairs = {"final_logit_softcapping": model.logit_softcap, "logit_scale": model.logit_multiplier}
    return pairs | window_metadata(model.windows)


def _lists(model: ModelConfig) -> dict[str, list[float]]:
    scale = (model.attention_scale or 0.0) * model.head_dim**0.5
    numbers = {"q": scale, "k": 1.0}
    return {
        _NORM.format(layer, letter): [number] * model.head_dim
        for layer in range(model.num_layers)
        for letter, number in numbers.items()
    }


_NORM, _NORMS = "blk.{}.attn_{}_norm.weight", ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
_PLUS_ONE = {f"blk.{{i}}.{name}{{p}}" for name in _NORMS}
_STORED = {
    **{name: target for name, target in paired().items() if ".attn_q{p}" not in name and name not in _PLUS_ONE},
    **{name.replace("{p}", ".weight"): IN_GGUF[name].replace("{p}", ".weight") + " | less one" for name in _PLUS_ONE},
    "blk.{i}.attn_gate.weight": GATES_IN_GGUF["blk.{i}.attn_gate.weight"],
    "blk.{i}.attn_q.weight": GATES_IN_GGUF["blk.{i}.attn_q.weight"] + " | pairs_to_halves",
}
MUSE_GLIMMER_TEXT = Family(
    _NAMES,
    _muse_glimmer,
    {"hidden_act": "hidden_activation"},
    norms_in_embedding=True,
    defaults={
        **sizes(202048, 6656, 19968, 52, 32, 2, head_dim=128, context=131072),
        "eos_token_id": 200001,
        "final_logit_softcapping": 20.0,
        "output_multiplier": 0.19611613513818404,
        "post_norm_eps": 1e-8,
        "qk_scale_factor": 3.87,
        "rms_norm_eps": 1e-5,
        "sliding_window": 2048,
    },
    gguf=InGGUF(
        "muse-glimmer",
        _STORED,
        _read_gguf,
        _metadata,
        ignored=tuple(_NORM.format("{i}", letter) for letter in "qk"),
        needs=("own head",),
        windows=lambda _: True,
        lists=_lists,
    ),
)
_SEEN = "vision_config image_token_id video_token_id out_hidden_size projector_hidden_size projector_hidden_act".split()
MUSE_GLIMMER = replace(
    MUSE_GLIMMER_TEXT, gguf=None, text=InnerTextModel(("muse_glimmer_text",), ignored=tuple(_SEEN), tied=False)
)
