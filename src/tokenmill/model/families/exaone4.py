"""EXAONE 4 of LG: OLMo 2 with norms of Q and K for each head. Where layers have a window, the others have no rotary
positions.
"""

from typing import Any

from tokenmill.model.config import MAX_LAYERS, ConfigReader, QKNorm
from tokenmill.model.families import Family, sizes
from tokenmill.model.families.in_gguf import GGUFKeys, InGGUF, like_llama, window_metadata
from tokenmill.model.families.olmo import AFTER_NAMES
from tokenmill.model.rope_config import rope_of


def _exaone4(reader: ConfigReader) -> dict[str, Any]:
    layers, window = range(reader.num_layers()), reader.window()
    fields = {"norm_placement": "after", "qk_norm": QKNorm()}
    if window is None:
        reader.read.add("sliding_window_pattern")
        reader.layer_types(["full_attention"] * len(layers), "full_attention")
        return fields
    if reader.given("layer_types"):
        reader.read.add("sliding_window_pattern")  # "LLLG" in the published files, where layer_types counts
        pattern = 4
    else:
        pattern = reader.count("sliding_window_pattern", maximum=MAX_LAYERS)
    windows, rope = reader.windows(window, ((layer + 1) % pattern != 0 for layer in layers)), rope_of(reader)
    return {**fields, "windows": windows, "rope": rope, "ropes": tuple(each and rope for each in windows)}


def _read_gguf(keys: GGUFKeys) -> dict[str, Any]:
    config, window = like_llama(keys), keys.window()
    layers = config["num_hidden_layers"]
    types = keys.layer_types(layers, 4) if window else ["full_attention"] * layers
    return config | {"sliding_window": window, "layer_types": types}


EXAONE4 = Family(
    AFTER_NAMES,
    _exaone4,
    defaults={
        **sizes(102400, 4096, 16384, 32, 32, 32),
        "rms_norm_eps": 1e-5,
        "sliding_window": 4096,
        "sliding_window_pattern": 4,
    },
    gguf=InGGUF(
        "exaone4",
        read=_read_gguf,
        needs=("square",),
        metadata=lambda model: window_metadata(model.windows),
        windows=lambda model: model.num_layers == 64,  # llama.cpp recognises the 32B model by this number
    ),
)
