"""jina-embeddings-v2 and jina-reranker-v1: BERT with a gated MLP, and with ALiBi in both directions in the place of
learned positions.

A published config has the `model_type` of BERT, and "alibi" for the kind of its positions. jina-embeddings-v2-base-code
has other norms and is not read: its tensors have other names. llama.cpp takes both for one architecture.
"""

from typing import Any

from tokenmill.model.blocks import Projection
from tokenmill.model.config import ConfigReader
from tokenmill.model.description import MlpBlock
from tokenmill.model.distance_bias import DistanceBias
from tokenmill.model.families import Family
from tokenmill.model.families.bert import BERT, LIKE_BERT, NOT_CAUSAL, STORED, read_sizes
from tokenmill.model.families.in_gguf import CLASSIFIER, PLAIN_MLP, QKV, GGUFKeys, InGGUF

_LAYER, _OURS = "encoder.layer.{i}.", "layers.{i}.mlp."
_LEFT_OUT = ("position_embeddings", "intermediate", "{i}.output.")
_NAMES = {
    **{name: goal for name, goal in BERT.names.items() if not any(part in name for part in _LEFT_OUT)},
    _LAYER + "mlp.gated_layers.weight": _OURS + "up.weight",  # the gates stand before the rest
    _LAYER + "mlp.wo{p}": _OURS + "down{p}",
    _LAYER + "mlp.layernorm{p}": BERT.names[_LAYER + "output.LayerNorm{p}"],
}
_KINDS = {"geglu": "gelu", "reglu": "relu"}


def _jina_bert(reader: ConfigReader) -> dict[str, Any]:
    reader.expect("is_decoder", False)
    reader.expect("position_embedding_type", "alibi")
    reader.expect("hidden_act", "gelu")  # of an MLP without gates alone
    kind = reader.expect("feed_forward_type", ..., *_KINDS)
    hidden, inner = reader.count("hidden_size"), reader.count("intermediate_size")
    up, down = Projection("gate_up", hidden, (inner, inner)), Projection("down", inner, (hidden,), bias=True)
    return {
        **LIKE_BERT,
        "num_types": reader.count("type_vocab_size"),
        "distance_bias": DistanceBias(reader.count("num_attention_heads")),
        "rope": None,
        **dict.fromkeys(("qkv_bias", "o_bias"), True),
        "activation": _KINDS[kind],
        "mlps": (MlpBlock(up, down, _KINDS[kind], gated=True),) * reader.num_layers(),
    }


def _read_gguf(keys: GGUFKeys) -> dict[str, Any]:
    keys.expect("attention.max_alibi_bias", 8.0)  # which llama.cpp takes whatever a file says
    return read_sizes(keys) | {"feed_forward_type": "geglu"}


_UP, _GATE = "blk.{i}.ffn_up.weight", "blk.{i}.ffn_gate.weight"
_STORED = {
    **STORED,
    **QKV,
    **{name: goal for name, goal in PLAIN_MLP.items() if "ffn_down" in name},
    _UP: _OURS + "up.weight",
}
JINA_BERT = Family(
    _NAMES,
    _jina_bert,
    keys=BERT.keys,
    defaults=BERT.defaults,
    harmless=("emb_pooler",),  # see weights/pooling.py
    prefix=BERT.prefix,
    ignored=BERT.ignored,
    further=BERT.further,
    gguf=InGGUF(
        "jina-bert-v2",
        _STORED,
        _read_gguf,
        lambda _: NOT_CAUSAL,
        ignored=CLASSIFIER,
        older={_GATE: _OURS + "up.weight:gate", _UP: _OURS + "up.weight:up"},
        encodes=True,
    ),
)
