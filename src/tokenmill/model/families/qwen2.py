"""Qwen 2 and 2.5: Llama with biases on Q, K and V, and a window on its upper layers where the config asks for it."""

from tokenmill.model.config import MAX_LAYERS, ConfigReader, ModelConfig
from tokenmill.model.families import Family
from tokenmill.model.families.llama import NAMES, read_shared

__all__ = ["FAMILY", "read_windows"]


def read_windows(reader: ConfigReader) -> tuple[int | None, ...]:
    """One window per layer, from `layer_types` or from `max_window_layers`."""
    num_layers = reader.count("num_hidden_layers", maximum=MAX_LAYERS)
    enabled = reader.flag("use_sliding_window", False)
    window, lower = reader.window(4096), reader.count("max_window_layers", 28, minimum=0)
    kinds = {"full_attention": None, "sliding_attention": window if enabled else None}
    default = ["full_attention"] * min(lower, num_layers) + ["sliding_attention"] * max(num_layers - lower, 0)
    types = reader.entries("layer_types", str, default)
    if not set(types) <= set(kinds) or len(types) != num_layers:
        raise reader.refuse("layer_types", types, f"{num_layers} of {', '.join(kinds)}")
    return tuple(kinds[kind] for kind in types)


def _read(reader: ConfigReader) -> ModelConfig:
    return read_shared(reader, qkv_bias=True, windows=read_windows(reader))


FAMILY = Family(_read, NAMES, prefix="model.")
