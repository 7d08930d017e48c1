"""GPT-NeoX: Pythia, GPT-NeoX-20B, Dolly. Attention and MLP read the same input; only a part of each head is rotated."""

from tokenmill.model.config import ConfigReader, ModelConfig
from tokenmill.model.families import Family
from tokenmill.model.rope import read_rope

__all__ = ["FAMILY"]

_NAMES = {
    "gpt_neox.embed_in.weight": "embedding.weight",
    "gpt_neox.layers.{i}.input_layernorm{p}": "layers.{i}.attention_norm{p}",
    "gpt_neox.layers.{i}.attention.query_key_value{p}": "layers.{i}.attention.qkv{p} | heads_to_qkv",
    "gpt_neox.layers.{i}.attention.dense{p}": "layers.{i}.attention.out{p}",
    "gpt_neox.layers.{i}.post_attention_layernorm{p}": "layers.{i}.mlp_norm{p}",
    "gpt_neox.layers.{i}.mlp.dense_h_to_4h{p}": "layers.{i}.mlp.up{p}",
    "gpt_neox.layers.{i}.mlp.dense_4h_to_h{p}": "layers.{i}.mlp.down{p}",
    "gpt_neox.final_layer_norm{p}": "norm{p}",
    "embed_out.weight": "head.weight",
}


def _read(reader: ConfigReader) -> ModelConfig:
    hidden, heads = reader.count("hidden_size"), reader.count("num_attention_heads")
    context = reader.count("max_position_embeddings", 2048)
    bias = reader.expect("attention_bias", [True, False], True)
    parallel = reader.expect("use_parallel_residual", [True, False], True)
    config = ModelConfig(
        family=reader.family,
        vocab_size=reader.count("vocab_size"),
        hidden_size=hidden,
        num_layers=reader.count("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=hidden // heads,
        intermediate_size=reader.count("intermediate_size"),
        max_position_embeddings=context,
        norm="layer",
        norm_eps=float(reader.take("layer_norm_eps", 1e-5)),
        activation=reader.take("hidden_act", "gelu"),
        gated_mlp=False,
        rope=read_rope(reader, hidden // heads, context, 10000.0, "rotary_emb_base", "rotary_pct", 0.25),
        residual="parallel" if parallel else "serial",
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=True,
        tie_embeddings=reader.take("tie_word_embeddings", False),
        eos_token_ids=reader.token_ids("eos_token_id"),
        dtype=reader.dtype(),
    )
    reader.done(harmless=("rope_theta",))  # written beside rotary_emb_base, which is the one that counts
    return config


# Buffers that old checkpoints carry: the causal mask and the rotary frequencies.
_IGNORED = tuple(f"gpt_neox.layers.{{i}}.attention.{name}" for name in ("bias", "masked_bias", "rotary_emb.inv_freq"))
FAMILY = Family(_read, _NAMES, ignored=_IGNORED)
