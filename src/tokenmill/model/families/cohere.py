"""Command R, Command A and Aya of Cohere: attention and MLP side by side, both reading one LayerNorm without a bias.

They rotate neighbouring entries of a head, which is folded into the rows of Q and K here. Command R+ has for each head
of Q and K a norm with weights of its own. In Cohere 2 only the layers with a window have rotary positions.
"""

from typing import Any

from tokenmill.model.config import MAX_LAYERS, ConfigReader, ModelConfig, QKNorm
from tokenmill.model.families import Family, sizes
from tokenmill.model.families.glm import PAIRED_NAMES
from tokenmill.model.families.in_gguf import GGUFKeys, InGGUF, has_bias, like_llama, paired, window_metadata
from tokenmill.model.rope_config import rope_of

_NAMES = {
    **{name: target for name, target in PAIRED_NAMES.items() if "post_attention" not in name},
    "layers.{i}.self_attn.q_norm.weight": "layers.{i}.attention.q_norm.weight | pairs_to_halves of heads",
    "layers.{i}.self_attn.k_norm.weight": "layers.{i}.attention.k_norm.weight | pairs_to_halves of heads",
}


def _cohere(reader: ConfigReader) -> dict[str, Any]:
    return {
        "norm": "layer",
        "norm_bias": False,
        "residual": "parallel",
        "shared_norm": True,
        "logit_multiplier": reader.number("logit_scale"),
        "qk_norm": QKNorm("own") if reader.flag("use_qk_norm", False) else None,
        **reader.attention_bias(),
    }


def _cohere2(reader: ConfigReader) -> dict[str, Any]:
    head_dim, rope = reader.expect("head_dim", reader.split_hidden()), rope_of(reader)
    pattern = reader.count("sliding_window_pattern", 4, maximum=MAX_LAYERS)
    reader.expect("layer_switch", pattern)
    slides = ((layer + 1) % pattern != 0 for layer in range(reader.num_layers()))
    windows = reader.windows(reader.window(), slides)
    ropes = tuple(None if window is None else rope for window in windows)
    return {**_cohere(reader), "head_dim": head_dim, "windows": windows, "rope": rope, "ropes": ropes}


def _read_gguf(keys: GGUFKeys) -> dict[str, Any]:
    config = like_llama(keys, eps="layer_norm_eps") | has_bias(keys)
    return config | {"logit_scale": keys.positive("logit_scale", 1.0), "use_qk_norm": keys.has("attn_q_norm.weight")}


def _read_cohere2_gguf(keys: GGUFKeys) -> dict[str, Any]:
    """Read Cohere 2, of which every fourth layer has no window in llama.cpp's code."""
    config = _read_gguf(keys)
    window = keys.window()
    return config | {"sliding_window": window, "layer_types": keys.layer_types(config["num_hidden_layers"], 4)}


def _metadata(model: ModelConfig) -> dict[str, Any]:
    return {"logit_scale": model.logit_multiplier, **window_metadata(model.windows, 4)}


_KEYS = {"rms_norm_eps": "layer_norm_eps"}
_DEFAULTS = {
    **sizes(256000, 8192, 22528, 40, 64, context=8192),
    "eos_token_id": 255001,
    "logit_scale": 0.0625,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}
_OF_HEADS = " | pairs_to_halves of heads"
_STORED = {
    **paired(),
    "blk.{i}.attn_q_norm{p}": "layers.{i}.attention.q_norm{p}" + _OF_HEADS,
    "blk.{i}.attn_k_norm{p}": "layers.{i}.attention.k_norm{p}" + _OF_HEADS,
}
COHERE = Family(
    _NAMES,
    _cohere,
    _KEYS,
    {**_DEFAULTS, "rope_theta": 5e5, "use_qk_norm": False},
    nulls={"use_qk_norm": False},
    gguf=InGGUF("command-r", _STORED, _read_gguf, _metadata, needs=("tied head", "no o_bias", "square")),
)
COHERE2 = Family(
    _NAMES,
    _cohere2,
    _KEYS,
    {**_DEFAULTS, "sliding_window": 4096},
    expected={
        "order_of_interleaved_layers": "local_attn_first",
        "position_embedding_type": "rope_gptj",
        "rotary_pct": 1.0,
        "use_embedding_sharing": True,
        "use_gated_activation": True,
        "use_parallel_block": True,
        "use_qk_norm": False,
    },
    harmless=("cache_implementation", "use_parallel_embedding"),
    gguf=InGGUF(
        "cohere2",
        _STORED,
        _read_cohere2_gguf,
        _metadata,
        needs=("tied head", "no o_bias", "square"),
        windows=lambda _: True,
    ),
)
