"""MPNet: BERT with RoBERTa's positions, to whose scores every layer adds a learned number for the distance of a key."""

from typing import Any

from tokenmill.model.config import ConfigReader
from tokenmill.model.distance_bias import DistanceBias
from tokenmill.model.families import Family
from tokenmill.model.families.bert import ROBERTA, read_from_position

_BUCKETS, _MAX_DISTANCE, _PADDING = 32, 128, 1
"""In the code of transformers' class, whatever its config says of padding; a table with fewer rows fails there."""
_ATTENTION = "encoder.layer.{i}.attention."
_NAMES = {
    **{name: goal for name, goal in ROBERTA.names.items() if "attention" not in name and "token_type" not in name},
    **{f"{_ATTENTION}attn.{letter}{{p}}": f"layers.{{i}}.attention.qkv{{p}}:{letter}" for letter in "qkv"},
    _ATTENTION + "attn.o{p}": "layers.{i}.attention.out{p}",
    _ATTENTION + "LayerNorm{p}": "layers.{i}.attention_after_norm{p}",
    "encoder.relative_attention_bias.weight": "distance_bias.weight",
}


def _mpnet(reader: ConfigReader) -> dict[str, Any]:
    reader.expect("relative_attention_num_buckets", _BUCKETS)
    bias = DistanceBias(reader.count("num_attention_heads"), _BUCKETS, _MAX_DISTANCE)
    return read_from_position(reader, _PADDING + 1) | {"distance_bias": bias}


_LEFT_OUT = ("type_vocab_size", "pad_token_id")
MPNET = Family(
    _NAMES,
    _mpnet,
    keys=ROBERTA.keys,
    defaults={
        **{key: value for key, value in ROBERTA.defaults.items() if key not in _LEFT_OUT},
        "vocab_size": 30527,
        "eos_token_id": 2,
    },
    harmless=("is_causal",),
    prefix="mpnet.",
    ignored=ROBERTA.ignored,
    further=ROBERTA.further,
)
