"""Families that tokenmill does not offer, written as data: between them they use every departure of a description.

What they say is compared with transformers in test_description.py. Their config.json is read as far as that needs.
"""

from collections.abc import Callable
from typing import Any

from tests.tiny_models import _LLAMA
from tokenmill.model.config import ConfigReader, QKNorm, Rope
from tokenmill.model.families import Family
from tokenmill.model.families.llama import NAMES


def _family(names: dict[str, str], departures: Callable[[dict[str, Any]], dict[str, Any]]) -> Family:
    def read(reader: ConfigReader) -> dict[str, Any]:
        config = dict(reader.values)
        reader.read.update(config)
        given = {"activation": config.get("hidden_activation") or config["hidden_act"]}
        given["intermediate_size"] = config.get("moe_intermediate_size", config["intermediate_size"])
        return given | departures(config)

    return Family(names, read)


def _windows(config: dict[str, Any]) -> tuple[int | None, ...]:
    return tuple(config["sliding_window"] if kind == "sliding_attention" else None for kind in config["layer_types"])


def _gemma(config: dict[str, Any]) -> dict[str, Any]:
    return {
        "norm_unit_offset": True,
        "norm_placement": "both",
        "embedding_multiplier": config["hidden_size"] ** 0.5,
        "attention_scale": config["query_pre_attn_scalar"] ** -0.5,
        "attention_softcap": config["attn_logit_softcapping"],
        "logit_softcap": config["final_logit_softcapping"],
        "windows": _windows(config),
    }


def _gemma3(config: dict[str, Any]) -> dict[str, Any]:
    ropes = {kind: Rope(config["head_dim"], rope["rope_theta"]) for kind, rope in config["rope_parameters"].items()}
    each = tuple(ropes[kind] for kind in config["layer_types"])
    return _gemma(config) | {"qk_norm": QKNorm(), "rope": each[0], "ropes": each}


def _granite(config: dict[str, Any]) -> dict[str, Any]:
    return {
        "embedding_multiplier": config["embedding_multiplier"],
        "residual_multiplier": config["residual_multiplier"],
        "logit_multiplier": 1 / config["logits_scaling"],
        "attention_scale": config["attention_multiplier"],
    }


def _qwen2_moe(config: dict[str, Any]) -> dict[str, Any]:
    return {
        "qkv_bias": True,
        "num_experts": config["num_experts"],
        "num_experts_per_token": config["num_experts_per_tok"],
        "norm_top_k": config["norm_topk_prob"],
        "shared_expert_size": config["shared_expert_intermediate_size"],
        "shared_expert_gate": True,
    }


_AFTER = {
    "layers.{i}.post_attention_layernorm.weight": "layers.{i}.attention_after_norm.weight",
    "layers.{i}.post_feedforward_layernorm.weight": "layers.{i}.mlp_after_norm.weight",
}
_GEMMA = {**NAMES, **_AFTER, "layers.{i}.pre_feedforward_layernorm.weight": "layers.{i}.mlp_norm.weight"}
_MLP = "layers.{i}.mlp."
_EXPERTS = {
    **{name: target for name, target in NAMES.items() if ".mlp." not in name},
    _MLP + "gate.weight": _MLP + "router.weight",
    _MLP + "shared_expert_gate.weight": _MLP + "shared_gate.weight",
}
for _file, _ours in (("experts.{e}.", "experts.{e}."), ("shared_expert.", "shared.")):
    _EXPERTS[f"{_MLP}{_file}gate_proj.weight"] = f"{_MLP}{_ours}up.weight:gate"
    _EXPERTS[f"{_MLP}{_file}up_proj.weight"] = f"{_MLP}{_ours}up.weight:up"
    _EXPERTS[f"{_MLP}{_file}down_proj.weight"] = f"{_MLP}{_ours}down.weight"

GEMMA2 = _family(_GEMMA, _gemma)
GEMMA3 = _family(_GEMMA, _gemma3)
OLMO2 = _family({**NAMES, **_AFTER}, lambda _: {"norm_placement": "after", "qk_norm": QKNorm("all")})
GRANITE = _family(NAMES, _granite)
QWEN2_MOE = _family(_EXPERTS, _qwen2_moe)
UNIT_OFFSET = _family(NAMES, lambda _: {"norm_unit_offset": True})

_FOUR = _LLAMA | {"num_hidden_layers": 4}
_SMALL_GEMMA = _FOUR | {"head_dim": 12, "query_pre_attn_scalar": 9, "sliding_window": 7}
_SCALES = {"embedding_multiplier": 3.0, "residual_multiplier": 0.6, "logits_scaling": 2.0, "attention_multiplier": 0.2}
_MIXTURE = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 40}

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    # model_type: (name of the family in this file, config)
    "gemma2": ("GEMMA2", _SMALL_GEMMA | {"attn_logit_softcapping": 3.0}),
    "gemma3_text": (
        "GEMMA3",
        _SMALL_GEMMA | {"layer_types": ["sliding_attention", "full_attention"] * 2},
    ),
    "olmo2": ("OLMO2", _LLAMA),
    "granite": ("GRANITE", _LLAMA | _SCALES),
    "qwen2_moe": ("QWEN2_MOE", _LLAMA | _MIXTURE | {"shared_expert_intermediate_size": 56}),
}
