"""Qwen 2, 2.5 and 3: Llama with a window on some layers where the config asks for it.

Qwen 2 has biases on Q, K and V. Qwen 3 has a norm on every query and key head instead, and a head_dim of its own.
"""

from typing import Any

from tokenmill.model.config import ConfigReader, QKNorm
from tokenmill.model.families import Family, sizes
from tokenmill.model.families.in_gguf import InGGUF, like_llama
from tokenmill.model.families.llama import NAMES


def _windows(reader: ConfigReader) -> tuple[int | None, ...]:
    """Read the window of each layer, from `layer_types` or from `max_window_layers`."""
    window, lower = reader.window(), reader.count("max_window_layers", minimum=0)
    slides = (layer >= lower for layer in range(reader.num_layers()))
    return reader.windows(window if reader.flag("use_sliding_window") else None, slides)


def _qwen3(reader: ConfigReader) -> dict[str, Any]:
    return {**reader.attention_bias(), "qk_norm": QKNorm(), "windows": _windows(reader)}


_DEFAULTS = {
    **sizes(151936, 4096, 22016, 32, 32, 32, context=32768),
    "eos_token_id": None,
    "max_window_layers": 28,
    "sliding_window": 4096,
    "use_sliding_window": False,
}
_NULLS = {"num_key_value_heads": None}
QWEN2 = Family(
    NAMES,
    lambda reader: {"qkv_bias": True, "windows": _windows(reader)},
    defaults=_DEFAULTS,
    nulls=_NULLS,
    gguf=InGGUF("qwen2", read=like_llama),
)
QWEN3 = Family(NAMES, _qwen3, defaults={**_DEFAULTS, "head_dim": 128}, nulls=_NULLS, gguf=InGGUF("qwen3"))
