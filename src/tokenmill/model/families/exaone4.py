"""EXAONE 4 of LG: OLMo 2 with norms of Q and K for each head. Where layers have a window, the others have no rotary
positions. K-EXAONE has experts, and its norms before attention and MLP.
"""

from typing import Any

from tokenmill.model.config import MAX_LAYERS, ConfigReader, QKNorm
from tokenmill.model.families import Family, sizes
from tokenmill.model.families.in_gguf import GGUFKeys, InGGUF, like_llama, window_metadata
from tokenmill.model.families.llama import PACKED_EXPERTS
from tokenmill.model.families.olmo import AFTER_NAMES
from tokenmill.model.families.qwen_moe import sparse_layers
from tokenmill.model.families.sigmoid_experts import MOE_NAMES, mixture, moe_metadata, read_moe_gguf
from tokenmill.model.rope_config import rope_of
from tokenmill.value_reader import MAX_POSITIONS


def _exaone4(reader: ConfigReader) -> dict[str, Any]:
    return {"norm_placement": "after", **_attention(reader)}


def _attention(reader: ConfigReader) -> dict[str, Any]:
    layers, window = range(reader.num_layers()), reader.window()
    fields: dict[str, Any] = {"qk_norm": QKNorm()}
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


def _exaone_moe(reader: ConfigReader) -> dict[str, Any]:
    dense = reader.count("first_k_dense_replace", minimum=0)
    reader.expect("first_last_k_dense_replace", dense)  # which repeats it in published files, as the next list does
    layers = sparse_layers(reader, dense)
    if reader.entries("is_moe_layer", bool, list(layers)) != list(layers):
        raise reader.refuse("is_moe_layer", reader.values["is_moe_layer"], "the layers of mlp_layer_types")
    return {**_attention(reader), **mixture(reader, layers)}


def _read_gguf(keys: GGUFKeys) -> dict[str, Any]:
    config, window = like_llama(keys), keys.window()
    layers = config["num_hidden_layers"]
    types = keys.layer_types(layers, 4) if window else ["full_attention"] * layers
    return config | {"sliding_window": window, "layer_types": types}


def _read_moe_gguf(keys: GGUFKeys) -> dict[str, Any]:
    config = read_moe_gguf(keys, like_llama(keys))
    layers = config["num_hidden_layers"] - keys.count("nextn_predict_layers", 0, minimum=0)
    window = keys.count("attention.sliding_window", maximum=MAX_POSITIONS)
    config |= {"num_hidden_layers": layers, "sliding_window": window, "layer_types": keys.layer_types(layers, 4)}
    return {_MOE_KEYS.get(key, key): value for key, value in config.items()}


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
_MOE_KEYS = {"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts"}
_CORRECTION = {"layers.{i}.mlp.gate.e_score_correction_bias": "layers.{i}.mlp.correction"}  # of transformers' modules
EXAONE_MOE = Family(
    {
        **{name: target for name, target in MOE_NAMES.items() if name not in _CORRECTION},
        "layers.{i}.mlp.e_score_correction_bias": "layers.{i}.mlp.correction",
    },
    _exaone_moe,
    keys=_MOE_KEYS,
    defaults={
        **sizes(102400, 4096, 16384, 32, 32, 32),
        "eos_token_id": 53,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 1024,
        "n_group": 1,
        "n_routed_experts": 64,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_experts_per_tok": 8,
        "rms_norm_eps": 1e-5,
        "routed_scaling_factor": 2.5,
        "sliding_window": 4096,
        "sliding_window_pattern": 4,
        "topk_group": 1,
    },
    nulls={"eos_token_id": None},
    expected={"scoring_func": "sigmoid", "topk_method": "noaux_tc"},
    harmless=("num_nextn_predict_layers",),
    further=("mtp.", "layers.{n}."),
    gguf=InGGUF(
        "exaone-moe",
        read=_read_moe_gguf,
        metadata=moe_metadata,
        needs=("own head",),
        windows=lambda _: True,
        further=True,
    ),
    also={**PACKED_EXPERTS, **_CORRECTION},
)
