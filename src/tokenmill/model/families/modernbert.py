"""Encoders with rotary positions: ModernBERT, Nomic Embed, EuroBERT.

ModernBERT norms before each half and has a window in two layers of three; Nomic Embed norms sums as BERT does; EuroBERT
is Llama whose tokens see later ones.
"""

from dataclasses import replace
from typing import Any

from tokenmill.model.config import MAX_LAYERS, ConfigReader, ModelConfig
from tokenmill.model.families import Family, sizes
from tokenmill.model.families.bert import ENCODES, HEADS, LIKE_BERT, NOT_CAUSAL, STORED, read_sizes
from tokenmill.model.families.in_gguf import (
    CLASSIFIER,
    FULL,
    FUSED_QKV,
    GATED,
    SLIDING,
    GGUFKeys,
    InGGUF,
    fused_qkv,
    like_llama,
    plain_mlp,
    symmetric_window,
)
from tokenmill.model.families.llama import NAMES
from tokenmill.model.rope_config import Beside
from tokenmill.model.ropes_by_kind import local_rope, read_ropes

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
    for key in ("rotary_emb_scale_base", "rotary_scaling_factor"):
        reader.expect(key, None)
    for key in _FALSE_FOR_NOMIC.split():
        reader.expect(key, False, None)
    return {**LIKE_BERT, "num_types": reader.count("type_vocab_size")}


def _expect_whole_heads(keys: GGUFKeys, config: dict[str, Any]) -> None:
    """Refuse a file in which a part of a head is rotated."""
    head_dim = config["hidden_size"] // max(config["num_attention_heads"], 1)
    keys.rotary(head_dim)
    keys.expect("rope.dimension_count", head_dim)


def _read_nomic_gguf(keys: GGUFKeys) -> dict[str, Any]:
    config = read_sizes(keys)
    _expect_whole_heads(keys, config)
    return config | {"hidden_act": "silu", "rope_theta": keys.positive("rope.freq_base", 10000.0)}


def _read_modernbert_gguf(keys: GGUFKeys) -> dict[str, Any]:
    """Read ModernBERT. llama.cpp counts the layers of its pattern from a layer without a window on."""
    config = read_sizes(keys)
    _expect_whole_heads(keys, config)
    keys.take("attention.layer_norm_rms_epsilon", None)  # the converter writes it beside the one that counts
    num_layers, window = config["num_hidden_layers"], keys.window()
    key = "attention.sliding_window_pattern"
    each = keys.by_layer(key, num_layers)
    if each is None:
        every = keys.count(key, 3, 0, MAX_LAYERS)
        each = [every == 0 or layer % every > 0 for layer in range(num_layers)]
    if window is None and any(each) and keys.take(key, None) is not None:
        raise keys.refuse(key, keys.take(key), "nothing, since no attention.sliding_window above 0 stands beside it")
    types = [SLIDING if has_window and window else FULL for has_window in each]
    return {
        **{key: value for key, value in config.items() if key != "layer_norm_eps"},
        "norm_eps": config["layer_norm_eps"],
        "layer_types": types,
        **({} if window is None else {"local_attention": window}),
        "hidden_activation": keys.text("hidden_activation", "gelu"),
        "global_rope_theta": keys.positive("rope.freq_base", 10000.0),
        "local_rope_theta": keys.positive("rope.freq_base_swa", keys.positive("rope.freq_base", 10000.0)),
    }


def _modernbert_metadata(model: ModelConfig) -> dict[str, Any]:
    local = local_rope(model)
    ropes = {} if local is None else {"rope.freq_base_swa": local.theta}
    return {**NOT_CAUSAL, **symmetric_window(model.windows), **ropes, "hidden_activation": model.activation}


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
    gguf=InGGUF(
        "modern-bert",
        {
            **{name: target for name, target in fused_qkv(plain_mlp()).items() if not name.startswith("output{")},
            "token_embd_norm{p}": "embedding_norm{p}",
        },
        _read_modernbert_gguf,
        _modernbert_metadata,
        ignored=CLASSIFIER,
        needs=("no encoder biases", "no groups"),
        windows=lambda _: True,
        encodes=True,
    ),
)
# The keys of nomic-ai's own code, which published configs have beside the keys of transformers or in their place. Of
# the 8192 positions that `n_positions` says, 2048 were trained.
_NOMICS_OWN = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_layer": "num_hidden_layers",
    "max_trained_positions": "max_position_embeddings",
    "layer_norm_epsilon": "rms_norm_eps",
    "rotary_emb_base": "rope_theta",
}
_FALSE_FOR_NOMIC = """causal mlp_fc1_bias mlp_fc2_bias parallel_block parallel_block_tied_norm prenorm qkv_proj_bias
    rotary_emb_interleaved scale_attn_by_inverse_layer_idx use_rms_norm"""
_OF_NOMICS_CODE = """attn_pdrop dense_seq_output embd_pdrop fused_bias_fc fused_dropout_add_ln n_positions
    pad_vocab_size_multiple reorder_and_upcast_attn resid_pdrop summary_activation summary_first_dropout
    summary_proj_to_labels summary_type summary_use_proj use_flash_attn use_xentropy"""
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
    expected={"activation_function": "swiglu", "rotary_emb_fraction": 1.0, "scale_attn_weights": True},
    harmless=("is_causal", *_OF_NOMICS_CODE.split()),
    aliases=_NOMICS_OWN,
    prefix="nomic_bert.",
    further=HEADS,
    also=_NOMIC_MODULES,
    gguf=InGGUF(
        "nomic-bert",
        {**STORED, **FUSED_QKV, **GATED},
        _read_nomic_gguf,
        lambda _: NOT_CAUSAL,
        ignored=CLASSIFIER,
        needs=("no groups",),
        encodes=True,
    ),
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
    gguf=InGGUF("eurobert", read=like_llama, metadata=lambda _: NOT_CAUSAL, needs=("no encoder biases",), encodes=True),
)
