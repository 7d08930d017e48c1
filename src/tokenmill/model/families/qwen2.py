"""Qwen 2 and 2.5: Llama with biases on Q, K and V, and a window on its upper layers where the config asks for it."""

from tokenmill.errors import CheckpointError
from tokenmill.model.config import ConfigReader, ModelConfig
from tokenmill.model.families import Family
from tokenmill.model.families.llama import NAMES, read_shared

__all__ = ["FAMILY", "read_windows"]


def read_windows(reader: ConfigReader) -> tuple[int | None, ...]:
    """One window per layer, from `layer_types` or from `max_window_layers`."""
    num_layers = reader.count("num_hidden_layers")
    enabled = reader.expect("use_sliding_window", [True, False], False)
    window, lower = reader.take("sliding_window", 4096), reader.take("max_window_layers", 28)
    kinds = {"full_attention": None, "sliding_attention": window if enabled else None}
    default = ["full_attention"] * min(lower, num_layers) + ["sliding_attention"] * max(num_layers - lower, 0)
    types = reader.take("layer_types", default)
    unknown = sorted(set(types) - set(kinds))
    if unknown or len(types) != num_layers:
        raise CheckpointError(f"config.json: layer_types must be {num_layers} of {', '.join(kinds)}; it is {types}")
    return tuple(kinds[kind] for kind in types)


def _read(reader: ConfigReader) -> ModelConfig:
    return read_shared(reader, qkv_bias=True, windows=read_windows(reader))


FAMILY = Family(_read, NAMES, prefix="model.")
