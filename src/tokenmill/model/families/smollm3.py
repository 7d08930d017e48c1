"""SmolLM3 of Hugging Face: Llama in which every fourth layer has no rotary positions."""

from typing import Any

from tokenmill.model.config import ConfigReader
from tokenmill.model.families import Family, sizes
from tokenmill.model.families.in_gguf import GGUFKeys, InGGUF, has_bias, like_llama, paired
from tokenmill.model.families.llama import NAMES
from tokenmill.model.rope_config import rope_of


def _smollm3(reader: ConfigReader) -> dict[str, Any]:
    layers = range(reader.num_layers())
    interval = reader.count("no_rope_layer_interval")
    rotates = reader.entries("no_rope_layers", int, [int((layer + 1) % interval != 0) for layer in layers])
    if len(rotates) < len(layers):
        raise reader.refuse("no_rope_layers", rotates, f"a number for each of {len(layers)} layers, 0 or 1")
    window, enabled = reader.window(), reader.flag("use_sliding_window")
    rope = rope_of(reader)
    return {
        **reader.attention_bias(),
        "mlp_bias": reader.flag("mlp_bias"),
        "rope": rope,
        "ropes": tuple(rope if rotates[layer] else None for layer in layers),  # 1 is of a layer that has them
        "windows": reader.windows(window, (enabled and window is not None and not rotates[layer] for layer in layers)),
    }


def _read_gguf(keys: GGUFKeys) -> dict[str, Any]:
    """Read SmolLM3, of which every fourth layer has no rotary positions in llama.cpp's code."""
    biases = has_bias(keys) | has_bias(keys, "mlp_bias", "ffn_up.bias")
    return like_llama(keys) | biases | {"no_rope_layer_interval": 4}


SMOLLM3 = Family(
    NAMES,
    _smollm3,
    defaults={
        **sizes(128256, 2048, 11008, 36, 16, 4, context=32768),
        "eos_token_id": 128001,
        "no_rope_layer_interval": 4,
        "rope_theta": 2e6,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
    },
    nulls={"num_key_value_heads": None},
    harmless=("max_window_layers",),  # of the published file; the class does not read it
    gguf=InGGUF("smollm3", paired(), _read_gguf, needs=("no o_bias", "no mlp_bias")),
)
