"""GPT-2: learned positions, LayerNorm, a plain MLP; matrices are stored [in, out]."""

from typing import Any

from tokenmill.model.config import MAX_LAYERS, ConfigReader, ModelConfig
from tokenmill.model.families import Family

__all__ = ["FAMILY", "IGNORED", "read_gpt"]

_NAMES = {
    "wte.weight": "embedding.weight",
    "wpe.weight": "position_embedding.weight",
    "h.{i}.ln_1{p}": "layers.{i}.attention_norm{p}",
    "h.{i}.attn.c_attn.weight": "layers.{i}.attention.qkv.weight | transpose",
    "h.{i}.attn.c_attn.bias": "layers.{i}.attention.qkv.bias",
    "h.{i}.attn.c_proj.weight": "layers.{i}.attention.out.weight | transpose",
    "h.{i}.attn.c_proj.bias": "layers.{i}.attention.out.bias",
    "h.{i}.ln_2{p}": "layers.{i}.mlp_norm{p}",
    "h.{i}.mlp.c_fc.weight": "layers.{i}.mlp.up.weight | transpose",
    "h.{i}.mlp.c_fc.bias": "layers.{i}.mlp.up.bias",
    "h.{i}.mlp.c_proj.weight": "layers.{i}.mlp.down.weight | transpose",
    "h.{i}.mlp.c_proj.bias": "layers.{i}.mlp.down.bias",
    "ln_f{p}": "norm{p}",
    "lm_head.weight": "head.weight",
}


def read_gpt(reader: ConfigReader, activation: str, **departures: Any) -> ModelConfig:
    """What GPT-2 and GPT-BigCode have in common."""
    hidden, heads = reader.count("n_embd"), reader.count("n_head")
    scaled = reader.flag("scale_attn_weights", True)
    config = ModelConfig(
        family=reader.family,
        vocab_size=reader.count("vocab_size"),
        hidden_size=hidden,
        num_layers=reader.count("n_layer", maximum=MAX_LAYERS),
        num_heads=heads,
        num_kv_heads=departures.pop("num_kv_heads", heads),
        head_dim=reader.head_dim(hidden, heads),
        intermediate_size=reader.count("n_inner", 4 * hidden),
        max_position_embeddings=reader.count("n_positions", 1024),
        norm="layer",
        norm_eps=reader.number("layer_norm_epsilon", 1e-5, maximum=1.0),
        activation=reader.text("activation_function", activation),
        gated_mlp=False,
        positions="learned",
        qkv_bias=True,
        o_bias=True,
        mlp_bias=True,
        attention_scale=None if scaled else 1.0,
        tie_embeddings=reader.flag("tie_word_embeddings", True),
        eos_token_ids=reader.token_ids("eos_token_id"),
        dtype=reader.dtype(),
        **departures,
    )
    reader.done(harmless=("n_ctx", "gradient_checkpointing"))  # n_ctx repeats n_positions
    return config


def _read(reader: ConfigReader) -> ModelConfig:
    reader.expect("scale_attn_by_inverse_layer_idx", [False], False)
    reader.flag("reorder_and_upcast_attn", False)  # a choice of precision: scores are float32 here
    return read_gpt(reader, "gelu_new")


IGNORED = ("h.{i}.attn.bias", "h.{i}.attn.masked_bias")  # the causal mask, stored by old conversions
FAMILY = Family(_read, _NAMES, prefix="transformer.", ignored=IGNORED)
