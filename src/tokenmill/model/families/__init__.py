"""FAMILIES: how the architectures differ, as data.

A family is one file with a FAMILY and one line here, under the `model_type` of its config.json. It says how to read
that config, strictly, and where each of its tensors goes. A target is "parameter", "parameter:part" for a piece of a
merged matrix, and "… | transform" where the file stores it in another layout. {i} is the layer, {e} the expert; a name
that ends in {p} stands for .weight and, where the model has one, .bias.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tokenmill.errors import CheckpointError
from tokenmill.model.config import ConfigReader, ModelConfig
from tokenmill.registry import lookup
from tokenmill.value_reader import brief

__all__ = ["FAMILIES", "Family", "find_family", "read_config"]

FAMILIES = {
    "gpt2": "tokenmill.model.families.gpt2:FAMILY",
    "gpt_bigcode": "tokenmill.model.families.gpt_bigcode:FAMILY",
    "gpt_neox": "tokenmill.model.families.gpt_neox:FAMILY",
    "llama": "tokenmill.model.families.llama:FAMILY",
    "mistral": "tokenmill.model.families.mistral:FAMILY",
    "mixtral": "tokenmill.model.families.mixtral:FAMILY",
    "qwen2": "tokenmill.model.families.qwen2:FAMILY",
    "qwen3": "tokenmill.model.families.qwen3:FAMILY",
}


@dataclass(frozen=True)
class Family:
    """prefix: may stand before every name in the file. ignored: names that are no weights and may be there."""

    read: Callable[[ConfigReader], ModelConfig]
    names: Mapping[str, str]
    prefix: str = ""
    ignored: tuple[str, ...] = ()


def find_family(config: Mapping[str, Any]) -> Family:
    """The family that `model_type` names; CheckpointError that lists the known ones."""
    name = config.get("model_type")
    if not isinstance(name, str) or name not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise CheckpointError(f"config.json: model_type {brief(name)} is not implemented: use one of {known}")
    family: Family = lookup(FAMILIES, name, "model_type")
    return family


def read_config(config: Mapping[str, Any]) -> ModelConfig:
    """The ModelConfig that a config.json describes; unknown keys that may matter are errors.

    "stored_as_codes" is our own key: what a quantised file says of itself, as bits per number, or True where they are
    not known.
    """
    family = find_family(config)
    reader = ConfigReader(config)
    codes = reader.take("stored_as_codes", False)
    bits = 0.0 if isinstance(codes, bool) else reader.number("stored_as_codes", maximum=64.0)
    return replace(family.read(reader), codes=bool(codes), code_bits=bits)
