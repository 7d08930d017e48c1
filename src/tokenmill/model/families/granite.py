"""Granite of IBM: Llama with multipliers on embeddings, residuals, scores and logits. Some models have experts, and
some of these one more expert, which every token takes; Granite 4.1 and 4.2 have none. Granite 4.0 is the hybrid family:
in most of its layers Mamba 2 takes the place of attention.
"""

from dataclasses import replace
from typing import Any

from tokenmill.model.config import MAX_LAYERS, ConfigReader, ModelConfig
from tokenmill.model.families import Family
from tokenmill.model.families.hybrids import KV_HEADS, kv_heads
from tokenmill.model.families.in_gguf import GGUFKeys, InGGUF, expert_metadata, has_bias, like_llama, paired
from tokenmill.model.families.llama import NAMES
from tokenmill.model.families.mamba2 import IN_GGUF as MAMBA_IN_GGUF
from tokenmill.model.families.mamba2 import (
    MAMBA_DEFAULTS,
    MAMBA_KEYS,
    MAMBA_NULLS,
    mamba_names,
    read_bamba_gguf,
    read_hybrid_ssm,
    read_mamba,
    ssm_metadata,
)
from tokenmill.model.families.mixers_of import mixer_of
from tokenmill.model.mixers.mamba2 import Mamba2Block

_MOE, _MLP = "layers.{i}.block_sparse_moe.", "layers.{i}.mlp."
_MOE_NAMES = {
    **{name: target for name, target in NAMES.items() if ".mlp." not in name},
    _MOE + "router.layer.weight": _MLP + "router.weight",
    _MOE + "input_linear.weight[{e}]": _MLP + "experts.{e}.up.weight",  # gate, then up
    _MOE + "output_linear.weight[{e}]": _MLP + "experts.{e}.down.weight",
}
_ALSO = {
    _MOE + "router.weight": _MLP + "router.weight",
    _MOE + "experts.gate_up_proj[{e}]": _MLP + "experts.{e}.up.weight",
    _MOE + "experts.down_proj[{e}]": _MLP + "experts.{e}.down.weight",
}
_SHARED_NAMES = {
    **_MOE_NAMES,
    "layers.{i}.shared_mlp.input_linear.weight": _MLP + "shared.up.weight",
    "layers.{i}.shared_mlp.output_linear.weight": _MLP + "shared.down.weight",
}
# A model without experts has its MLP under the name of the shared one. Of the two targets a model has one.
_HYBRID_NAMES = {
    **_SHARED_NAMES,
    **mamba_names("layers.{i}.mamba."),
    "layers.{i}.shared_mlp.input_linear{p}": _MLP + "up{p}",
    "layers.{i}.shared_mlp.output_linear{p}": _MLP + "down{p}",
}


def _multipliers(reader: ConfigReader) -> dict[str, Any]:
    return {
        "embedding_multiplier": reader.number("embedding_multiplier"),
        "residual_multiplier": reader.number("residual_multiplier"),
        "logit_multiplier": 1 / reader.number("logits_scaling", minimum=1e-30),
        "attention_scale": reader.number("attention_multiplier"),
        **reader.attention_bias(),
    }


def _granite(reader: ConfigReader) -> dict[str, Any]:
    return {**_multipliers(reader), "mlp_bias": reader.flag("mlp_bias")}


def _granitemoe(reader: ConfigReader, minimum: int = 1) -> dict[str, Any]:
    num_experts = reader.count("num_local_experts", minimum=minimum)
    chosen = reader.count("num_experts_per_tok", minimum=0) if num_experts else 0
    reader.read.add("num_experts_per_tok")  # without experts it may have any value
    return {**_multipliers(reader), "num_experts": num_experts, "num_experts_per_token": chosen}


def _granitemoeshared(reader: ConfigReader) -> dict[str, Any]:
    return {**_granitemoe(reader), "shared_expert_size": reader.count("shared_intermediate_size", minimum=0)}


def _granitemoehybrid(reader: ConfigReader) -> dict[str, Any]:
    reader.expect("normalization_function", "rmsnorm")
    num_layers = reader.num_layers()
    types = reader.layer_types(["mamba"] * num_layers, *_ATTENDS, *_STATES)
    fields, size = _granitemoe(reader, minimum=0), reader.count("shared_intermediate_size")
    if reader.expect("position_embedding_type", None, "rope", "nope") != "rope":
        fields["ropes"] = (None,) * num_layers
    if set(types) & set(_STATES):
        block = read_mamba(reader)
        fields["mixers"] = tuple(block if kind in _STATES else None for kind in types)
    else:
        reader.read.update(MAMBA_KEYS)
    if fields["num_experts"]:
        return {**fields, "shared_expert_size": size}
    reader.read.add("intermediate_size")  # of experts, which this model lacks
    return {**fields, "intermediate_size": size}


