"""The names and the config of a layer that predicts further tokens (MTP), made from its family's.

Its tensors have the names of any other layer's of the model behind another beginning, and there are a matrix and three
norms more. It has the embedding and the head of the model; a second copy of them, which some files have, is not read.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

MTP = "+mtp"
"""Ends the `model_type` of such a layer."""
MTP_STORED = "mtp_as_stored"
"""A key of our own in config.json: it is True where the files have such a layer."""
NUM_MTP = "num_nextn_predict_layers"
"""The key of config.json for the number of such layers, of which the first drafts."""
NEXTN = ".nextn.eh_proj.weight"  # ends the name of the matrix of such a layer in a GGUF file
_OF_LAYERS = (
    *("windows", "ropes", "layer_kv_heads", "layer_head_dims", "value_is_key", "kv_sources"),
    *("expert_layers", "mlp_layers", "mlps"),
)
"""Fields of ModelConfig that have an entry for each layer. The layer is as the last one is."""


@dataclass(frozen=True)
class MtpNames:
    """layer: how the names of the layer's tensors begin; {n} is the number of layers. others: the names of its matrix,
    and of the norms of the embedding, of the row beside it, and before the head.
    """

    layer: str
    others: tuple[str, ...]


BEHIND_LAYERS = MtpNames(
    "layers.{n}.", tuple(f"layers.{{n}}.{name}.weight" for name in ("eh_proj", "enorm", "hnorm", "shared_head.norm"))
)
"""DeepSeek-V3's names."""
BESIDE_MODEL = MtpNames(
    "mtp.layers.0.",
    tuple(f"mtp.{name}.weight" for name in ("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")),
)
"""Qwen3-Next's names."""
_IN_GGUF = tuple(f"blk.{{n}}.nextn.{name}.weight" for name in ("eh_proj", "enorm", "hnorm", "shared_head_norm"))
_TARGETS = ("mtp.fc.weight", "mtp.embedding_norm.weight", "mtp.hidden_norm.weight", "norm.weight")
_SHARED = ("embedding.weight", "head.weight", "head{p}")


def has_mtp_alone(tensors: Collection[str]) -> bool:
    """Tell whether a GGUF file with these tensors has such a layer and no other, as llama.cpp's converter writes it
    beside the model's file.
    """
    return not any(name.startswith("blk.0.") for name in tensors) and any(name.endswith(NEXTN) for name in tensors)


def mtp_names(names: Mapping[str, str], mtp: MtpNames) -> dict[str, str]:
    """Name the tensors of the layer in a directory. names: of the family."""
    return _named(names, "layers.{i}.", mtp.layer) | dict(zip(mtp.others, _TARGETS, strict=True))


def mtp_names_in_gguf(names: Mapping[str, str]) -> dict[str, str]:
    """Name the tensors of the layer in a GGUF file. Norms have the transform that the family's norms have."""
    norm = next((name for name in names if name.startswith("output_norm")), "")
    transform = names.get(norm, "").partition(" | ")[2]
    targets = [f"{each} | {transform}" if transform and "norm" in each else each for each in _TARGETS]
    return _named(names, "blk.{i}.", "blk.{n}.") | dict(zip(_IN_GGUF, targets, strict=True))


def mtp_fields(fields: dict[str, Any], num_layers: int) -> dict[str, Any]:
    """Make the fields of the layer's ModelConfig of the whole model's. A layer that keeps a state cannot go back to the
    token before its drafts, and no family has one here: its attention is as it is elsewhere in the model.
    """
    num_layers = fields.get("num_layers", num_layers)
    mixers = fields.get("mixers", ())
    last = {name: fields[name][-1:] for name in _OF_LAYERS if fields.get(name)}
    attention = None if None in mixers else mixers[-1:] and mixers[-1]
    more = {"mixers": (attention,)} if mixers else {}
    return {**fields, **last, **more, "num_layers": 1, "mtp_layer": num_layers}


def _named(names: Mapping[str, str], before: str, begin: str) -> dict[str, str]:
    layer = {name: target for name, target in names.items() if name.startswith(before)}
    moved = {begin + name.removeprefix(before): target.replace("{i}", "0") for name, target in layer.items()}
    return moved | {name: target for name, target in names.items() if target in _SHARED}
