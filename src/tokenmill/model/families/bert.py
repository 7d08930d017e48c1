"""Encoders, which make vectors of texts and write none: BERT, RoBERTa, XLM-RoBERTa, CamemBERT, DistilBERT.

Their tokens see later tokens, and their norms take the sums of what a half of a layer reads and writes. The norm of the
last sum is the last layer's own, and here the model's last one. The second text of a pair has the second token type.
"""

from dataclasses import replace
from typing import Any

from tokenmill.model.config import ConfigReader
from tokenmill.model.families import Family, gguf_facts, sizes
from tokenmill.model.families.in_gguf import CLASSIFIER, PLAIN_MLP, QKV, GGUFKeys, InGGUF

_LAYER = "encoder.layer.{i}."
_LAST = "norm{p} or layers.{i}.mlp_after_norm{p}"
_NAMES = {
    "embeddings.word_embeddings.weight": "embedding.weight",
    "embeddings.position_embeddings.weight": "position_embedding.weight",
    "embeddings.token_type_embeddings.weight": "type_embedding.weight",
    "embeddings.LayerNorm{p}": "embedding_norm{p}",
    **{
        f"{_LAYER}attention.self.{name}{{p}}": f"layers.{{i}}.attention.qkv{{p}}:{name[0]}"
        for name in ("query", "key", "value")
    },
    _LAYER + "attention.output.dense{p}": "layers.{i}.attention.out{p}",
    _LAYER + "attention.output.LayerNorm{p}": "layers.{i}.attention_after_norm{p}",
    _LAYER + "intermediate.dense{p}": "layers.{i}.mlp.up{p}",
    _LAYER + "output.dense{p}": "layers.{i}.mlp.down{p}",
    _LAYER + "output.LayerNorm{p}": _LAST,
}
_OLDER = {  # names of norms as the first releases wrote them
    name.replace("LayerNorm{p}", f"LayerNorm.{old}"): goal.replace("{p}", new)
    for old, new in (("gamma", ".weight"), ("beta", ".bias"))
    for name, goal in _NAMES.items()
    if "LayerNorm" in name
}
HEADS = (
    *("pooler.", "classifier.", "pre_classifier.", "cls.", "lm_head."),
    *("vocab_transform.", "vocab_layer_norm.", "vocab_projector.", "qa_outputs."),
)
"""Beginnings of tensors of a pooler, and of heads that label texts or guess words: no vector is made with them."""
ENCODES: dict[str, Any] = {"both_ways": True, "has_head": False, "eos_token_ids": ()}
"""What every encoder has in common."""
LIKE_BERT = {
    **ENCODES,
    "norm": "layer",
    "norm_placement": "after",
    "residual": "normed",
    "embedding_norm": "own",
}


def _shared(reader: ConfigReader) -> dict[str, Any]:
    reader.expect("is_decoder", False)
    reader.expect("position_embedding_type", "absolute")
    return {
        **LIKE_BERT,
        "gated_mlp": False,
        "positions": "learned",
        "rope": None,
        **dict.fromkeys(("qkv_bias", "o_bias", "mlp_bias"), True),
    }


def _bert(reader: ConfigReader) -> dict[str, Any]:
    return _shared(reader) | {"num_types": reader.count("type_vocab_size")}


def _roberta(reader: ConfigReader) -> dict[str, Any]:
    """Read RoBERTa, whose positions are counted from behind the padding token's id."""
    first = reader.count("pad_token_id", minimum=0) + 1
    return _bert(reader) | read_from_position(reader, first)


def read_from_position(reader: ConfigReader, first: int) -> dict[str, Any]:
    """Read an encoder whose table of positions has that row for its first position."""
    rows = reader.context()
    if rows <= first:
        raise reader.refuse("max_position_embeddings", rows, f"above {first}, the row of the first position")
    return {**_shared(reader), "first_position": first, "max_position_embeddings": rows - first}


def _distilbert(reader: ConfigReader) -> dict[str, Any]:
    reader.flag("sinusoidal_pos_embds")  # with which numbers a table began that was then stored
    return _shared(reader)