def _read_gguf(keys: GGUFKeys) -> dict[str, Any]:
    """Read Granite of any kind in which all layers attend. With experts it is GraniteMoeShared, even without a shared
    one.

    Where no key has a multiplier, llama.cpp's is 1, and its scale of scores is Llama's.
    """
    config = like_llama(keys) | has_bias(keys) | has_bias(keys, "mlp_bias", "ffn_up.bias")
    head_dim = config["head_dim"]
    config |= {
        "embedding_multiplier": keys.scale("embedding_scale"),
        "residual_multiplier": keys.scale("residual_scale"),
        "attention_multiplier": keys.scale("attention.scale", head_dim**-0.5),
        "logits_scaling": keys.positive("logit_scale"),
    }
    rotates = keys.take("rope.scaling.finetuned", True)  # this architecture's switch of rotary positions
    if not keys.take("expert_count", 0):
        keys.expect("expert_used_count", 0)
        # llama.cpp's converter writes these two of Granite 4.0, whose config has a shared expert and Mamba's sizes.
        keys.expect("expert_shared_feed_forward_length", config["intermediate_size"], 0)
        for name in _SSM:
            keys.take(f"ssm.{name}", None)
        if rotates is not False:
            return config | {"model_type": "granite"}
        size, layers = config["intermediate_size"], ["full_attention"] * config["num_hidden_layers"]
        hybrid = {"model_type": "granitemoehybrid", "num_local_experts": 0, "shared_intermediate_size": size}
        return config | hybrid | {"layer_types": layers, "position_embedding_type": "nope"}
    keys.softmax_routing(True)
    return config | {
        "model_type": "granitemoeshared",
        **keys.experts(),
        "shared_intermediate_size": keys.count("expert_shared_feed_forward_length", 0, minimum=0),
    }


def _read_hybrid_gguf(keys: GGUFKeys) -> dict[str, Any]:
    """Read Granite of which some layers are Mamba 2, or Bamba."""
    attends = keys.layers_with(KV_HEADS, keys.count("block_count", maximum=MAX_LAYERS))
    head_dim = keys.head_dim(keys.count("embedding_length") // keys.count("attention.head_count"))
    if keys.take("rope.dimension_count", head_dim) != head_dim:
        return read_bamba_gguf(keys, attends)
    config = _read_gguf(keys)
    experts = config.get("num_local_experts", 0)
    return config | {
        **read_hybrid_ssm(keys),
        "model_type": "granitemoehybrid",
        "layer_types": ["attention" if each else "mamba" for each in attends],
        "num_local_experts": experts,
        "shared_intermediate_size": config["shared_intermediate_size"] if experts else config["intermediate_size"],
        "position_embedding_type": "rope" if keys.take("rope.scaling.finetuned", True) else "nope",
    }


def _hybrid_metadata(model: ModelConfig) -> dict[str, Any]:
    block = mixer_of(model, Mamba2Block)
    if block is None:
        return {"general.architecture": "granite", **_metadata(model)}
    return _metadata(model) | ssm_metadata(block) | kv_heads(model) | {"general.architecture": "granitehybrid"}


def _metadata(model: ModelConfig) -> dict[str, Any]:
    pairs: dict[str, Any] = {
        "embedding_scale": model.embedding_multiplier,
        "residual_scale": model.residual_multiplier,
        "attention.scale": model.attention_scale,
        "logit_scale": 1 / model.logit_multiplier,
    }
    if model.ropes and not any(model.ropes):
        pairs["rope.scaling.finetuned"] = False
    pairs |= {"general.architecture": "granitemoe"} if model.num_experts else {}
    return pairs | expert_metadata(model)


_IN_GGUF = InGGUF("granite", paired(), _read_gguf, _metadata)
_HYBRID_IN_GGUF = InGGUF(
    "granitehybrid",
    {**paired(), **MAMBA_IN_GGUF},
    _read_hybrid_gguf,
    _hybrid_metadata,
    needs=("no state bias", "conv bias"),
)
_MOE_IN_GGUF = replace(_IN_GGUF, architecture="granitemoe")

# transformers before 5 writes the first of each.
_ATTENDS, _STATES = ("attention", "full_attention"), ("mamba", "linear_attention")
_SSM = "conv_kernel group_count inner_size state_size time_step_rank".split()
_ONES = dict.fromkeys(("attention_multiplier", "embedding_multiplier", "logits_scaling", "residual_multiplier"), 1.0)
_MOE_DEFAULTS = {**_ONES, "num_local_experts": 8, "num_experts_per_tok": 2}
GRANITE = Family(NAMES, _granite, defaults=_ONES, gguf=_IN_GGUF)
GRANITEMOE = Family(_MOE_NAMES, _granitemoe, defaults=_MOE_DEFAULTS, gguf=_MOE_IN_GGUF, also=_ALSO)
GRANITEMOESHARED = Family(
    _SHARED_NAMES,
    _granitemoeshared,
    defaults={**_MOE_DEFAULTS, "shared_intermediate_size": 0},
    gguf=_MOE_IN_GGUF,
    also=_ALSO,
)
GRANITEMOEHYBRID = Family(
    _HYBRID_NAMES,
    _granitemoehybrid,
    defaults={
        **_MOE_DEFAULTS,
        "shared_intermediate_size": 1024,
        **MAMBA_DEFAULTS,
    },
    nulls=MAMBA_NULLS,
    aliases={"layers_block_type": "layer_types"},
    harmless=("mamba_chunk_size", "init_method"),
    gguf=_HYBRID_IN_GGUF,
    also=_ALSO,
)
