"""Qwen 2, 2.5 and 3: Llama with a window on some layers where the config asks for it.

Qwen 2 has biases on Q, K and V. Qwen 3 has a norm on every query and key head instead, and a head_dim of its own.
"""

from typing import Any

from tokenmill.model.config import MAX_LAYERS, ConfigReader, QKNorm
from tokenmill.model.families import Family, InGGUF
from tokenmill.model.families.gguf_keys import like_llama
from tokenmill.model.families.llama import NAMES


def _windows(reader: ConfigReader) -> tuple[int | None, ...]:
    """One window per layer, from `layer_types` or from `max_window_layers`."""
    num_layers = reader.count("num_hidden_layers", maximum=MAX_LAYERS)
    enabled = reader.flag("use_sliding_window", False)
    window, lower = reader.window(4096), reader.count("max_window_layers", 28, minimum=0)
    kinds = {"full_attention": None, "sliding_attention": window if enabled else None}
    default = ["full_attention"] * min(lower, num_layers) + ["sliding_attention"] * max(num_layers - lower, 0)
    types = reader.layer_types(default, *kinds)
    return tuple(kinds[kind] for kind in types)


def _qwen3(reader: ConfigReader) -> dict[str, Any]:
    bias, head_dim = reader.flag("attention_bias", False), reader.count("head_dim", 128)
    return {"qkv_bias": bias, "o_bias": bias, "qk_norm": QKNorm(), "head_dim": head_dim, "windows": _windows(reader)}


QWEN2 = Family(
    NAMES, lambda reader: {"qkv_bias": True, "windows": _windows(reader)}, gguf=InGGUF("qwen2", read=like_llama)
)
QWEN3 = Family(NAMES, _qwen3, gguf=InGGUF("qwen3"))
