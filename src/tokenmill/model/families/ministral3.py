"""Ministral 3 and Devstral 2 of Mistral AI: Mistral with YaRN, and queries that grow with their position.

It is published as a model that sees; mistral3.py reads such a model.
"""

from collections.abc import Mapping
from typing import Any

from tokenmill.errors import CheckpointError
from tokenmill.model.config import ConfigReader, ModelConfig
from tokenmill.model.families import Family, sizes
from tokenmill.model.families.in_gguf import GGUFKeys, InGGUF, like_llama, paired, window_metadata
from tokenmill.model.families.llama import NAMES
from tokenmill.model.rope_config import default_rope
from tokenmill.value_reader import MAX_POSITIONS, ValueReader

# The values that the class takes where a config says nothing.
_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale_all_dim": 1.0,
    "mscale": 1.0,
    "llama_4_scaling_beta": 0.1,
}


def read_temperature(reader: ConfigReader, default: Mapping[str, Any]) -> tuple[float, int] | None:
    """Read the temperature that stands among the rope parameters. default: these, where the config has none."""
    default_rope(reader, default)
    key = "rope_scaling" if reader.inside("rope_scaling").values else "rope_parameters"
    values = reader.inside(key).values
    rope = ValueReader(values, "config.json: rope parameters", CheckpointError)
    # Devstral 2 has 0 there, which makes all positions equal.
    beta = 0.0 if rope.take("llama_4_scaling_beta") == 0 else rope.number("llama_4_scaling_beta")
    length = rope.count("original_max_position_embeddings", maximum=MAX_POSITIONS)
    # max_position_embeddings repeats the key outside.
    others = {name: value for name, value in values.items() if name not in (*rope.read, "max_position_embeddings")}
    reader.values = {**reader.values, key: {**others, "original_max_position_embeddings": length}}
    return (beta, length) if beta else None


def _ministral3(reader: ConfigReader) -> dict[str, Any]:
    return {"attention_temperature": read_temperature(reader, _ROPE), "windows": (reader.window(),)}


def _read_gguf(keys: GGUFKeys) -> dict[str, Any]:
    """Read Ministral 3, or Mistral where there is neither YaRN nor a temperature."""
    config, beta = like_llama(keys), keys.take("attention.temperature_scale", 0.0)
    window = keys.window()
    multiplier = keys.take("rope.scaling.yarn_log_multiplier", 0.0)
    if not beta and keys.take("rope.scaling.type", "none") != "yarn":
        return config | {"model_type": "mistral", "sliding_window": window}
    rope = {"llama_4_scaling_beta": keys.positive("attention.temperature_scale") if beta else 0}
    if multiplier:
        rope |= {"mscale": 1.0, "mscale_all_dim": keys.positive("rope.scaling.yarn_log_multiplier")}
    return config | {"sliding_window": window, "rope_scaling": rope}


def _metadata(model: ModelConfig) -> dict[str, Any]:
    beta, _ = model.attention_temperature or (0.0, 0)
    numbers = {} if model.rope is None else dict(model.rope.scaling)
    is_level = numbers.get("attention_factor") == 1.0
    pairs = {"attention.temperature_scale": beta, "rope.scaling.yarn_log_multiplier": 1.0 if is_level else 0.0}
    return {key: value for key, value in pairs.items() if value} | window_metadata(model.windows, 0)


MINISTRAL3 = Family(
    NAMES,
    _ministral3,
    defaults={**sizes(131072, 4096, 14336, 34, 32, 8, head_dim=128, context=262144), "rms_norm_eps": 1e-5},
    gguf=InGGUF("mistral3", paired(), _read_gguf, _metadata, yarn=("beta_fast", "beta_slow", "attention_factor")),
)
