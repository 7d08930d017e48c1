"""GGUF keys of hybrid models, in which some layers attend and the other layers keep a state."""

from typing import Any

from tokenmill.model.config import MAX_LAYERS, ModelConfig
from tokenmill.model.families.in_gguf import GGUFKeys

KV_HEADS = "attention.head_count_kv"
"""A list with a number for each layer: 0 for layers that do not attend."""


def kv_heads(model: ModelConfig) -> dict[str, Any]:
    """Make the key that says which layers attend."""
    return {KV_HEADS: [0 if mixer is not None else model.num_kv_heads for mixer in model.mixers]}


def count_blocks(keys: GGUFKeys) -> tuple[int, int]:
    """Count a file's layers, without and with the layers that predict further tokens."""
    blocks = keys.count("block_count", maximum=MAX_LAYERS)
    return blocks - keys.count("nextn_predict_layers", 0, minimum=0, maximum=blocks - 1), blocks