_DEFAULTS = {
    **sizes(30522, 768, 3072, 12, 12, context=512),
    "eos_token_id": None,
    "hidden_act": "gelu",
    "rms_norm_eps": 1e-12,
    "tie_word_embeddings": True,
    "type_vocab_size": 2,
}
_TYPES = "token_types.weight"
STORED = {
    "token_embd.weight": "embedding.weight",
    _TYPES: "type_embedding.weight",
    "token_embd_norm{p}": "embedding_norm{p}",
    "blk.{i}.attn_output{p}": "layers.{i}.attention.out{p}",
    "blk.{i}.attn_output_norm{p}": "layers.{i}.attention_after_norm{p}",
    "blk.{i}.layer_output_norm{p}": _LAST,
}
"""llama.cpp's names of tensors that BERT and Nomic Embed have in common."""
_STORED = {**STORED, "position_embd.weight": "position_embedding.weight", **QKV, **PLAIN_MLP}
NOT_CAUSAL = {"attention.causal": False}


def read_sizes(keys: GGUFKeys) -> dict[str, Any]:
    """Read BERT, and what is stored as BERT: RoBERTa and XLM-RoBERTa without the positions before the first."""
    sizes = keys.sizes()
    keys.expect("attention.head_count_kv", sizes["num_attention_heads"])
    keys.expect_head_dim(sizes["hidden_size"] // max(sizes["num_attention_heads"], 1))
    types = {"type_vocab_size": keys.rows(_TYPES)} if _TYPES in gguf_facts(keys.family).names else {}
    eps = keys.positive("attention.layer_norm_epsilon")
    return {"model_type": keys.family, **sizes, "layer_norm_eps": eps, **types}


_OF_POOLERS = """directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head
    pooler_type"""

BERT = Family(
    _NAMES,
    _bert,
    keys={"rms_norm_eps": "layer_norm_eps"},
    defaults=_DEFAULTS,
    harmless=("is_causal", *_OF_POOLERS.split()),
    prefix="bert.",
    ignored=("embeddings.position_ids",),
    further=HEADS,
    also=_OLDER,
    gguf=InGGUF("bert", _STORED, read_sizes, lambda _: NOT_CAUSAL, ignored=CLASSIFIER, encodes=True),
)
ROBERTA = replace(
    BERT,
    read=_roberta,
    defaults={**_DEFAULTS, "vocab_size": 50265, "pad_token_id": 1},
    prefix="roberta.",
    gguf=None,
)
XLM_ROBERTA = replace(ROBERTA, defaults={**ROBERTA.defaults, "vocab_size": 30522})
CAMEMBERT = replace(ROBERTA, defaults={**ROBERTA.defaults, "vocab_size": 30522})

_OF_DISTILBERT = "transformer.layer.{i}."
DISTILBERT = replace(
    BERT,
    names={
        **{name: goal for name, goal in _NAMES.items() if name.startswith("embeddings.") and "type" not in name},
        **{
            f"{_OF_DISTILBERT}attention.{letter}_lin{{p}}": f"layers.{{i}}.attention.qkv{{p}}:{letter}"
            for letter in "qkv"
        },
        _OF_DISTILBERT + "attention.out_lin{p}": "layers.{i}.attention.out{p}",
        _OF_DISTILBERT + "sa_layer_norm{p}": "layers.{i}.attention_after_norm{p}",
        _OF_DISTILBERT + "ffn.lin1{p}": "layers.{i}.mlp.up{p}",
        _OF_DISTILBERT + "ffn.lin2{p}": "layers.{i}.mlp.down{p}",
        _OF_DISTILBERT + "output_layer_norm{p}": _LAST,
    },
    read=_distilbert,
    keys={
        "hidden_size": "dim",
        "num_attention_heads": "n_heads",
        "num_hidden_layers": "n_layers",
        "intermediate_size": "hidden_dim",
        "hidden_act": "activation",
        "rms_norm_eps": "layer_norm_eps",  # which no file has
    },
    defaults={**_DEFAULTS, "num_hidden_layers": 6, "sinusoidal_pos_embds": False},
    aliases={key: key for key in ("hidden_size", "num_attention_heads", "num_hidden_layers")},
    harmless=("is_causal", "dropout", "qa_dropout", "seq_classif_dropout", "tie_weights_"),
    prefix="distilbert.",
    gguf=None,
    also={},
)
