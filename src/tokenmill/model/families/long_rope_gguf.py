"""LongRoPE in llama.cpp's files: tensors hold its divisors, keys its trained length and its factor."""

from typing import Any

from tokenmill.model.config import ModelConfig
from tokenmill.model.families.in_gguf import GGUFKeys
from tokenmill.value_reader import MAX_POSITIONS

LISTS = ("rope_factors_long.weight", "rope_factors_short.weight")
"""The tensors of divisors, for long and for short texts."""


def read_long_rope(keys: GGUFKeys, config: dict[str, Any]) -> dict[str, Any]:
    """Read the rope parameters; none where the file does not have both lists. config: has the context and the base."""
    context = config["max_position_embeddings"]
    original = keys.count("rope.scaling.original_context_length", context, maximum=MAX_POSITIONS)
    long, short = (keys.rope_lists.get(name) for name in LISTS)
    if long is None or short is None:
        return {}
    return {
        "rope_type": "longrope",
        "rope_theta": config["rope_theta"],
        "original_max_position_embeddings": original,
        "attention_factor": keys.positive("rope.scaling.attn_factor", 1.0),
        "long_factor": list(long),
        "short_factor": list(short),
    }


def long_rope_metadata(model: ModelConfig) -> dict[str, Any]:
    """Make the keys of the trained length, which is the context without LongRoPE, and of the factor."""
    numbers = {} if model.rope is None else dict(model.rope.scaling)
    original = numbers.get("original_max_position_embeddings", model.max_position_embeddings)
    factor = {"rope.scaling.attn_factor": numbers["attention_factor"]} if "long_factor" in numbers else {}
    return {"rope.scaling.original_context_length": original, **factor}
