"""Gemma 1, 2 and 3, and the text part of Gemma 3's vision models.

All multiply their embeddings by the square root of the width and their norms by 1 + weight. From Gemma 2 on attention
and MLP have a norm on both sides, and some layers a window; Gemma 3 norms queries and keys, and its layers with a
window have a rope of their own.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tokenmill.model.config import ConfigReader, ModelConfig, QKNorm
from tokenmill.model.families import Family, InnerTextModel, sizes
from tokenmill.model.families.bert import ENCODES
from tokenmill.model.families.in_gguf import (
    CLASSIFIER,
    DENSE,
    FULL,
    SLIDING,
    GGUFKeys,
    InGGUF,
    has_bias,
    like_llama,
    norms_less_one,
    symmetric_window,
    window_metadata,
)
from tokenmill.model.families.llama import NAMES
from tokenmill.model.rope_config import Beside
from tokenmill.model.ropes_by_kind import local_rope, read_ropes
from tokenmill.value_reader import MAX_POSITIONS

NORMS_ON_BOTH_SIDES = {
    **NAMES,
    "layers.{i}.post_attention_layernorm.weight": "layers.{i}.attention_after_norm.weight",
    "layers.{i}.pre_feedforward_layernorm.weight": "layers.{i}.mlp_norm.weight",
    "layers.{i}.post_feedforward_layernorm.weight": "layers.{i}.mlp_after_norm.weight",
}
ROPES = {FULL: Beside("rope_theta", 1e6, scaled=True), SLIDING: Beside("rope_local_base_freq", 1e4, scaled=False)}
_TANH = {"gelu": "gelu_pytorch_tanh"}  # the first releases' name of the tanh approximation
_GEMMA2_SOFTCAPS = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}


def _shared(reader: ConfigReader) -> dict[str, Any]:
    return {
        "norm_unit_offset": True,
        "embedding_multiplier": reader.count("hidden_size") ** 0.5,
        **reader.attention_bias(),
    }


def _gemma(reader: ConfigReader) -> dict[str, Any]:
    """Read Gemma 1. transformers 4 read `hidden_activation` where both keys were there, transformers 5 `hidden_act`."""
    activation = _TANH.get(reader.text("hidden_act"), reader.text("hidden_act"))
    other = reader.text("hidden_activation", activation)
    if _TANH.get(other, other) != activation:
        raise reader.refuse("hidden_activation", other, f"hidden_act, which says the same, is {activation!r}")
    return _shared(reader) | {"activation": activation}


def _later(reader: ConfigReader, types: Sequence[str]) -> dict[str, Any]:
    """Read the keys that Gemma 2 and 3 have in common."""
    window = reader.window()
    return _shared(reader) | {
        "norm_placement": "both",
        "activation": reader.text("hidden_activation"),
        "attention_scale": reader.number("query_pre_attn_scalar") ** -0.5,
        "attention_softcap": reader.number("attn_logit_softcapping", None),
        "logit_softcap": reader.number("final_logit_softcapping", None),
        "windows": tuple(window if kind == SLIDING else None for kind in types),
    }


def _types(reader: ConfigReader, pattern: int) -> list[str]:
    """Read `layer_types`; without it, every layer has a window whose number the pattern does not divide."""
    layers = range(1, reader.num_layers() + 1)
    return reader.layer_types([SLIDING if layer % pattern else FULL for layer in layers], FULL, SLIDING)


def _gemma2(reader: ConfigReader) -> dict[str, Any]:
    return _later(reader, _types(reader, 2))


def _gemma3(reader: ConfigReader) -> dict[str, Any]:
    reader.expect("attn_logit_softcapping", None)  # transformers leaves it out of this family's attention
    pattern = reader.count("_sliding_window_pattern", reader.count("sliding_window_pattern", 6))
    types = _types(reader, pattern)
    ropes = read_ropes(reader, ROPES)
    each = tuple(ropes[kind] for kind in types)
    fields = _later(reader, types) | {"qk_norm": QKNorm(), "rope": ropes[FULL], "ropes": each}
    if not reader.flag("use_bidirectional_attention", False):
        return fields
    windows = (window and window // 2 + 1 for window in fields["windows"])  # it is divided between both sides
    return {**fields, **ENCODES, "windows": tuple(windows)}


_PATTERNS = {"gemma2": 2, "gemma3_text": 6}  # of llama.cpp: every second, every sixth layer has no window


def _read_gguf(keys: GGUFKeys) -> dict[str, Any]:
    return like_llama(keys) | has_bias(keys) | {"hidden_act": "gelu_pytorch_tanh"}


def _read_later_gguf(keys: GGUFKeys) -> dict[str, Any]:
    """Read Gemma 2 or 3, and EmbeddingGemma. Two facts stand in llama.cpp's code, not in its files: the layers'
    windows, and the scale.
    """
    config, is_gemma2 = like_llama(keys) | has_bias(keys), keys.family == "gemma2"
    del config["hidden_act"]
    layers = config["num_hidden_layers"]
    window = keys.count("attention.sliding_window", 4096 if is_gemma2 else 0, minimum=0, maximum=MAX_POSITIONS)
    config["layer_types"] = keys.layer_types(layers, _PATTERNS[keys.family]) if window else [FULL] * layers
    is_widest = layers == {"gemma2": 46, "gemma3_text": 62}[keys.family]  # of the 27B models
    width = config["hidden_size"] // config["num_attention_heads"] if is_widest else config["head_dim"]
    width = max(width, 1)  # 0 if there are more heads than hidden units, which is refused later
    if not math.isclose(keys.scale("attention.scale", width**-0.5), width**-0.5, rel_tol=1e-6):
        raise keys.refuse("attention.scale", keys.take("attention.scale"), f"llama.cpp computes with {width**-0.5}")
    config |= {"sliding_window": window or None, "query_pre_attn_scalar": width}
    if is_gemma2:
        return config | {key: keys.positive(key, default) for key, default in _GEMMA2_SOFTCAPS.items()}
    cap = None if keys.take("final_logit_softcapping", 0.0) == 0 else keys.positive("final_logit_softcapping")
    local = keys.positive("rope.freq_base_swa", 10000.0)
    config |= {"final_logit_softcapping": cap, "rope_local_base_freq": local}
    if keys.arch != _EMBEDDING:
        return config
    for name in DENSE:
        stored = keys.tensors.get(f"{name}.weight")
        for side, size in zip(("out", "in"), (None, None) if stored is None else stored.shape, strict=False):
            keys.expect(f"{name}_feat_{side}", size)
    return config | {"use_bidirectional_attention": True}


def _metadata(model: ModelConfig) -> dict[str, Any]:
    """Make the keys of Gemma 2 or 3, or of EmbeddingGemma."""
    caps = {"attn_logit_softcapping": model.attention_softcap, "final_logit_softcapping": model.logit_softcap}
    pairs = {key: value for key, value in caps.items() if value is not None}
    local = local_rope(model)
    pairs |= {} if local is None else {"rope.freq_base_swa": local.theta}
    if model.both_ways:
        return pairs | symmetric_window(model.windows) | {"general.architecture": _EMBEDDING}
    return pairs | window_metadata(model.windows, _PATTERNS[model.family])


_EMBEDDING = "gemma-embedding"
_STORED = norms_less_one()
_TIED = {"eos_token_id": 1, "tie_word_embeddings": True}
_SMALL = sizes(256000, 2304, 9216, 26, 8, 4, head_dim=256, context=8192)
_DEFAULTS = {
    **_TIED,
    **_SMALL,
    **_GEMMA2_SOFTCAPS,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}
_SEEN = "vision_config mm_tokens_per_image boi_token_index eoi_token_index image_token_index".split()

GEMMA = Family(
    NAMES,
    _gemma,
    defaults={
        **_TIED,
        **sizes(256000, 3072, 24576, 28, 16, 16, head_dim=256, context=8192),
        "hidden_act": "gelu_pytorch_tanh",
    },
    gguf=InGGUF("gemma", _STORED, _read_gguf, needs=("no o_bias", "tied head")),
)
GEMMA2 = Family(
    NORMS_ON_BOTH_SIDES,
    _gemma2,
    defaults=_DEFAULTS,
    nulls=dict.fromkeys(_GEMMA2_SOFTCAPS),
    harmless=("cache_implementation", "hidden_act"),  # the latter stands beside hidden_activation, which counts
    gguf=InGGUF(
        "gemma2", _STORED, _read_later_gguf, _metadata, needs=("no o_bias", "tied head"), windows=lambda _: True
    ),
)
GEMMA3 = replace(
    GEMMA2,
    read=_gemma3,
    defaults={
        **_DEFAULTS,
        **dict.fromkeys(_GEMMA2_SOFTCAPS),
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
        "rope_local_base_freq": 1e4,
        "rope_theta": 1e6,
    },
    nulls={},
    gguf=InGGUF(
        "gemma3",
        _STORED,
        _read_later_gguf,
        _metadata,
        ("rope_freqs.weight", *CLASSIFIER, *(f"{name}.weight" for name in DENSE)),
        needs=("no o_bias",),
        windows=lambda _: True,
        encoder=_EMBEDDING,
    ),
)
GEMMA3_VISION = replace(
    GEMMA3,
    gguf=None,
    text=InnerTextModel(
        ("gemma3_text",),
        untied_by_null=True,
        ignored=(*_SEEN, "boi_token_id", "eoi_token_id", "image_token_id"),
    ),
)  # fmt: skip
