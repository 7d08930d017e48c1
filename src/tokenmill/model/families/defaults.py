"""The meaning of absent keys of config.json, and of nulls, as in transformers' config classes.

An absent key has the default of its class. A null is a value of its own: NULLS or a family's `nulls` have its meaning,
or it means None where the default is None, too; elsewhere transformers refuses it, and so does the reader. Llama's
defaults stand here; a family's file has the defaults in which its class differs.
"""

from collections.abc import Mapping
from typing import Any


def sizes(
    vocabulary: int,
    hidden: int,
    intermediate: int | None,
    layers: int,
    heads: int,
    kv_heads: int | None = None,
    *,
    head_dim: int | None = None,
    context: int = 2048,
) -> dict[str, Any]:
    """Name the sizes of a class by their keys. Without kv_heads there are as many as heads; without head_dim a head has
    its share of the hidden size.
    """
    return {
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": context,
    }


DEFAULTS: Mapping[str, Any] = {
    **sizes(32000, 4096, 11008, 32, 32),
    "attention_bias": False,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "layer_types": None,
    "mlp_bias": False,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
}
NULLS: Mapping[str, Any] = {"eos_token_id": None, "sliding_window": None}
