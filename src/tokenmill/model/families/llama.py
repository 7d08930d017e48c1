"""Llama 1 to 3.x and what is built like it: SmolLM2, TinyLlama, Code Llama."""

from typing import Any

from tokenmill.model.config import MAX_LAYERS, ConfigReader, ModelConfig
from tokenmill.model.families import Family
from tokenmill.model.rope import read_rope
from tokenmill.value_reader import MAX_POSITIONS

__all__ = ["FAMILY", "NAMES", "read_shared"]

NAMES = {
    "embed_tokens.weight": "embedding.weight",
    "layers.{i}.input_layernorm.weight": "layers.{i}.attention_norm.weight",
    "layers.{i}.self_attn.q_proj{p}": "layers.{i}.attention.qkv{p}:q",
    "layers.{i}.self_attn.k_proj{p}": "layers.{i}.attention.qkv{p}:k",
    "layers.{i}.self_attn.v_proj{p}": "layers.{i}.attention.qkv{p}:v",
    "layers.{i}.self_attn.o_proj{p}": "layers.{i}.attention.out{p}",
    "layers.{i}.post_attention_layernorm.weight": "layers.{i}.mlp_norm.weight",
    "layers.{i}.mlp.gate_proj{p}": "layers.{i}.mlp.up{p}:gate",
    "layers.{i}.mlp.up_proj{p}": "layers.{i}.mlp.up{p}:up",
    "layers.{i}.mlp.down_proj{p}": "layers.{i}.mlp.down{p}",
    "norm.weight": "norm.weight",
    "lm_head.weight": "head.weight",
}


def read_shared(reader: ConfigReader, *, theta: float = 10000.0, **departures: Any) -> ModelConfig:
    """What Llama, Mistral, Qwen and Mixtral have in common; `departures` are the family's own fields."""
    hidden, heads = reader.count("hidden_size"), reader.count("num_attention_heads")
    context = reader.count("max_position_embeddings", 2048, maximum=MAX_POSITIONS)
    head_dim = departures.pop("head_dim", None) or reader.count("head_dim", None) or reader.head_dim(hidden, heads)
    config = ModelConfig(
        family=reader.family,
        vocab_size=reader.count("vocab_size"),
        hidden_size=hidden,
        num_layers=reader.count("num_hidden_layers", maximum=MAX_LAYERS),
        num_heads=heads,
        num_kv_heads=reader.count("num_key_value_heads", heads),
        head_dim=head_dim,
        intermediate_size=reader.count("intermediate_size"),
        max_position_embeddings=context,
        norm_eps=reader.number("rms_norm_eps", 1e-6, maximum=1.0),
        activation=reader.text("hidden_act", "silu"),
        rope=read_rope(reader, head_dim, context, theta),
        tie_embeddings=reader.flag("tie_word_embeddings", False),
        eos_token_ids=reader.token_ids("eos_token_id"),
        dtype=reader.dtype(),
        **departures,
    )
    reader.done()
    return config


def _read(reader: ConfigReader) -> ModelConfig:
    reader.expect("pretraining_tp", [1], 1)
    reader.expect("rope_interleaved", [False], False)
    bias, mlp_bias = reader.flag("attention_bias", False), reader.flag("mlp_bias", False)
    return read_shared(reader, qkv_bias=bias, o_bias=bias, mlp_bias=mlp_bias)


# Old conversions stored the rotary frequencies, which the config already says.
FAMILY = Family(_read, NAMES, prefix="model.", ignored=("layers.{i}.self_attn.rotary_emb.inv_freq",))
