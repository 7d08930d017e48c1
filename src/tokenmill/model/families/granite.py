"""Granite of IBM: Llama with multipliers on embeddings, residuals, scores and logits; with experts, and with one more
that every token takes. Granite 4 is the hybrid family, of which only the models without Mamba layers are implemented.
"""

from typing import Any

from tokenmill.errors import CheckpointError
from tokenmill.model.config import MAX_LAYERS, ConfigReader
from tokenmill.model.families import Family
from tokenmill.model.families.llama import NAMES

_MOE, _MLP = "layers.{i}.block_sparse_moe.", "layers.{i}.mlp."
_MOE_NAMES = {
    **{name: target for name, target in NAMES.items() if ".mlp." not in name},
    _MOE + "router.layer.weight": _MLP + "router.weight",
    _MOE + "input_linear.weight[{e}]": _MLP + "experts.{e}.up.weight",  # gate, then up
    _MOE + "output_linear.weight[{e}]": _MLP + "experts.{e}.down.weight",
}
_SHARED_NAMES = {
    **_MOE_NAMES,
    "layers.{i}.shared_mlp.input_linear.weight": _MLP + "shared.up.weight",
    "layers.{i}.shared_mlp.output_linear.weight": _MLP + "shared.down.weight",
}
# Where there are no experts, what the file calls shared is all there is. Of the two targets a model has one.
_HYBRID_NAMES = {
    **_SHARED_NAMES,
    "layers.{i}.shared_mlp.input_linear{p}": _MLP + "up{p}",
    "layers.{i}.shared_mlp.output_linear{p}": _MLP + "down{p}",
}


def _multipliers(reader: ConfigReader) -> dict[str, Any]:
    bias = reader.flag("attention_bias", False)
    return {
        "embedding_multiplier": reader.number("embedding_multiplier", 1.0),
        "residual_multiplier": reader.number("residual_multiplier", 1.0),
        "logit_multiplier": 1 / reader.number("logits_scaling", 1.0, minimum=1e-30),
        "attention_scale": reader.number("attention_multiplier", 1.0),
        "qkv_bias": bias,
        "o_bias": bias,
    }


def _granite(reader: ConfigReader) -> dict[str, Any]:
    return {**_multipliers(reader), "mlp_bias": reader.flag("mlp_bias", False)}


def _granitemoe(reader: ConfigReader, minimum: int = 1) -> dict[str, Any]:
    num_experts = reader.count("num_local_experts", 8, minimum)
    chosen = reader.count("num_experts_per_tok", 2, minimum=0)
    return {
        **_multipliers(reader),
        "num_experts": num_experts,
        "num_experts_per_token": chosen if num_experts else 0,
    }


def _granitemoeshared(reader: ConfigReader) -> dict[str, Any]:
    return {**_granitemoe(reader), "shared_expert_size": reader.count("shared_intermediate_size", 0, minimum=0)}


def _granitemoehybrid(reader: ConfigReader) -> dict[str, Any]:
    reader.expect("normalization_function", "rmsnorm")
    # transformers before 5 writes the first two of these.
    types = ("attention", "mamba", "full_attention", "linear_attention")
    num_layers = reader.count("num_hidden_layers", maximum=MAX_LAYERS)
    found = set(reader.layer_types(["mamba"] * num_layers, *types))
    if found & {"mamba", "linear_attention"}:
        raise CheckpointError(f"{reader.where}: Mamba layers, which its layer_types have, are not implemented")
    fields, size = _granitemoe(reader, minimum=0), reader.count("shared_intermediate_size", 1024)
    if reader.expect("position_embedding_type", None, "rope", "nope") != "rope":
        fields["ropes"] = (None,) * num_layers
    if fields["num_experts"]:
        return {**fields, "shared_expert_size": size}
    reader.read.add("intermediate_size")  # of the experts that there are not
    return {**fields, "intermediate_size": size}


# What Mamba layers would be like; the last of the harmless keys is of training.
_MAMBA = "chunk_size conv_bias d_conv d_head d_state expand n_groups n_heads proj_bias".split()
GRANITE = Family(NAMES, _granite)
GRANITEMOE = Family(_MOE_NAMES, _granitemoe)
GRANITEMOESHARED = Family(_SHARED_NAMES, _granitemoeshared)
GRANITEMOEHYBRID = Family(
    _HYBRID_NAMES,
    _granitemoehybrid,
    harmless=(*(f"mamba_{name}" for name in _MAMBA), "time_step_limit", "init_method"),
)
