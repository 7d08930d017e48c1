"""Encoders with rotary positions: ModernBERT, Nomic Embed, EuroBERT.

ModernBERT norms before each half and has a window in two layers of three; Nomic Embed norms sums as BERT does; EuroBERT
is Llama whose tokens see later ones.
"""

from dataclasses import replace
from typing import Any

from tokenmill.model.config import ConfigReader
from tokenmill.model.families import Family, sizes
from tokenmill.model.families.bert import ENCODES, HEADS, LIKE_BERT
from tokenmill.model.families.in_gguf import FULL, SLIDING
from tokenmill.model.families.llama import NAMES
from tokenmill.model.rope_config import Beside, read_ropes

_LAYER = "layers.{i}."
_MODERNBERT_NAMES = {
    "embeddings.tok_embeddings.weight": "embedding.weight",
    "embeddings.norm{p}": "embedding_norm{p}",
    _LAYER + "attn_norm{p}": "layers.{i}.attention_norm{p}",
    _LAYER + "attn.Wqkv{p}": "layers.{i}.attention.qkv{p}",
    _LAYER + "attn.Wo{p}": "layers.{i}.attention.out{p}",
    _LAYER + "mlp_norm{p}": "layers.{i}.mlp_norm{p}",
    _LAYER + "mlp.Wi{p}": "layers.{i}.mlp.up{p}",
    _LAYER + "mlp.Wo{p}": "layers.{i}.mlp.down{p}",
    "final_norm{p}": "norm{p}",
}
_ROPES = {
    FULL: Beside("global_rope_theta", 160000.0, scaled=True),
    SLIDING: Beside("local_rope_theta", 10000.0, scaled=True),
}


def _modernbert(reader: ConfigReader) -> dict[str, Any]:
    every = reader.count("global_attn_every_n_layers", 3)
    layers = range(reader.num_layers())
    types = reader.layer_types([SLIDING if layer % every else FULL for layer in layers], FULL, SLIDING)
    window = reader.count("local_attention", minimum=0) // 2 + 1  # of either side, the token itself included
    ropes = read_ropes(reader, _ROPES)
    return {
        **ENCODES,
        **reader.attention_bias(),
        "mlp_bias": reader.flag("mlp_bias"),
        "norm": "layer",
        "norm_bias": reader.flag("norm_bias"),
        "first_norm": False,
        "embedding_norm": "own",
        "rope": ropes[FULL],
        "ropes": tuple(ropes[kind] for kind in types),
        "windows": tuple(window if kind == SLIDING else None for kind in types),
    }


def _nomic_bert(reader: ConfigReader) -> dict[str, Any]:
    return {**LIKE_BERT, "num_types": reader.count("type_vocab_size")}


def _eurobert(reader: ConfigReader) -> dict[str, Any]:
    return {**ENCODES, **reader.attention_bias(), "mlp_bias": reader.flag("mlp_bias")}


# Settings of training, and of classes that guess words.
_TRAINED = """classifier_activation classifier_bias classifier_pooling cls_token_id decoder_bias
    deterministic_flash_attn initializer_cutoff_factor mlp_dropout reference_compile repad_logits_with_grad
    sparse_pred_ignore_index sparse_prediction mask_token_id is_causal"""

MODERNBERT = Family(
    _MODERNBERT_NAMES,
    _modernbert,
    keys={"rms_norm_eps": "norm_eps", "hidden_act": "hidden_activation"},
    defaults={
        **sizes(50368, 768, 1152, 22, 12, context=8192),
        "eos_token_id": 50282,
        "global_rope_theta": 160000.0,
        "hidden_act": "gelu",
        "local_attention": 128,
        "local_rope_theta": 10000.0,
        "norm_bias": False,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
    },
    harmless=("layer_norm_eps", "position_embedding_type", *_TRAINED.split()),
    further=("head.", "decoder.", "classifier."),  # which guess words, or label texts
)
_OF_NOMIC = "encoder.layers.{i}."
_NOMIC = {
    "embeddings.word_embeddings.weight": "embedding.weight",
    "embeddings.token_type_embeddings.weight": "type_embedding.weight",
    "emb_ln{p}": "embedding_norm{p}",
    _OF_NOMIC + "attn.Wqkv{p}": "layers.{i}.attention.qkv{p}",
    _OF_NOMIC + "attn.out_proj{p}": "layers.{i}.attention.out{p}",
    _OF_NOMIC + "norm1{p}": "layers.{i}.attention_after_norm{p}",
    _OF_NOMIC + "mlp.fc11{p}": "layers.{i}.mlp.up{p}:up",
    _OF_NOMIC + "mlp.fc12{p}": "layers.{i}.mlp.up{p}:gate",
    _OF_NOMIC + "mlp.fc2{p}": "layers.{i}.mlp.down{p}",
    _OF_NOMIC + "norm2{p}": "norm{p} or layers.{i}.mlp_after_norm{p}",
}
_NOMIC_MODULES = {
    "embeddings.word_embeddings.weight": "embedding.weight",
    "embeddings.token_type_embeddings.weight": "type_embedding.weight",
    "embeddings.LayerNorm{p}": "embedding_norm{p}",
    **{f"{_LAYER}self_attn.{letter}_proj{{p}}": f"layers.{{i}}.attention.qkv{{p}}:{letter}" for letter in "qkv"},
    _LAYER + "self_attn.o_proj{p}": "layers.{i}.attention.out{p}",
    _LAYER + "post_attention_layernorm{p}": "layers.{i}.attention_after_norm{p}",
    _LAYER + "mlp.gate_proj{p}": "layers.{i}.mlp.up{p}:gate",
    _LAYER + "mlp.up_proj{p}": "layers.{i}.mlp.up{p}:up",
    _LAYER + "mlp.down_proj{p}": "layers.{i}.mlp.down{p}",
    _LAYER + "post_mlp_layernorm{p}": "norm{p} or layers.{i}.mlp_after_norm{p}",
}
NOMIC_BERT = Family(
    _NOMIC,
    _nomic_bert,
    keys={"rms_norm_eps": "layer_norm_eps"},
    defaults={
        **sizes(30528, 768, 3072, 12, 12, context=2048),
        "eos_token_id": None,
        "rms_norm_eps": 1e-12,
        "rope_theta": 1000.0,
        "tie_word_embeddings": True,
        "type_vocab_size": 2,
    },
    harmless=("is_causal",),
    prefix="nomic_bert.",
    further=HEADS,
    also=_NOMIC_MODULES,
)
EUROBERT = replace(
    Family(NAMES, _eurobert),
    defaults={
        **sizes(128256, 768, 3072, 12, 12, context=8192),
        "eos_token_id": 128001,
        "rms_norm_eps": 1e-5,
    },
    nulls={"num_key_value_heads": None, "head_dim": None},
    harmless=(*_TRAINED.split(), "bos_token", "clf_pooling", "eos_token", "is_causal", "mask_token", "pad_token"),
    further=(*HEADS, "dense."),
)
