"""Mixtral: Mistral's attention with a mixture of experts."""

from tokenmill.model.config import MAX_LAYERS, ConfigReader, ModelConfig
from tokenmill.model.families import Family
from tokenmill.model.families.llama import NAMES, read_shared

__all__ = ["FAMILY"]

_EXPERT = "layers.{i}.block_sparse_moe.experts.{e}."

_NAMES = {
    **{name: target for name, target in NAMES.items() if ".mlp." not in name},
    "layers.{i}.block_sparse_moe.gate.weight": "layers.{i}.mlp.router.weight",
    _EXPERT + "w1.weight": "layers.{i}.mlp.experts.{e}.up.weight:gate",
    _EXPERT + "w3.weight": "layers.{i}.mlp.experts.{e}.up.weight:up",
    _EXPERT + "w2.weight": "layers.{i}.mlp.experts.{e}.down.weight",
}


def _read(reader: ConfigReader) -> ModelConfig:
    return read_shared(
        reader,
        theta=1000000.0,
        windows=(reader.window(),) * reader.count("num_hidden_layers", maximum=MAX_LAYERS),
        num_experts=reader.count("num_local_experts", 8),
        num_experts_per_token=reader.count("num_experts_per_tok", 2),
    )


FAMILY = Family(_read, _NAMES, prefix="model.")
